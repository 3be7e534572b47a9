package sandbox

import "testing"

func TestRunTrue(t *testing.T) {
	_, errs, e := output(t, penConfig{profile: testProfile(), argv: []string{"/usr/bin/true"}})
	if e.Status != 0 || errs != "" {
		t.Errorf("true = %#x, %q; want 0 and no text", e.Status, errs)
	}
}

package stage

import (
	"errors"
	"testing"

	"pinfold/sandbox/internal/stagewire"
)

// TestNamedProfiles: a key alone launches nothing that has not proved good, and never
// comes with a profile that it may not be the key of.
func TestNamedProfiles(t *testing.T) {
	s := &server{}
	s.profiles = newProfiles(s)
	raw := []byte(`{"name":"p","view":[]}`)
	key := stagewire.ProfileKey(raw)
	if _, err := s.profiles.get(key, nil); !errors.Is(err, errForgot) {
		t.Errorf("get(key, nil) of a profile never sent = %v; want errForgot", err)
	}
	p, err := s.profiles.get(key, raw)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.profiles.get(key, nil); !errors.Is(err, errForgot) {
		t.Errorf("get(key, nil) of a profile that was not kept = %v; want errForgot", err)
	}
	if err := errors.Join(s.profiles.keep(key, p), s.profiles.put(p)); err != nil {
		t.Fatal(err)
	}
	if got, err := s.profiles.get(key, nil); got != p || err != nil {
		t.Errorf("get(key, nil) = %p, %v; want the kept %p", got, err, p)
	}
	if got := answerOf(errForgot).Kind; got != stagewire.KindForgot {
		t.Errorf("answerOf(errForgot) = %q; want %q", got, stagewire.KindForgot)
	}
	for _, r := range []stagewire.Launch{{Key: key, Profile: []byte(`{"name":"q"}`)}, {}} {
		var no refusal
		if got, err := launchKey(r); !errors.As(err, &no) {
			t.Errorf("launchKey(%+v) = %q, %v; want a refusal", r, got, err)
		}
	}
}

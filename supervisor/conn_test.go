package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pinfold/proto"
)

func TestCheckToken(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	set, empty, blank := file("set", "s3cret\n"), file("empty", ""), file("blank", " \n")
	tests := []struct {
		file, token string
		want        proto.Reason // empty: accepted
	}{
		{"", "", ""},
		{"", "whatever", ""},
		{set, "s3cret", ""},
		{set, "", proto.ReasonAuthFailed},
		{set, "s3cre", proto.ReasonAuthFailed},
		{set, "s3cret\n", proto.ReasonAuthFailed},
		{empty, "", proto.ReasonServerError},
		{blank, "", proto.ReasonServerError},
		{filepath.Join(dir, "absent"), "s3cret", proto.ReasonServerError},
	}
	for _, tt := range tests {
		err := checkToken(tt.file, tt.token)
		var refused *refusedError
		if tt.want == "" && err != nil || tt.want != "" && (!errors.As(err, &refused) || refused.reason != tt.want) {
			t.Errorf("checkToken(%s, %q) = %v; want reason %q", filepath.Base(tt.file), tt.token, err, tt.want)
		}
		if refused != nil && strings.Contains(refused.text, dir) {
			t.Errorf("checkToken(%s, %q) tells the client %q; want no path of the host", filepath.Base(tt.file), tt.token, refused.text)
		}
	}
}

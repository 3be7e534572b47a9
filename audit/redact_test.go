package audit

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestSecretName(t *testing.T) {
	secret := []string{
		"TOKEN", "GITHUB_TOKEN", "githubToken", "access-token", "API_KEY", "apiKey", "x-api-key", "AWS_SECRET_ACCESS_KEY", "PASSWORD", "db.password",
		"PGPASSWORD", "MYSQL_PWD", "DB_PASS", "--password", "passphrase", "Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "private_key",
		"_authToken", "client_secret", "SENTRY_DSN", "sig", "JWT", "NPM_AUTH", "GH_PAT", "SSH_KEY", "mypassword", "CREDENTIALS", "-passin", "OPENAI_API_KEY",
	}
	plain := []string{
		"", "PATH", "HOME", "PWD", "OLDPWD", "USER", "LANG", "KEYBOARD", "SSH_AUTH_SOCK", "PUBLIC_KEY", "key", "author", "GIT_AUTHOR_NAME", "PATTERN",
		"TOKENIZERS_PARALLELISM", "monkey", "compass", "bypass", "signal", "-p", "--sort-key", "Content-Type", "XDG_SESSION_ID",
	}
	for _, name := range secret {
		if !SecretName(name) {
			t.Errorf("SecretName(%q) = false; want true", name)
		}
	}
	for _, name := range plain {
		if SecretName(name) {
			t.Errorf("SecretName(%q) = true; want false", name)
		}
	}
}

func TestRedactText(t *testing.T) {
	jwt := "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
	tests := []struct{ in, want string }{
		{"plain words, nothing else", "plain words, nothing else"},
		{"ls -la /home/x", "ls -la /home/x"},
		{"TOKEN=abc make", "TOKEN=[redacted] make"},
		{"export A=1 DB_PASSWORD='x y' B=2", "export A=1 DB_PASSWORD='[redacted]' B=2"},
		{`{"user":"u","password":"p\"q","n":1}`, `{"user":"u","password":"[redacted]","n":1}`},
		{"run --token abc --verbose", "run --token [redacted] --verbose"},
		{"run --token=abc;next", "run --token=[redacted];next"},
		{"run --password --verbose", "run --password --verbose"},
		{`curl -H "Authorization: token abc" http://x`, `curl -H "Authorization: [redacted]" http://x`},
		{"Authorization: Basic dTpw", "Authorization: [redacted]"},
		{"X-Api-Key:abc", "X-Api-Key:[redacted]"},
		{"Cookie: a=b; c=d\nnext", "Cookie: [redacted]\nnext"},
		{"say Bearer abc.def-1 now", "say Bearer [redacted] now"},
		{"https://u:p@h/x", "https://u:[redacted]@h/x"},
		{"https://:p@ss@h/x", "https://:[redacted]@h/x"},
		{"https://abcdefghijklmnopqrstuv@h/x", "https://[redacted]@h/x"},
		{"https://git@h/x", "https://git@h/x"},
		{"https://h:80/a@b", "https://h:80/a@b"},
		{"https://h/x?a=1&access_token=abc&b=2", "https://h/x?a=1&access_token=[redacted]&b=2"},
		{"see " + jwt + " there", "see [redacted] there"},
		{"ghp_0123456789abcdefABCD", "[redacted]"},
		{"x AKIAIOSFODNN7EXAMPLE y", "x [redacted] y"},
		{"sk-proj-0123456789abcdef01", "[redacted]"},
		{"xoxb-1234567890-abc", "[redacted]"},
		{"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4\nMIIE\n-----END RSA PRIVATE KEY-----\nafter", "-----BEGIN RSA PRIVATE KEY-----[redacted]-----END RSA PRIVATE KEY-----\nafter"},
		{"-----BEGIN PRIVATE KEY-----\nMIIE", "-----BEGIN PRIVATE KEY-----[redacted]"},
		{"curl -s -u me:pw https://h", "curl -s -u [redacted] https://h"},
		{"mysql -uroot -phunter2 db", "mysql -uroot -p[redacted] db"},
		{"sshpass -p 'hunter 2' ssh h", "sshpass -p [redacted] ssh h"},
		{"bad \xff byte", "bad \uFFFD byte"},
		{"a=b=TOKEN=x", "a=b=TOKEN=[redacted]"},
		{"TOKEN=", "TOKEN="},
	}
	for _, tt := range tests {
		got := RedactText(tt.in)
		if got != tt.want {
			t.Errorf("RedactText(%q) = %q; want %q", tt.in, got, tt.want)
		}
		if again := RedactText(got); again != got {
			t.Errorf("RedactText(%q) = %q; want it unchanged", got, again)
		}
	}
}

func TestRedactArgs(t *testing.T) {
	tests := []struct{ in, want []string }{
		{nil, []string{}},
		{[]string{"ls", "-l"}, []string{"ls", "-l"}},
		{[]string{"x", "--token", "abc", "y"}, []string{"x", "--token", Hidden, "y"}},
		{[]string{"x", "--token=a&b c"}, []string{"x", "--token=" + Hidden}},
		{[]string{"env", "A_SECRET=a&b c", "cmd"}, []string{"env", "A_SECRET=" + Hidden, "cmd"}},
		{[]string{"curl", "-u", "me:pw", "-H", "Authorization: Bearer abc"}, []string{"curl", "-u", Hidden, "-H", "Authorization: " + Hidden}},
		{[]string{"/usr/bin/curl", "-ume:pw"}, []string{"/usr/bin/curl", "-u" + Hidden}},
		{[]string{"timeout", "5", "curl", "-u", "me:pw"}, []string{"timeout", "5", "curl", "-u", Hidden}},
		{[]string{"mysql", "-phunter2", "-p"}, []string{"mysql", "-p" + Hidden, "-p"}},
		{[]string{"mkdir", "-p", "a/b"}, []string{"mkdir", "-p", "a/b"}},
		{[]string{"sh", "-c", "TOKEN=abc ./x"}, []string{"sh", "-c", "TOKEN=" + Hidden + " ./x"}},
		{[]string{"psql", "postgres://u:p@h/d"}, []string{"psql", "postgres://u:" + Hidden + "@h/d"}},
	}
	for _, tt := range tests {
		if d := cmp.Diff(tt.want, RedactArgs(tt.in)); d != "" {
			t.Errorf("RedactArgs(%q) differs (-want +got):\n%s", tt.in, d)
		}
	}
}

func TestRedactEnv(t *testing.T) {
	got := RedactEnv([]string{"A=1", "GITHUB_TOKEN=a b&c", "EMPTY_TOKEN=", "URL=https://u:p@h", "noequals", "B=x=y"})
	want := []string{"A=1", "GITHUB_TOKEN=" + Hidden, "EMPTY_TOKEN=", "URL=https://u:" + Hidden + "@h", "noequals", "B=x=y"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("RedactEnv() differs (-want +got):\n%s", d)
	}
}

func TestRedactionIsBounded(t *testing.T) {
	long := RedactText(strings.Repeat("a ", 50_000))
	if len(long) > maxWord || !strings.Contains(long, "bytes]") {
		t.Errorf("RedactText(100,000 bytes) = %d bytes ending %q; want at most %d and a count", len(long), long[len(long)-20:], maxWord)
	}
	many := RedactArgs(make([]string, 10_000))
	if len(many) != maxWords+1 || many[maxWords] != "[+9488 words]" {
		t.Errorf("RedactArgs(10,000 words) = %d words ending %q; want %d and a count", len(many), many[len(many)-1], maxWords+1)
	}
	wide := RedactArgs([]string{strings.Repeat("x", 4000), strings.Repeat("y ", 4000)})
	if len(wide) != 2 {
		t.Errorf("RedactArgs(two wide words) = %d words; want 2", len(wide))
	}
	total := 0
	for _, w := range RedactArgs(slicesOf(400, strings.Repeat("z", 4000))) {
		total += len(w)
	}
	if total > maxTotal+100 {
		t.Errorf("RedactArgs(1.6 MB) = %d bytes; want at most %d", total, maxTotal)
	}
	// A secret that the bound cuts in two must not show its first half.
	text := strings.Repeat("x", maxRead-20) + " https://user:hunter2hunter2hunter2@h"
	if got := RedactText(text); strings.Contains(got, "hunter2") {
		t.Errorf("RedactText(secret over the bound) = …%q; want no secret", got[len(got)-60:])
	}
}

func slicesOf(n int, s string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

// Hostile text must not make a record slow: the whole bound in well under a second.
func TestRedactionIsLinear(t *testing.T) {
	for _, unit := range []string{"a: ", "a=", "--a ", "token=", "https://", "bearer ", "curl -x ", "mysql -x ", `"`, "eyJaaaaa.", "-----BEGIN PRIVATE KEY-----"} {
		begin := time.Now()
		RedactText(strings.Repeat(unit, maxRead/len(unit)))
		if d := time.Since(begin); d > 2*time.Second {
			t.Errorf("RedactText(%q repeated to %d bytes) took %v; want it linear", unit, maxRead, d)
		}
	}
}

func FuzzRedactText(f *testing.F) {
	for _, s := range []string{
		"TOKEN=abc", `{"password":"x"}`, "https://u:p@h", "Bearer abc", "--token x", "Authorization: Basic x", "curl -u a:b", "-----BEGIN PRIVATE KEY-----\nx",
		"token: 'a", "x\xffy", "password=\"a\\", "eyJaaaaaa.b.c", "token=[redacted]x", "a@b:c", "sshpass -p x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got := RedactText(in)
		if !utf8.ValidString(got) || len(got) > maxWord {
			t.Errorf("RedactText(%q) = %q; want valid UTF-8 of at most %d bytes", in, got, maxWord)
		}
		const canary = "cAnArY7423"
		// Secrets in the forms that matter are hidden whatever stands before them on a line of its own.
		for _, form := range []string{"\nexport MY_TOKEN=" + canary + "\n", "\nrun --password " + canary + "\n"} {
			if len(in) < 1000 && !strings.ContainsAny(in, `"'\`) && strings.Contains(RedactText(in+form), canary) {
				t.Errorf("RedactText(%q) = %q; want no %s", in+form, RedactText(in+form), canary)
			}
		}
	})
}

func FuzzRedactArgs(f *testing.F) {
	f.Add("curl", "-u", "a:b")
	f.Add("x", "--token", "abc")
	f.Add("sh", "-c", "PASSWORD=x y")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		for _, w := range RedactArgs([]string{a, b, c}) {
			if !utf8.ValidString(w) || len(w) > maxWord {
				t.Errorf("RedactArgs(%q, %q, %q) has %q; want valid UTF-8 of at most %d bytes", a, b, c, w, maxWord)
			}
		}
		const canary = "cAnArY7423"
		for _, w := range RedactArgs([]string{a, "--api-key=" + canary, "--secret", canary, b, "X_TOKEN=" + canary}) {
			if strings.Contains(w, canary) {
				t.Errorf("RedactArgs(%q, …) has %q; want no %s", a, w, canary)
			}
		}
		for _, w := range RedactEnv([]string{"X_SECRET=" + a + canary + b}) {
			if strings.Contains(w, canary) {
				t.Errorf("RedactEnv() has %q; want no %s", w, canary)
			}
		}
	})
}

package session

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

func TestTokens(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var ts Tokens
	first := ts.issue(now)
	if !ts.use(first, now.Add(1000*time.Hour)) {
		t.Error("use() of the only token after long = false; want it good as long as the session")
	}
	second := ts.issue(now)
	if second == first || len(first) < 43 {
		t.Errorf("issue() = %q, then %q; want 32 random bytes each", first, second)
	}
	third := ts.issue(now) // the second was lost on its way
	for _, bad := range []string{"", "x", first + "x", first[:42]} {
		if ts.use(bad, now) {
			t.Errorf("use(%q) = true; want false", bad)
		}
	}
	late := ts
	if late.use(first, now.Add(tokenTime)) || !late.use(first, now.Add(tokenTime-1)) {
		t.Error("the first token is not good for just 10 minutes after its successor was given out")
	}
	if !ts.use(second, now) || ts.use(first, now) {
		t.Error("use(second) = false, or the first is good after it; want it to end what came before")
	}
	if !ts.use(third, now) || ts.use(second, now) {
		t.Error("use(third) = false, or the second is good after it; want it to end what came before")
	}
}

func TestTokensAreBoundedAndStorable(t *testing.T) {
	now := time.Now()
	var ts Tokens
	used := ts.issue(now)
	var last string
	for range 100 { // every answer is lost
		if !ts.use(used, now) {
			t.Fatal("use() of the token that was used last = false; want it good until its successor is used")
		}
		last = ts.issue(now)
	}
	if len(ts) > maxTokens {
		t.Errorf("%d tokens are kept; want at most %d", len(ts), maxTokens)
	}
	stored, err := json.Marshal(ts)
	if err != nil {
		t.Fatal(err)
	}
	var again Tokens
	if err := json.Unmarshal(stored, &again); err != nil {
		t.Fatal(err)
	}
	if !again.use(last, now.Add(24*time.Hour)) || again.use(used, now) {
		t.Error("tokens that were stored are not good as before")
	}
}

package session

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"pinfold/policy"
)

func TestExplanationCrosses(t *testing.T) {
	g := grant(t, policy.DefaultSource(), policy.Caller{Name: "root", UnitKnown: true}, policy.Request{Cmd: []string{"echo"}})
	g.Linger, g.Env = 90*time.Second, []string{"TOKEN=s3cret=1", "LANG=C"}
	b, err := EncodeExplanation(policy.Explanation{Grant: g})
	if err != nil || strings.Contains(string(b), "s3cret") {
		t.Fatalf("EncodeExplanation() = %s, %v; want no value of a variable", b, err)
	}
	got, err := DecodeExplanation(b)
	if err != nil || got.Grant == nil {
		t.Fatalf("DecodeExplanation() = %+v, %v; want the grant", got, err)
	}
	want := *g
	want.Env = []string{"TOKEN", "LANG"}
	if d := cmp.Diff(&want, got.Grant, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("DecodeExplanation() differs (-want +got):\n%s", d)
	}
}

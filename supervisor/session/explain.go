package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
)

// explain says what a spawn would get. Nothing is started.
func (s *Session) explain(r *proto.ExplainReq, answer respond) {
	if s.over != "" {
		answer(proto.Answer(r, proto.Refused(r, proto.CodeShuttingDown, "cannot explain: the session is ending", "")), nil)
		return
	}
	pol := s.host.Policy()
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(s.base, startTime)
		defer cancel()
		answer(s.explanation(ctx, pol, r), nil)
	})
}

func (s *Session) explanation(ctx context.Context, pol *policy.Policy, r *proto.ExplainReq) *proto.ExplainResp {
	q := request(&r.Spawn)
	c := pol.Candidates(s.caller, q)
	l, dir, err := s.host.Stage.Look(ctx, s.conn, sandbox.LookRequest{Programs: c.Programs, Path: c.Path, Dir: c.Dir, Under: c.Under})
	if dir != nil {
		defer dir.Close()
	}
	if err != nil {
		return &proto.ExplainResp{Reply: proto.Refused(r, proto.CodeInternal, fmt.Sprintf("cannot look at %q: %v", first(r.Cmd), err), "")}
	}
	e := pol.Explain(s.caller, q, looked(l))
	resp := &proto.ExplainResp{Reply: proto.Done(r), Allowed: e.Allowed(), Text: explainText(e)}
	if resp.Explanation, err = EncodeExplanation(e); err != nil {
		s.log.Error("cannot encode an explanation, the answer goes without it", attrErr(err))
	}
	if e.Grant != nil {
		resp.Profile, resp.Workspace, resp.Rule = e.Grant.Profile, e.Grant.Workspace.Path, e.Grant.Rule.String()
	}
	if e.Denied != nil {
		f := failure(&proto.SpawnReq{}, e.Denied)
		resp.Denial, resp.Rule = f.Denial, f.Rule
	}
	return resp
}

// EncodeExplanation is the explanation for programs: as the policy has it, times as
// texts, and of the environment the names alone, since values may be secrets of the
// policy's that only the command is to have.
func EncodeExplanation(e policy.Explanation) (jsontext.Value, error) {
	if e.Grant != nil {
		g := *e.Grant
		g.Env = make([]string, len(e.Grant.Env))
		for i, v := range e.Grant.Env {
			g.Env[i], _, _ = strings.Cut(v, "=")
		}
		e.Grant = &g
	}
	b, err := json.Marshal(e, json.WithMarshalers(json.MarshalFunc(func(d time.Duration) ([]byte, error) { return json.Marshal(d.String()) })))
	if err != nil {
		return nil, fmt.Errorf("cannot encode the explanation: %w", err)
	}
	return b, nil
}

// DecodeExplanation reads what EncodeExplanation has written.
func DecodeExplanation(b []byte) (policy.Explanation, error) {
	var e policy.Explanation
	err := json.Unmarshal(b, &e, json.WithUnmarshalers(json.UnmarshalFunc(func(b []byte, d *time.Duration) error {
		var text string
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		got, err := time.ParseDuration(text)
		*d = got
		return err
	})))
	if err != nil {
		return e, fmt.Errorf("cannot decode the explanation: %w", err)
	}
	return e, nil
}

// explainText is the explanation for people: a line a step, the answer last.
func explainText(e policy.Explanation) string {
	var b strings.Builder
	for _, st := range e.Steps {
		mark := "no "
		if st.Passed {
			mark = "yes"
		}
		fmt.Fprintf(&b, "%s  %s: %s", mark, st.Question, st.Answer)
		if st.Rule.Text != "" {
			fmt.Fprintf(&b, " [%s]", st.Rule)
		}
		b.WriteByte('\n')
	}
	if e.Denied != nil {
		fmt.Fprintf(&b, "refused: %v\n", e.Denied)
		if a := e.Denied.Advice(); a != "" {
			fmt.Fprintf(&b, "%s\n", a)
		}
		return b.String()
	}
	fmt.Fprintf(&b, "allowed by %s, profile %q\n", e.Grant.Rule, e.Grant.Profile)
	return b.String()
}

package session

import (
	"testing"
	"testing/synctest"
	"time"

	"pinfold/policy"
	"pinfold/proto"
)

// dated is a Link that keeps until when it may write.
type dated struct {
	paper

	until time.Time
}

func (d *dated) SetWriteDeadline(t time.Time) error {
	d.until = t
	return nil
}

// TestTheLastBytesHaveTimeAfterEachEnd: an end that takes longer than the grace period is
// told all the same, and a quick one takes nothing from those that are still to come.
func TestTheLastBytesHaveTimeAfterEachEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, link := bare(), &dated{}
		s.host, s.adm, s.table = &Host{Registry: NewRegistry(1, 1)}, &policy.Admission{}, NewTable()
		s.client = newClient(s, Options{}, link)
		s.procs = map[string]*process{}
		grant := &policy.Grant{Timeout: policy.Timeout{Stop: 10 * time.Second}}
		for _, id := range []string{"quick", "slow"} {
			s.procs[id] = &process{
				id: id, state: Ending, start: &started{grant: grant}, feed: &delivery{}, hurry: func() {}, concluded: make(chan struct{}),
			}
			s.order = append(s.order, id)
		}
		begun := time.Now()
		s.end()
		for _, step := range []struct {
			id    string
			after time.Duration
			want  time.Duration
		}{{"quick", time.Second, 10*time.Second + cutTime}, {"slow", 14 * time.Second, 14*time.Second + cutTime}} {
			time.Sleep(time.Until(begun.Add(step.after)))
			s.procs[step.id].verdict = &proto.Verdict{}
			s.conclude(s.procs[step.id])
			if got := link.until.Sub(begun); got != step.want {
				t.Errorf("after the end of %s at %v bytes are sent until %v; want %v", step.id, step.after, got, step.want)
			}
		}
	})
}

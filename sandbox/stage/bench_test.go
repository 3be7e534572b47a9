package stage_test

import (
	"os/exec"
	"testing"
	"time"
)

// BenchmarkLaunch tells what a launch of /bin/true, teardown included, costs
// beside a bare one, interleaved.
func BenchmarkLaunch(b *testing.B) {
	c := newBench(b)
	p := testProfile()
	var bare, launch, start, end time.Duration
	s := c.spec(p, "/bin/true")
	for b.Loop() {
		t0 := time.Now()
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		pen, err := c.Launch(b.Context(), c.conn, s, nil)
		if err != nil {
			b.Fatal(err)
		}
		t2 := time.Now()
		q, err := pen.Start(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		t3 := time.Now()
		if st, err := q.Wait(b.Context()); err != nil || st.Code != 0 {
			b.Fatal(st, err)
		}
		if err := q.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
		bare += t1.Sub(t0)
		launch += t2.Sub(t1)
		start += t3.Sub(t2)
		end += time.Since(t3)
	}
	n := time.Duration(b.N)
	b.ReportMetric(float64((bare / n).Microseconds()), "bare-us")
	b.ReportMetric(float64((launch / n).Microseconds()), "launch-us")
	b.ReportMetric(float64((start / n).Microseconds()), "start-us")
	b.ReportMetric(float64((end / n).Microseconds()), "wait+release-us")
	b.ReportMetric(float64(launch+start+end)/float64(bare), "x-bare")
}

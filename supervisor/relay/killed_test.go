package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"pinfold/proto"

	"golang.org/x/sys/unix"
)

// order is what a daemon that is going to be killed is told.
type order struct {
	Dir      string
	Overflow Overflow
	From     Cursor // where its client stands
}

// deliverForever relays the pipes at descriptors 3 and 4 to a client at the socket 5,
// until it is killed or has told all; then it prints its counts.
func deliverForever(how string) int {
	var told order
	err := json.Unmarshal([]byte(how), &told)
	if err == nil {
		err = deliverAll(told)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func deliverAll(told order) error {
	conn, err := net.FileConn(os.NewFile(5, "socket"))
	if err != nil {
		return err
	}
	o, err := NewOutput(OutputConfig{
		Dir: told.Dir, ProcID: "p", ReqID: "q", Stdout: os.NewFile(3, "pipe"), Stderr: os.NewFile(4, "pipe"),
		Keep: MinKeep, Overflow: told.Overflow, Format: Format{Grouping: Batch},
	})
	if err != nil {
		return err
	}
	if c := o.Counts(); told.Overflow == Block && c.Dropped > 0 {
		return fmt.Errorf("counts under block = %+v", c)
	}
	if err := o.SetCursor(told.From.Stdout, told.From.Stderr); err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- o.Serve(context.Background()) }()
	if err := errors.Join(o.Deliver(context.Background(), connSink{conn}), <-served); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(o.Counts())
}

// TestKilledWhileDelivering kills the daemon by SIGKILL at random instants, while a
// client reads, sometimes slowly. The client goes on at the next daemon by the offsets
// it has come to, and checks every byte, every gap and the final count.
func TestKilledWhileDelivering(t *testing.T) {
	for name, how := range map[string]Overflow{"block": Block, "drop": Drop} {
		t.Run(name, func(t *testing.T) {
			const total = 24 << 20
			r1, w1 := nonblockPipe(t)
			r2, w2 := nonblockPipe(t)
			var writers sync.WaitGroup
			t.Cleanup(writers.Wait)
			for kind, w := range map[proto.Stream]*os.File{proto.Stdout: w1, proto.Stderr: w2} {
				writers.Go(func() {
					_ = writePattern(w, kind, 0, total, func() int { return 100_000 }) // what is missing is seen
					_ = w.Close()
				})
			}
			t.Cleanup(func() { _, _ = w1.Close(), w2.Close() })
			rnd := rand.New(rand.NewPCG(uint64(how), 5))
			client, told := newChecker(Cursor{}), order{Dir: shmDir(t), Overflow: how}
			kills := 0
			for life := 0; ; life++ {
				told.From = client.cursor()
				if c, done := oneDaemon(t, told, []*os.File{r1, r2}, client, rnd, life < 40); done {
					client.want(t, total, total)
					if c.Dropped != client.missing() || !c.Drained {
						t.Errorf("counts after %d kills = %+v; want %d dropped, drained", kills, c, client.missing())
					}
					if how == Block && c.Dropped > 0 || how == Drop && c.Dropped == 0 {
						t.Errorf("dropped = %d with overflow %v", c.Dropped, how)
					}
					break
				}
				kills++
			}
			if kills < 3 {
				t.Errorf("kills = %d; want some to prove anything", kills)
			}
		})
	}
}

// alive gives a daemon time again whenever something comes from it.
type alive struct {
	io.Reader
	timer *time.Timer
}

func (a *alive) Read(b []byte) (int, error) {
	n, err := a.Reader.Read(b)
	if n > 0 {
		a.timer.Reset(patience)
	}
	return n, err
}

// oneDaemon starts a daemon, gives the client what it sends and kills it, unless mercy
// is had. It reports whether the daemon came to the end, and with which counts.
func oneDaemon(t *testing.T, told order, pipes []*os.File, client *checker, rnd *rand.Rand, kill bool) (Counts, bool) {
	t.Helper()
	how, err := json.Marshal(told)
	if err != nil {
		t.Fatalf("Marshal() = %v; want nil", err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("socketpair() = %v; want two sockets", err)
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "client"), os.NewFile(uintptr(fds[1]), "daemon")
	defer mine.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "PINFOLD_TEST_DELIVER="+string(how))
	cmd.ExtraFiles = []*os.File{dupFile(t, pipes[0]), dupFile(t, pipes[1]), theirs}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Start()
	for _, f := range cmd.ExtraFiles {
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatalf("Start() = %v; want nil", err)
	}
	after := patience // then the test fails, unless something has come
	if kill {
		after = time.Duration(10_000+rnd.IntN(40_000)) * time.Microsecond
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // it may have ended
	if rnd.IntN(2) == 0 {
		time.Sleep(time.Duration(rnd.IntN(30)) * time.Millisecond) // the daemon overtakes its client
	}
	events := io.Reader(mine)
	if !kill {
		events = &alive{mine, timer}
	}
	if err := client.readEvents(events); err != nil {
		t.Fatalf("events = %v; want each byte once, in its place", err)
	}
	err = cmd.Wait()
	timer.Stop()
	if err != nil && (stderr.Len() > 0 || !kill) {
		t.Fatalf("daemon = %v %s; want only our kill", err, stderr.String())
	}
	var c Counts
	if err == nil {
		if err := json.Unmarshal(stdout.Bytes(), &c); err != nil {
			t.Fatalf("counts = %q, %v; want them", stdout.String(), err)
		}
	}
	return c, err == nil
}

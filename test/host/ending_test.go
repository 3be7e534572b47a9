package host

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// finalLimit is for "the final event comes within 1 s": five times that on a host
// that other tests load.
const finalLimit = 5 * time.Second

const shortGrace = "    timeout: { stop: 1s }"

// TestAChildThatIgnoresSIGTERMIsKilledAfterTheGrace asks it to end, and waits.
func TestAChildThatIgnoresSIGTERMIsKilledAfterTheGrace(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", shortGrace))
	c := d.agent()
	p := spawn(t, c, shell(`trap "" TERM; echo ready; while :; do sleep 0.05; done`))
	await(t, p, "ready")
	began := time.Now()
	if s, err := p.Kill(soon(t), proto.SigTerm); err != nil || s != proto.StatusKilled {
		t.Errorf("Kill(SIGTERM) = %s, %v; want killed", s, err)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("Kill(SIGTERM) took %s; want the whole grace of 1 s", took)
	}
	if _, _, v := output(t, p); v.Cause != proto.CauseKilled || v.Signal != "SIGKILL" || v.Code != -9 {
		t.Errorf("verdict = %+v; want killed by SIGKILL", v)
	}
}

// TestAProcessThatHandlesSIGTERMSaysSo ends with its own code, and is killed in our
// words, since we asked for it.
func TestAProcessThatHandlesSIGTERMSaysSo(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	p := spawn(t, c, shell(`trap "echo bye; exit 3" TERM; echo ready; while :; do sleep 0.05; done`))
	await(t, p, "ready")
	if s, err := p.Kill(soon(t), proto.SigTerm); err != nil || s != proto.StatusKilled {
		t.Errorf("Kill(SIGTERM) = %s, %v; want killed", s, err)
	}
	out, _, v := output(t, p)
	if out != "bye\n" || v.Cause != proto.CauseKilled || v.Code != 3 || v.Signal != "" {
		t.Errorf("output, verdict = %q, %+v; want bye and killed with its own code 3", out, v)
	}
}

// TestEverySignal sends each signal that a request can name.
func TestEverySignal(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	const script = `
import os, signal, time
for s in ("INT", "HUP", "QUIT", "USR1", "USR2", "WINCH"):
    signal.signal(getattr(signal, "SIG" + s), lambda n, f, s=s: os.write(1, b"got SIG" + s.encode() + b"\n"))
os.write(1, b"ready\n")
while True:
    time.sleep(60)
`
	p := spawn(t, c, python(script))
	await(t, p, "ready\n")
	for _, sig := range []proto.Signal{proto.SigInt, proto.SigHup, proto.SigQuit, proto.SigUsr1, proto.SigUsr2, proto.SigWinch} {
		if s, err := p.Kill(soon(t), sig); err != nil || s != proto.StatusRunning {
			t.Errorf("Kill(%s) = %s, %v; want running at once", sig, s, err)
		}
		await(t, p, "got "+string(sig)+"\n")
	}
	for _, step := range []struct{ sig, state string }{{"SIGSTOP", "T"}, {"SIGCONT", "S"}} {
		if s, err := p.Kill(soon(t), proto.Signal(step.sig)); err != nil || s != proto.StatusRunning {
			t.Errorf("Kill(%s) = %s, %v; want running", step.sig, s, err)
		}
		eventually(t, "the process is in state "+step.state, func() bool { return procState(p.PID) == step.state })
	}
	if s, err := p.Kill(soon(t), proto.SigKill); err != nil || s != proto.StatusKilled {
		t.Errorf("Kill(SIGKILL) = %s, %v; want killed", s, err)
	}
	if _, _, v := output(t, p); v.Cause != proto.CauseKilled || v.Signal != "SIGKILL" {
		t.Errorf("verdict = %+v; want killed by SIGKILL", v)
	}
	for _, sig := range []proto.Signal{proto.SigInt, proto.SigHup, proto.SigQuit, proto.SigUsr1, proto.SigUsr2} {
		p := spawn(t, c, proto.Spawn{Cmd: []string{"sleep", "600"}})
		if s, err := p.Kill(soon(t), sig); err != nil || s != proto.StatusRunning {
			t.Errorf("Kill(%s) = %s, %v; want running", sig, s, err)
		}
		if _, _, v := output(t, p); v.Cause != proto.CauseSignaled || v.Signal != string(sig) || v.Core {
			t.Errorf("verdict after %s = %+v; want signaled by it, without a core", sig, v)
		}
	}
}

// procState is the one letter of proc_pid_stat(5), empty once there is no process.
func procState(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return rest[:1]
}

// TestAStoppedProcessEnds by SIGTERM and by SIGKILL.
func TestAStoppedProcessEnds(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", shortGrace))
	c := d.agent()
	for _, end := range []proto.Signal{proto.SigTerm, proto.SigKill} {
		p := spawn(t, c, proto.Spawn{Cmd: []string{"sleep", "600"}})
		if _, err := p.Kill(soon(t), proto.SigStop); err != nil {
			t.Fatalf("Kill(SIGSTOP) = %v; want none", err)
		}
		eventually(t, "it is stopped", func() bool { return procState(p.PID) == "T" })
		if s, err := p.Kill(soon(t), end); err != nil || s != proto.StatusKilled {
			t.Errorf("Kill(%s) of a stopped process = %s, %v; want killed", end, s, err)
		}
		if _, _, v := output(t, p); v.Signal != string(end) {
			t.Errorf("verdict = %+v; want %s", v, end)
		}
	}
}

// TestGrandchildrenEndWithTheMainProcess: double-forked, in a session of their own,
// deaf to signals, holding the pipes.
func TestGrandchildrenEndWithTheMainProcess(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	for name, script := range map[string]string{
		"background":         `sleep 600 & echo up; exit 4`,
		"session of its own": `setsid sleep 600 & echo up; exit 4`,
		"nohup":              `nohup sleep 600 >/dev/null 2>&1 & echo up; exit 4`,
		"deaf and double":    `(trap "" TERM HUP INT; (setsid sh -c 'while :; do sleep 1; done' &) ); echo up; exit 4`,
		"many":               `for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 600 & done; echo up; exit 4`,
	} {
		p := spawn(t, c, shell(script))
		await(t, p, "up\n")
		began := time.Now()
		_, _, v := output(t, p)
		if took := time.Since(began); took > finalLimit {
			t.Errorf("%s: the final event came after %s; want it within %s", name, took, finalLimit)
		}
		if v.Cause != proto.CauseExited || v.Code != 4 || !v.Output.Drained || len(v.Survivors) == 0 {
			t.Errorf("%s: verdict = %+v; want exited 4, drained, with survivors named", name, v)
		}
		for _, pid := range v.Survivors {
			if state := procState(pid); state != "" && state != "Z" {
				t.Errorf("%s: survivor %d is in state %s; want it gone", name, pid, state)
			}
		}
	}
}

// TestAWriterThatOutlivesTheMainProcessLosesNothing that it wrote before the end.
func TestAWriterThatOutlivesTheMainProcessLosesNothing(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", "    linger: 20s"))
	c := d.agent()
	out, _, v := run(t, c, shell(`(sleep 0.5; echo late) & echo early; exit 0`))
	if out != "early\nlate\n" || v.Code != 0 || len(v.Survivors) != 0 {
		t.Errorf("run() with linger = %q, %+v; want both lines and no survivor", out, v)
	}
}

// TestWhatIsKilledWithTheMainProcessDidNotOutliveIt: a kill ends all at once, and
// some are still on their way out when the main process is gone.
func TestWhatIsKilledWithTheMainProcessDidNotOutliveIt(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	for range 3 {
		p := spawn(t, c, shell(`for i in $(seq 24); do python3 -c 'b = bytearray(1 << 23)
import time; time.sleep(600)' & done; sleep 1; echo up; wait`))
		await(t, p, "up\n")
		if s, err := p.Kill(soon(t), proto.SigKill); err != nil || s != proto.StatusKilled {
			t.Errorf("Kill(SIGKILL) = %s, %v; want killed", s, err)
		}
		if _, _, v := output(t, p); v.Cause != proto.CauseKilled || len(v.Survivors) != 0 {
			t.Errorf("verdict = %+v; want killed and no survivor", v)
		}
	}
}

// TestALingererThatIsKilledIsASurvivor: it outlived the main process, and a request
// ended it before its time was over.
func TestALingererThatIsKilledIsASurvivor(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", "    linger: 60s"))
	c := d.agent()
	p := spawn(t, c, shell(`sleep 600 & echo up; exit 4`))
	await(t, p, "up\n")
	eventually(t, "the main process ends", func() bool { return procState(p.PID) == "" || procState(p.PID) == "Z" })
	time.Sleep(100 * time.Millisecond) // until its end is known
	if _, err := p.Kill(soon(t), proto.SigKill); err == nil || !strings.Contains(err.Error(), string(proto.CodeProcDead)) {
		t.Errorf("Kill(SIGKILL) of what lingers = %v; want that the process itself has ended", err)
	}
	if _, _, v := output(t, p); v.Cause != proto.CauseExited || v.Code != 4 || len(v.Survivors) != 1 {
		t.Errorf("verdict = %+v; want exited 4 and one survivor", v)
	}
}

// TestTimeouts of every kind.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", "    timeout: { wall: 60s, cpu: 1s, idle: off, stop: 1s }"))
	c := d.agent()
	var procs []*client.Process
	tests := []struct {
		name  string
		spawn proto.Spawn
		cause proto.Cause
		least time.Duration
	}{
		// A busy host gives a busy process little: no other limit may come before the cpu's.
		{"idle", proto.Spawn{Cmd: shell("echo prompt; sleep 600").Cmd, Limits: &proto.Limits{TimeoutIdle: 2}}, proto.CauseTimeoutIdle, 2 * time.Second},
		{"cpu", shell("while :; do :; done"), proto.CauseTimeoutCPU, 400 * time.Millisecond},
		{"wall", proto.Spawn{Cmd: shell("while :; do echo x; sleep 0.2; done").Cmd, Timeout: 4}, proto.CauseTimeoutWall, 4 * time.Second},
		{"wall, asked", proto.Spawn{Cmd: []string{"sleep", "600"}, Timeout: 1}, proto.CauseTimeoutWall, time.Second},
		{"wall, deaf", proto.Spawn{Cmd: shell(`trap "" TERM; while :; do sleep 0.1; done`).Cmd, Timeout: 1}, proto.CauseTimeoutWall, 2 * time.Second},
	}
	began := time.Now()
	for _, tt := range tests {
		procs = append(procs, spawn(t, c, tt.spawn))
	}
	for i, tt := range tests {
		out, _, v := output(t, procs[i])
		if v.Cause != tt.cause || v.By != "timer" || v.Stream() != proto.Killed || v.State() != proto.StateTimedout {
			t.Errorf("%s: verdict = %+v; want %s by a timer", tt.name, v, tt.cause)
		}
		if lasted := v.EndedAt.Time().Sub(v.StartedAt.Time()); lasted < tt.least-50*time.Millisecond {
			t.Errorf("%s: it lasted %s of %s; want at least %s", tt.name, lasted, time.Since(began), tt.least)
		}
		if tt.name == "idle" && out != "prompt\n" {
			t.Errorf("%s: output = %q; want its last words", tt.name, out)
		}
	}
}

// TestATimeoutAboveThePolicysIsClamped, as the public client sends it.
func TestATimeoutAboveThePolicysIsClamped(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", "    timeout: { wall: 2s, stop: 1s }"))
	c := d.agent()
	_, _, v := run(t, c, proto.Spawn{Cmd: []string{"sleep", "600"}, Timeout: 100000})
	if v.Cause != proto.CauseTimeoutWall {
		t.Errorf("run(timeout 100000) = %+v; want the policy's 2 s", v)
	}
}

// TestTheDaemonEndsStubbornProcesses on SIGTERM; stop checks its own time and what
// is left.
func TestTheDaemonEndsStubbornProcesses(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	stubborn := spawn(t, c, shell(`trap "" TERM INT HUP; (setsid sh -c 'trap "" TERM; while :; do sleep 1; done' &); echo ready; while :; do sleep 1; done`))
	await(t, stubborn, "ready")
	stopped := spawn(t, c, proto.Spawn{Cmd: []string{"sleep", "600"}})
	if _, err := stopped.Kill(soon(t), proto.SigStop); err != nil {
		t.Fatalf("Kill(SIGSTOP) = %v; want none", err)
	}
	d.stop()
	for _, p := range []*client.Process{stubborn, stopped} {
		if _, _, v := output(t, p); v.Cause != proto.CauseSessionEnded {
			t.Errorf("verdict = %+v; want session_ended", v)
		}
	}
}

// TestShutdownEndsTheSession with the grace that it asks for.
func TestShutdownEndsTheSession(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", "    timeout: { stop: 60s }"))
	c := d.agent()
	p := spawn(t, c, shell(`trap "" TERM; echo ready; while :; do sleep 0.1; done`))
	await(t, p, "ready")
	if err := c.Shutdown(soon(t), time.Second); err != nil {
		t.Fatalf("Shutdown(1s) = %v; want none", err)
	}
	if _, _, v := output(t, p); v.Cause != proto.CauseSessionEnded || v.Signal != "SIGKILL" {
		t.Errorf("verdict = %+v; want session_ended by SIGKILL", v)
	}
	eventually(t, "no cgroup of a caller is left", func() bool { return len(d.below()) == 0 })
}

// TestAClientThatLeavesHasItsTime: its processes end when detach_ttl is over.
func TestAClientThatLeavesHasItsTime(t *testing.T) {
	t.Parallel()
	d := start(t, basic("    detach_ttl: 2s", shortGrace))
	c := d.agent()
	p := spawn(t, c, proto.Spawn{Cmd: []string{"sleep", "600"}})
	gone := time.Now()
	if err := c.Close(); err != nil {
		t.Fatalf("Close() = %v; want none", err)
	}
	eventually(t, "the process has ended", func() bool { return procState(p.PID) == "" })
	if after := time.Since(gone); after < 2*time.Second {
		t.Errorf("the process ended %s after its client left; want it to live for detach_ttl, 2 s", after)
	}
	eventually(t, "no cgroup of a caller is left", func() bool { return len(d.below()) == 0 })
}

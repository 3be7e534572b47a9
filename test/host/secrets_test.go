package host

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pinfold/proto"
)

// secrets are values that must reach the program and nobody else.
const (
	secretEnv    = "s3cret-of-the-request"
	secretDir    = "s3cret-of-the-directory"
	secretToken  = "s3cret-of-the-handshake"
	secretWrong  = "s3cret-that-is-wrong"
	secretArg    = "s3cret-of-an-argument"
	secretMarker = "s3cret"
)

// TestSecretsStayWhereTheyBelong: variables, tokens and arguments with a password's
// name are in no log, no record and no error, whatever goes well or wrong.
func TestSecretsStayWhereTheyBelong(t *testing.T) {
	t.Parallel()
	d := prepare(t, "x")
	dir := filepath.Join(d.dir, "envdir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(d.dir, "token")
	for name, data := range map[string]string{filepath.Join(dir, "DEPLOY_KEY"): secretDir, token: secretToken + "\n"} {
		if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.writePolicy(basic("    auth_token_file: "+token, "    env: { envdir: "+dir+" }"))
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			d.stop()
		}
	})
	var told []string
	w := d.connect()
	w.send(`{"type":"handshake","id":"h","version":"1.0","ts":1,"agent_id":"a","auth_token":"` + secretWrong + `"}`)
	told = append(told, w.next().raw)
	c := d.dial(proto.Handshake{AuthToken: secretToken})
	env := map[string]string{"API_TOKEN": secretEnv}
	s := shell(`[ "$API_TOKEN" = "` + secretEnv[:3] + `"` + secretEnv[3:] + ` ] && [ "${#DEPLOY_KEY}" = ` + strconv.Itoa(len(secretDir)) + ` ] && echo well`)
	s.Env = env
	if out := runOK(t, c, s); out != "well\n" {
		t.Errorf("run = %q; want the program to have its secrets", out)
	}
	for _, bad := range []proto.Spawn{
		{Cmd: []string{"no-such-program", "--password=" + secretArg}, Env: env},
		{Cmd: []string{"ls", "--token", secretArg}, Env: env, Cwd: "/etc"},
		{Cmd: []string{"ls"}, Env: map[string]string{"API_TOKEN": secretEnv + strings.Repeat("x", 400<<10)}},
		{Cmd: []string{"ls"}, Env: env, Profile: "none"},
	} {
		_, err := c.Spawn(soon(t), bad)
		if err == nil {
			t.Errorf("Spawn(%q) = nil; want a refusal", bad.Cmd)
			continue
		}
		told = append(told, err.Error())
	}
	p := spawn(t, c, proto.Spawn{Cmd: []string{"sleep", "600"}, Env: env})
	d.lookInside(p.PID)
	stopped = true
	d.stop()
	audit, err := os.ReadFile(filepath.Join(d.state, "audit.log"))
	if err != nil || !bytes.Contains(audit, []byte("API_TOKEN")) {
		t.Fatalf("audit log = %v, names API_TOKEN: %v; want a record of it", err, bytes.Contains(audit, []byte("API_TOKEN")))
	}
	for what, text := range map[string]string{"the log": d.log.String(), "the audit log": string(audit), "an answer": strings.Join(told, "\n")} {
		for line := range strings.Lines(text) {
			if strings.Contains(line, secretMarker) {
				t.Errorf("%s has a secret: %s", what, clip(line))
			}
		}
	}
}

// lookInside tries to read the environments of PID 1 of a pen, the daemon and its
// stage, as the caller's and as the pen's uid and as another, and looks at what they
// could dump.
func (d *daemon) lookInside(target int) {
	d.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", target))
	if err != nil {
		d.t.Fatal(err)
	}
	run, err := strconv.Atoi(statusField(string(status), "Uid:"))
	if err != nil {
		d.t.Fatal(err)
	}
	pids := map[string]string{"PID 1": statusField(string(status), "PPid:"), "the daemon": strconv.Itoa(d.cmd.Process.Pid)}
	init, err := os.ReadFile("/proc/" + pids["PID 1"] + "/status")
	if err != nil {
		d.t.Fatal(err)
	}
	initUID, err := strconv.Atoi(statusField(string(init), "Uid:"))
	if err != nil {
		d.t.Fatal(err)
	}
	pids["the stage"] = statusField(string(init), "PPid:")
	for who, pid := range pids {
		for _, uid := range []int{run, initUID, 4242} {
			for _, file := range []string{"environ", "mem", "maps", "fd/0", "cwd/."} {
				cmd := exec.Command("/bin/cat", "/proc/"+pid+"/"+file)
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
				out, err := cmd.CombinedOutput()
				if err == nil || !strings.Contains(string(out), "ermission denied") && !strings.Contains(string(out), "not permitted") {
					d.t.Errorf("uid %d reads %s of %s: %q, %v; want permission denied", uid, file, who, clip(string(out)), err)
				}
			}
		}
		limits, err := os.ReadFile("/proc/" + pid + "/limits")
		if err != nil {
			d.t.Fatal(err)
		}
		for line := range strings.Lines(string(limits)) {
			if rest, ok := strings.CutPrefix(line, "Max core file size"); ok {
				if soft := strings.Fields(rest)[0]; soft != "0" && soft != "1" {
					d.t.Errorf("%s may dump %s bytes of core; want 1, which is none", who, soft)
				}
			}
		}
	}
}

func statusField(status, name string) string {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.Fields(rest)[0]
		}
	}
	return ""
}

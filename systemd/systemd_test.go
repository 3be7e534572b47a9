package systemd

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	for _, addr := range []string{path, "@pinfold-test-notify-" + strconv.Itoa(os.Getpid())} {
		conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: addr, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		m, err := Dial([]string{"NOTIFY_SOCKET=" + addr})
		if err != nil {
			t.Fatalf("Dial(%s) = %v; want nil", addr, err)
		}
		for _, want := range []string{Ready + "\n" + Alive, Stopping} {
			if err := m.Notify(want); err != nil {
				t.Fatalf("Notify(%q) at %s = %v; want nil", want, addr, err)
			}
			buf := make([]byte, 256)
			if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			n, err := conn.Read(buf)
			if got := string(buf[:n]); err != nil || got != want {
				t.Errorf("Notify at %s sent %q, %v; want %q", addr, got, err, want)
			}
		}
	}
}

func TestNotifyErrors(t *testing.T) {
	for _, env := range [][]string{nil, {"NOTIFY_SOCKET="}} {
		m, err := Dial(env)
		if err != nil || m.Notify(Ready) != nil {
			t.Errorf("Dial(%q) = %v, %v; want one that does nothing", env, m, err)
		}
	}
	for _, addr := range []string{"relative/path", filepath.Join(t.TempDir(), "absent")} {
		m, err := Dial([]string{"NOTIFY_SOCKET=" + addr})
		if err == nil || !strings.Contains(err.Error(), "cannot notify") || m.Notify(Ready) != nil {
			t.Errorf("Dial(NOTIFY_SOCKET=%s) = %v, %v; want an error, and one that does nothing", addr, m, err)
		}
	}
}

func TestWatchdog(t *testing.T) {
	own := "WATCHDOG_PID=" + strconv.Itoa(os.Getpid())
	tests := []struct {
		env  []string
		want time.Duration
		ok   bool
	}{
		{nil, 0, true},
		{[]string{"WATCHDOG_USEC=30000000"}, 30 * time.Second, true},
		{[]string{"WATCHDOG_USEC=1", "WATCHDOG_USEC=2000", own}, 2 * time.Millisecond, true},
		{[]string{"WATCHDOG_USEC=1000", "WATCHDOG_PID=1"}, 0, true},
		{[]string{"WATCHDOG_USEC=0"}, 0, false},
		{[]string{"WATCHDOG_USEC=-5"}, 0, false},
		{[]string{"WATCHDOG_USEC=soon"}, 0, false},
		{[]string{"WATCHDOG_USEC=9223372036854775807"}, 0, false},
	}
	for _, tt := range tests {
		got, err := Watchdog(tt.env)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("Watchdog(%q) = %v, %v; want %v, ok %v", tt.env, got, err, tt.want, tt.ok)
		}
	}
}

func TestListenersNotForUs(t *testing.T) {
	own := "LISTEN_PID=" + strconv.Itoa(os.Getpid())
	tests := []struct {
		env []string
		ok  bool
	}{
		{nil, true},
		{[]string{"LISTEN_PID=1", "LISTEN_FDS=1"}, true},
		{[]string{own, "LISTEN_FDS=0"}, true},
		{[]string{own}, false},
		{[]string{own, "LISTEN_FDS=-1"}, false},
		{[]string{own, "LISTEN_FDS=65"}, false},
		{[]string{own, "LISTEN_FDS=two"}, false},
	}
	for _, tt := range tests {
		files, err := Listeners(tt.env)
		if len(files) != 0 || (err == nil) != tt.ok {
			t.Errorf("Listeners(%q) = %v, %v; want none, ok %v", tt.env, files, err, tt.ok)
		}
	}
}

// TestListeners passes real sockets to a process of its own, at descriptor 3 as
// the service manager does.
func TestListeners(t *testing.T) {
	if os.Getenv("PINFOLD_TEST_LISTEN") != "" {
		listenChild(t)
		return
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	socket, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	plain, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	for _, tt := range []struct {
		files []*os.File
		want  string
	}{
		{[]*os.File{socket}, "names: pinfold"},
		{[]*os.File{socket, socket}, "names: pinfold listener-1"},
		{[]*os.File{socket, plain}, "cannot take descriptor 4"},
	} {
		// sh gives LISTEN_PID the pid that exec keeps.
		cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0], "-test.run=^TestListeners$", "-test.v")
		cmd.Env = append(os.Environ(), "PINFOLD_TEST_LISTEN=1", "LISTEN_FDNAMES=pinfold", "LISTEN_FDS="+strconv.Itoa(len(tt.files)))
		cmd.ExtraFiles = tt.files
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("Listeners with %d files: %v\n%s\nwant %q", len(tt.files), err, out, tt.want)
		}
	}
}

func listenChild(t *testing.T) {
	t.Helper()
	files, err := Listeners(os.Environ())
	if err != nil {
		t.Log(err)
		return
	}
	names := make([]string, 0, len(files))
	for _, f := range files {
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor of %s: flags %#x, %v; want FD_CLOEXEC", f.Name(), flags, err)
		}
		names = append(names, f.Name())
	}
	t.Logf("names: %s", strings.Join(names, " "))
}

package attack

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// wire: a pen is no caller, and nothing that governs Pinfold is within its reach.
func wire() []Attack {
	shut := []string{"ENOENT", "EROFS", "EACCES"}
	all := []Attack{
		{ID: "ask-daemon", Layer: View, Tries: "shake hands with the daemon", Want: []string{"ENOENT", "EACCES", "refused"}, Control: user(), try: func(s *Scene) error { return asks(s.Socket) }},
		{ID: "connect-daemon", Layer: View, Tries: "connect to the daemon's socket", Want: []string{"ENOENT", "EACCES"}, Control: user(), try: func(s *Scene) error { return connects(unix.SOCK_STREAM, s.Socket) }},
		{ID: "stat-daemon", Layer: View, Tries: "find the daemon's socket", Want: []string{"ENOENT", "EACCES"}, Control: user(), try: func(s *Scene) error { return stats(s.Socket)(s) }},
		{ID: "replace-socket", Layer: View, Tries: "listen where the daemon does", Want: shut, Control: past(AsRoot), try: func(s *Scene) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Bind(fd, &unix.SockaddrUnix{Name: s.Socket})
		}},
		{ID: "audit-file", Layer: View, Tries: "open the audit record", Want: shut, Control: root(), try: func(s *Scene) error { return open(s.State+"/audit.log", unix.O_WRONLY) }},
		{ID: "spools", Layer: View, Tries: "list the spools", Want: shut, Control: root(), try: func(s *Scene) error { return open(s.State+"/run/spool", unix.O_RDONLY) }},
		{ID: "write-daemon", Layer: Mounts, Tries: "open pinfoldd for writing", Want: shut, Control: past(AsRoot), try: func(s *Scene) error { return open(s.Daemon, unix.O_WRONLY) }},
	}
	for _, d := range []string{"/etc/pinfold", "/etc/systemd/system", "/usr/lib/systemd/system", "/etc/cron.d", "/etc/profile.d", "/etc/ld.so.conf.d", "/etc/sudoers.d", "/usr/local/bin", "/etc/pam.d", "/var/lib/pinfold", "/run/systemd/system", "/var/spool/cron"} {
		all = append(all, Attack{ID: "plant-" + slug(d), Layer: Mounts, Tries: "make a file in " + d, Want: shut, Writes: d, Control: root(), try: plants(d)})
	}
	for _, f := range []string{"/etc/passwd", "/etc/group", "/etc/profile", "/etc/ld.so.conf", "/etc/ld.so.preload", "/etc/hosts", "/etc/resolv.conf", "/etc/environment"} {
		all = append(all, Attack{ID: "write-" + slug(f), Layer: Mounts, Tries: "open " + f + " for writing", Want: shut, Writes: f, Control: root(), try: opens(f, unix.O_WRONLY|unix.O_APPEND)})
	}
	return class(Interface, all...)
}

// asks shakes hands with the daemon.
func asks(socket string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: quick}); err != nil {
		return err
	}
	if err := uninterrupted(func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: socket}) }); err != nil {
		return err
	}
	const hello = `{"type":"handshake/req","id":"a","version":"1.0","ts":1,"agent_id":"a","agent_caps":["proc"],"auth_token":""}` + "\n"
	if _, err := unix.SendmsgN(fd, []byte(hello), nil, nil, unix.MSG_NOSIGNAL); err != nil {
		return errors.New("refused")
	}
	answer := make([]byte, 4096)
	var n int
	err = uninterrupted(func() (err error) { n, err = unix.Read(fd, answer); return err })
	if err == nil && (strings.Contains(string(answer[:n]), `"ok":true`) || strings.Contains(string(answer[:n]), `"session_id"`)) {
		return nil
	}
	return errors.New("refused")
}

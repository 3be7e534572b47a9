package attack

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// connects tries to connect to a path or, after an @, to an abstract name.
func connects(kind int, name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Connect(fd, &unix.SockaddrUnix{Name: name})
}

// kind is a type of socket with a name.
type kind struct {
	name string
	kind int
}

func kinds() []kind {
	return []kind{{"stream", unix.SOCK_STREAM}, {"datagram", unix.SOCK_DGRAM}, {"packet", unix.SOCK_SEQPACKET}}
}

// daemons: sockets of powerful daemons, by path and by abstract name. Beside those
// that a host may have there are some that are made for the attack.
func daemons() []Attack {
	var all []Attack
	for _, p := range []string{
		"/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock", "/run/systemd/private",
		"/run/systemd/journal/stdout", "/run/systemd/notify", "/run/dbus/system_bus_socket", "/run/nscd/socket", "/run/udev/control", "/tmp/.X11-unix/X0", "/run/user/0/bus",
	} {
		all = append(all, Attack{ID: slug(p), Layer: View, Tries: "connect to " + p, Want: []string{"ENOENT", "EACCES"}, Reads: p, Control: past(AsRoot), try: func(*Scene) error { return connects(unix.SOCK_STREAM, p) }})
	}
	for _, k := range kinds() {
		all = append(all, Attack{ID: "path-" + k.name, Layer: View, Tries: "connect to a socket of the host by its path", Want: []string{"ENOENT", "EACCES"}, Control: user(), try: func(s *Scene) error {
			return connects(k.kind, s.Sock+"-"+k.name)
		}}, Attack{ID: "abstract-" + k.name, Layer: NetNS, Tries: "connect to an abstract socket of the host", Want: []string{"ECONNREFUSED", "EPERM"}, Needs: []Need{NetNone}, Control: user(), try: func(s *Scene) error {
			return connects(k.kind, "@"+s.Word+"-"+k.name)
		}})
	}
	return class(Daemons, all...)
}

// network: with net: none there is none but the pen's own loopback.
func network() []Attack {
	var all []Attack
	add := func(id string, layer Layer, tries string, want []string, c Control, t try) {
		all = append(all, only(NetNone, Attack{ID: id, Layer: layer, Tries: tries, Want: want, Control: c, try: t}))
	}
	silent := "a control run would send to the world"
	refusing, unreachable := []string{"ECONNREFUSED"}, []string{"ENETUNREACH", "EADDRNOTAVAIL"}
	for _, l := range []struct{ name, ip string }{{"loopback", "127.0.0.1"}, {"loopback-any", "0.0.0.0"}, {"loopback-mapped", "::ffff:127.0.0.1"}} {
		add(l.name, NetNS, "connect to the host's loopback by "+l.ip, refusing, user(), func(s *Scene) error { return dials(unix.SOCK_STREAM, l.ip, s.Port) })
	}
	add("loopback6", NetNS, "connect to the host's ::1", append([]string{"EADDRNOTAVAIL"}, refusing...), user(), func(s *Scene) error {
		if s.Port6 == 0 {
			return lacking("IPv6 on the host's loopback")
		}
		return dials(unix.SOCK_STREAM, "::1", s.Port6)
	})
	add("metadata", NetNS, "connect to 169.254.169.254", unreachable, no(silent), func(*Scene) error { return dials(unix.SOCK_STREAM, "169.254.169.254", 80) })
	add("metadata6", NetNS, "connect to fd00:ec2::254", unreachable, no(silent), func(*Scene) error { return dials(unix.SOCK_STREAM, "fd00:ec2::254", 80) })
	add("world", NetNS, "connect to 192.0.2.1", unreachable, no(silent), func(*Scene) error { return dials(unix.SOCK_STREAM, "192.0.2.1", 443) })
	add("world6", NetNS, "connect to 2001:db8::1", unreachable, no(silent), func(*Scene) error { return dials(unix.SOCK_STREAM, "2001:db8::1", 443) })
	add("private", NetNS, "connect to 10.0.0.1", unreachable, no(silent), func(*Scene) error { return dials(unix.SOCK_STREAM, "10.0.0.1", 22) })
	add("dns", NetNS, "send to port 53", unreachable, no(silent), func(*Scene) error { return dials(unix.SOCK_DGRAM, "192.0.2.1", 53) })
	add("multicast", NetNS, "send to 224.0.0.251", unreachable, no(silent), func(*Scene) error { return dials(unix.SOCK_DGRAM, "224.0.0.251", 5353) })
	add("add-address", IDs, "give the loopback device an address", []string{"EPERM"}, box(), setsAddress)
	add("rename-device", IDs, "rename the loopback device", []string{"EPERM"}, past(InBox), func(*Scene) error { return ioctlNet(unix.SIOCSIFNAME) })
	add("device-up", IDs, "change the flags of the loopback device", []string{"EPERM"}, box(), func(*Scene) error { return ioctlNet(unix.SIOCSIFFLAGS) })
	add("route", IDs, "add a route by netlink", []string{"EPERM"}, past(InBox), netlinkRoute)
	add("transparent", IDs, "IP_TRANSPARENT", []string{"EPERM"}, root(), func(*Scene) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	})
	add("privileged-port", IDs, "bind to port 1", []string{"EACCES"}, root(), func(*Scene) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Bind(fd, &unix.SockaddrInet4{Port: 1, Addr: [4]byte{127, 0, 0, 1}})
	})
	return class(Network, append(all, refused("tun", "make a tunnel device", no("it would need a tunnel on the host"), opens("/dev/net/tun", unix.O_RDWR)).answers(View, "ENOENT"))...)
}

// answers changes who refuses an attack and how.
func (a Attack) answers(l Layer, want ...string) Attack {
	a.Layer, a.Want = l, want
	return a
}

// quick is how long a connection may take: one that the kernel refuses is refused at once.
const quick = 2

// dials connects a socket of a kind (SOCK_STREAM, SOCK_DGRAM) to an address as it is
// written, and sends a byte where connecting sends nothing.
func dials(kind int, host string, port int) error {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return err
	}
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: port, Addr: ip.As16()})
	if ip.Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: ip.As4()}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: quick}); err != nil {
		return err
	}
	if err := uninterrupted(func() error { return unix.Connect(fd, to) }); err != nil {
		return err
	}
	if kind == unix.SOCK_DGRAM {
		_, err = unix.Write(fd, []byte("x"))
	}
	return err
}

// ifreq is struct ifreq with the name lo; netdevice(7).
type ifreq struct {
	name [16]byte
	data [24]byte
}

func ioctlNet(request uintptr, data ...byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	r := &ifreq{name: [16]byte{'l', 'o'}}
	copy(r.data[:], data)
	return call(unix.SYS_IOCTL, uintptr(fd), request, pointer(r))
}

func setsAddress(*Scene) error { return ioctlNet(unix.SIOCSIFADDR, unix.AF_INET, 0, 0, 0, 10, 9, 8, 7) }

// netlinkRoute sends RTM_NEWROUTE and reads the kernel's error.
func netlinkRoute(*Scene) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	m := make([]byte, 28)
	m[0], m[4], m[6], m[7] = 28, unix.RTM_NEWROUTE, unix.NLM_F_REQUEST|unix.NLM_F_ACK, 4 // NLM_F_CREATE
	m[16] = unix.AF_INET
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	got := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, got, 0)
	if err != nil || n < 20 {
		return err
	}
	if code := int32(got[16]) | int32(got[17])<<8 | int32(got[18])<<16 | int32(got[19])<<24; code < 0 {
		return unix.Errno(-code)
	}
	return nil
}

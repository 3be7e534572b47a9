package attack

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const quick = 2 * time.Second

// network: with net: none there is no network, and no pen is ever a caller.
func network(o order) []attack {
	var families []func() error
	for _, s := range [][3]uintptr{
		{unix.AF_PACKET, unix.SOCK_RAW, 0},
		{unix.AF_INET, unix.SOCK_RAW, 1},
		{unix.AF_INET6, unix.SOCK_RAW, 58},
		{unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		{unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT},
		{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER},
		{unix.AF_INET, unix.SOCK_STREAM, 262},
		{unix.AF_INET, unix.SOCK_STREAM, 132},
		{unix.AF_BLUETOOTH, unix.SOCK_RAW, 1},
		{unix.AF_XDP, unix.SOCK_RAW, 0},
		{unix.AF_TIPC, unix.SOCK_STREAM, 0},
		{unix.AF_KEY, unix.SOCK_RAW, 2},
		{high | unix.AF_PACKET, unix.SOCK_RAW, 0},
	} {
		families = append(families, calling(unix.SYS_SOCKET, s[0], s[1], s[2]))
	}
	return []attack{
		{name: "sockets of other families and protocols", layer: bySeccomp, want: []string{"EPERM"}, try: each(families...)},
		{
			name: "connect to the host's loopback", layer: byNetNS, want: []string{"ECONNREFUSED"}, control: true,
			try: func() error { return dials("tcp", "127.0.0.1:"+strconv.Itoa(o.Port)) },
		},
		{
			name: "connect to an abstract socket of the host", layer: byNetNS, want: []string{"ECONNREFUSED", "EPERM"}, control: true,
			try: func() error { return dials("unix", "@"+o.Name) },
		},
		{
			name: "reach the world", layer: byNetNS, want: []string{"ENETUNREACH"},
			try: each(func() error { return dials("tcp", "169.254.169.254:80") }, func() error { return dials("udp", "192.0.2.1:53") }, func() error { return dials("tcp", "[2001:db8::1]:80") }),
		},
		{name: "keep more than one's memory in sockets", layer: byCgroup, where: littleMemory, want: []string{"dropped"}, control: true, try: hoards},
		{name: askDaemon, layer: byDaemon, want: []string{"ENOENT", "EACCES", "refused"}, try: func() error { return asks(o.Socket) }},
	}
}

const (
	sockets   = 300
	datagram  = 60000
	perSocket = 8 // datagrams for each socket: 144 MB in all
	tooMuch   = 64 << 20
)

// hoards fills the buffers of many sockets on the loopback device, and succeeds when
// they keep more than the pen's memory.
func hoards() error {
	sender, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	var all []int
	for range sockets {
		n, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		all = append(all, n)
		if err := errors.Join(unix.SetsockoptInt(n, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20), unix.Bind(n, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})); err != nil {
			return err
		}
		to, err := unix.Getsockname(n)
		if err != nil {
			return err
		}
		for range perSocket {
			_ = unix.Sendto(sender, make([]byte, datagram), unix.MSG_DONTWAIT, to)
		}
	}
	kept := 0
	for _, n := range all {
		for {
			got, _, err := unix.Recvfrom(n, make([]byte, datagram), 0)
			if err != nil {
				break
			}
			kept += got
		}
		_ = unix.Close(n)
	}
	if kept > tooMuch {
		return nil
	}
	return errors.New("dropped")
}

func dials(network, address string) error {
	c, err := net.DialTimeout(network, address, quick)
	if err != nil {
		return err
	}
	return c.Close()
}

// asks shakes hands with the daemon.
func asks(socket string) error {
	c, err := net.DialTimeout("unix", socket, quick)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(quick)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, `{"type":"handshake/req","id":"a","version":"1.0","ts":1,"agent_id":"a","agent_caps":["proc"],"auth_token":""}`+"\n"); err != nil {
		return errors.New("refused")
	}
	line, _ := bufio.NewReader(c).ReadString('\n')
	if strings.Contains(line, `"ok":true`) || strings.Contains(line, `"session_id"`) {
		return nil
	}
	return errors.New("refused")
}

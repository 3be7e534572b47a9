package stage

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
)

// fitLimits holds the limits of a profile against what this process may give: its
// own hard limits, unless it has CAP_SYS_RESOURCE in the host's user namespace
// (setrlimit(2)) and the pen has none of its own. A higher one is refused where
// rlimits are required; else the host's, which is stricter, takes its place, and
// the result says so.
func fitLimits(f *sandbox.Profile, privileged bool) ([]string, error) {
	var lower []string
	for i, l := range f.Rlimits {
		n, ok := sandbox.RlimitNumber(l.Name)
		if !ok {
			continue // Validate says so
		}
		most, cure, err := ceiling(n, l, privileged && !f.UserNS)
		if err != nil {
			return nil, failed("read the hard limit of "+l.Name, err)
		}
		if l.Value <= most {
			continue
		}
		if l == sandbox.NoCore() { // the host's 0 keeps from files, not from a program that takes dumps
			lower = append(lower, "core is 0, which the host allows, not 1: a program of the host's that takes core dumps still gets them")
			f.Rlimits[i].Value = most
			continue
		}
		if levelOf(f, sandbox.ControlRlimits) == sandbox.LevelRequired {
			return nil, &sandbox.StepError{
				Step: -1, Where: sandbox.WhereStage, Errno: unix.EPERM,
				Text: fmt.Sprintf("set rlimit %s to %s: the host allows %s", l.Name, limitText(l.Value), limitText(most)),
				Hint: fmt.Sprintf("ask for %s at most under rlimits in the profile, or %s", limitText(most), cure),
			}
		}
		lower = append(lower, fmt.Sprintf("%s is %s, which the host allows, not %s", l.Name, limitText(most), limitText(l.Value)))
		f.Rlimits[i].Value = most
	}
	return lower, nil
}

// ceiling is the highest value of a limit that can be set, and how it gets higher.
func ceiling(n int, l sandbox.Rlimit, raise bool) (uint64, string, error) {
	var own unix.Rlimit
	if err := unix.Prlimit(0, n, nil, &own); err != nil {
		return 0, "", os.NewSyscallError("prlimit64", err)
	}
	if !raise {
		return own.Max, fmt.Sprintf("raise the daemon's: Limit%s=%s in its unit", strings.ToUpper(l.Name), limitUnit(l.Value)), nil
	}
	if n != unix.RLIMIT_NOFILE {
		return unix.RLIM_INFINITY, "", nil
	}
	b, err := os.ReadFile("/proc/sys/fs/nr_open") // above it even root gets EPERM: proc_sys_fs(5)
	if err != nil {
		return 0, "", err
	}
	most, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return most, fmt.Sprintf("sysctl fs.nr_open=%d", l.Value), err
}

// mayRaise reports whether this process may raise hard limits: CAP_SYS_RESOURCE
// counts in the first user namespace alone.
func mayRaise() bool {
	st, err := readStatus(os.Getpid())
	if err != nil || st.caps.Effective&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		return false
	}
	ns, err := os.Readlink("/proc/self/ns/user")
	return err == nil && ns == firstUserNS
}

// firstUserNS is the first user namespace, whose inode number the kernel fixes:
// PROC_USER_INIT_INO of include/linux/proc_ns.h.
const firstUserNS = "user:[4026531837]"

func limitText(v uint64) string {
	if v == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return strconv.FormatUint(v, 10)
}

// limitUnit is a value as systemd.exec(5) writes it.
func limitUnit(v uint64) string {
	if v == unix.RLIM_INFINITY {
		return "infinity"
	}
	return limitText(v)
}

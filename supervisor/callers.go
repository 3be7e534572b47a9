package supervisor

import (
	"errors"
	"os/user"
	"strconv"

	"pinfold/policy"
	"pinfold/supervisor/socket"
)

// callerOf is a peer as the policy sees it: ids from the kernel, names from the
// host's user database.
func callerOf(p socket.Peer) policy.Caller {
	c := policy.Caller{UID: p.UID, GID: p.GID, GIDs: p.GIDs, Unit: p.Unit, UnitKnown: p.UnitErr == nil}
	if u, err := user.LookupId(strconv.Itoa(int(p.UID))); err == nil {
		c.Name, c.Home = u.Username, u.HomeDir
	}
	return c
}

// resolve gives names their ids. A name that the host does not know is left out;
// Bind warns of it.
func resolve(n policy.Names) (policy.IDs, error) {
	ids := policy.IDs{Users: map[string]policy.User{}, Groups: map[string]uint32{}}
	var errs []error
	for _, name := range n.Users {
		u, err := user.Lookup(name)
		if errors.As(err, new(user.UnknownUserError)) {
			continue
		}
		uid, gid, nerr := numbers(u, err)
		if nerr != nil {
			errs = append(errs, nerr)
			continue
		}
		ids.Users[name] = policy.User{UID: uid, GID: gid, Home: u.HomeDir}
	}
	for _, name := range n.Groups {
		g, err := user.LookupGroup(name)
		if errors.As(err, new(user.UnknownGroupError)) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		gid, err := strconv.ParseUint(g.Gid, 10, 32)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ids.Groups[name] = uint32(gid)
	}
	return ids, errors.Join(errs...)
}

func numbers(u *user.User, err error) (uid, gid uint32, _ error) {
	if err != nil {
		return 0, 0, err
	}
	n, uerr := strconv.ParseUint(u.Uid, 10, 32)
	m, gerr := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(n), uint32(m), errors.Join(uerr, gerr)
}

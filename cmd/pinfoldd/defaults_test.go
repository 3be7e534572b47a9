package main

import "testing"

func TestDefaults(t *testing.T) {
	for _, row := range []struct {
		name          string
		uid           int
		env           []string
		socket, state string
	}{
		{"root", 0, []string{"XDG_RUNTIME_DIR=/run/user/0", "HOME=/root"}, defaultSocket, defaultState},
		{"user", 1000, []string{"XDG_RUNTIME_DIR=/run/user/1000", "HOME=/home/u"}, "/run/user/1000/pinfold/pinfold.sock", "/home/u/.local/state/pinfold"},
		{"user with a state home", 1000, []string{"XDG_STATE_HOME=/s", "HOME=/home/u"}, defaultSocket, "/s/pinfold"},
		{"relative paths count for nothing", 1000, []string{"XDG_RUNTIME_DIR=run", "XDG_STATE_HOME=s", "HOME="}, defaultSocket, defaultState},
	} {
		socket, state := defaults(row.env, row.uid)
		if socket != row.socket || state != row.state {
			t.Errorf("%s: defaults(%q, %d) = %s, %s; want %s, %s", row.name, row.env, row.uid, socket, state, row.socket, row.state)
		}
	}
}

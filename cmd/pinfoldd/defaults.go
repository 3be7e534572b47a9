package main

import (
	"os"
	"path/filepath"
	"strings"
)

// defaults are the paths of the socket and the state directory where no flag names
// them: root's are the service's, an ordinary user's lie below XDG_RUNTIME_DIR and
// XDG_STATE_HOME (basedir-spec), which the user can write to.
func defaults(env []string, uid int) (socket, state string) {
	socket, state = defaultSocket, defaultState
	if uid == 0 {
		return socket, state
	}
	vars := map[string]string{}
	for _, e := range env {
		if name, value, ok := strings.Cut(e, "="); ok && filepath.IsAbs(value) {
			vars[name] = value
		}
	}
	if dir := vars["XDG_RUNTIME_DIR"]; dir != "" {
		socket = filepath.Join(dir, "pinfold", "pinfold.sock")
	}
	switch {
	case vars["XDG_STATE_HOME"] != "":
		state = filepath.Join(vars["XDG_STATE_HOME"], "pinfold")
	case vars["HOME"] != "":
		state = filepath.Join(vars["HOME"], ".local", "state", "pinfold")
	}
	return socket, state
}

// makeSocketDir makes the directory of an ordinary user's default socket; that of
// the service is systemd's to make.
func makeSocketDir(socket string, env []string) error {
	if own, _ := defaults(env, os.Geteuid()); socket != own || own == defaultSocket {
		return nil
	}
	return os.MkdirAll(filepath.Dir(socket), 0o700)
}

package attack

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strconv"
)

// Scene is what the attacker is told about the host.
type Scene struct {
	IDs       []string `json:"ids"`       // attacks to make, in this order
	Self      string   `json:"self"`      // path of this program
	Word      string   `json:"word"`      // unique; names of targets and arguments of children hold it
	View      string   `json:"view"`      // a directory that is for reading only, with bin in it
	File      string   `json:"file"`      // a file that is for reading only
	One       int      `json:"one"`       // the process that is PID 1 of a pen; outside a process that may be killed
	Port      int      `json:"port"`      // TCP on the host's loopback
	Port6     int      `json:"port6"`     // the same on ::1; 0: the host has none
	Victim    int      `json:"victim"`    // a process of the same user on the host
	Pts       string   `json:"pts"`       // a terminal of the host's
	Sock      string   `json:"sock"`      // a listening path socket of the host
	Socket    string   `json:"socket"`    // path of the daemon's socket
	State     string   `json:"state"`     // the daemon's directory
	Stage     string   `json:"stage"`     // path of pinfold-stage
	Daemon    string   `json:"daemon"`    // path of pinfoldd
	Tmp       string   `json:"tmp"`       // a file in the host's /tmp
	Key       int      `json:"key"`       // of a SysV segment, semaphore and queue
	Neighbour int      `json:"neighbour"` // pid on the host of a process in another pen; 0: none
}

// ofOne is a path below the directory in /proc of the process that is PID 1 of a pen.
func (s *Scene) ofOne(name string) string { return "/proc/" + strconv.Itoa(s.One) + "/" + name }

// Result is one line of what the attacker says. An empty Told is a success.
type Result struct {
	ID   string `json:"id"`
	Told string `json:"told"`
}

// Inside makes the attacks that a scene, written as JSON, lists, and writes a Result
// for each.
func Inside(order string, out io.Writer) error {
	var s Scene
	if err := json.Unmarshal([]byte(order), &s); err != nil {
		return fmt.Errorf("cannot read the scene: %w", err)
	}
	debug.SetGCPercent(-1) // system calls get addresses that nobody else keeps
	table := Table()
	enc := json.NewEncoder(out)
	for _, id := range s.IDs {
		i := slices.IndexFunc(table, func(a Attack) bool { return a.ID == id })
		if i < 0 {
			return fmt.Errorf("cannot make attack %q: there is none of that name", id)
		}
		if err := enc.Encode(Result{ID: id, Told: told(table[i].try(&s))}); err != nil {
			return err
		}
	}
	return nil
}

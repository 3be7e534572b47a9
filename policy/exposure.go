package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Exposures scores every profile, in the order of the sources: how much of the
// host it opens, from 0 to 10, and by what. As with systemd-analyze(1) security
// the figure compares profiles; it proves nothing.
func (p *Policy) Exposures() []Exposure {
	out := make([]Exposure, 0, len(p.profiles))
	for _, f := range p.profiles {
		s := &score{}
		s.files(f)
		s.rest(f)
		slices.SortStableFunc(s.points, func(a, b point) int { return b.tenths - a.tenths })
		e := Exposure{Profile: f.name}
		total := 0
		for _, one := range s.points {
			total += one.tenths
			e.Reasons = append(e.Reasons, fmt.Sprintf("%d.%d %s", one.tenths/10, one.tenths%10, one.why))
		}
		e.Score = float64(min(total, 100)) / 10
		out = append(out, e)
	}
	return out
}

type point struct {
	tenths int
	why    string
}

type score struct{ points []point }

func (s *score) add(tenths int, why string) { s.points = append(s.points, point{tenths, why}) }

func (s *score) files(f *profile) {
	for _, w := range f.resolvedWrite() {
		switch {
		case w.text == "/":
			s.add(50, "write /")
		case w.text == "${home}":
			s.add(20, "write ${home}")
		case strings.HasPrefix(w.text, "${"):
			s.add(2, "write "+w.text)
		default:
			s.add(8, "write "+w.text)
		}
	}
	for _, w := range f.resolvedRead() {
		switch {
		case slices.Contains(defaultRead(), w.text), w.text == "${workspace}":
		case w.text == "/":
			s.add(25, "read /")
		case w.text == "/etc", w.text == "${home}":
			s.add(10, "read "+w.text)
		default:
			s.add(3, "read "+w.text)
		}
	}
	if f.fs.tmpExec.or(false) {
		s.add(2, "tmp: exec")
	}
	if f.fs.home.or(Home{Kind: HomePrivate}).Kind == HomeCache {
		s.add(3, "home: kept from one command to the next")
	}
}

func (s *score) rest(f *profile) {
	if f.net.or(NetNone) == NetHost {
		s.add(30, "net: host")
	}
	if f.exec.or(ExecAnything) == ExecAnything {
		s.add(5, "exec: anything")
	}
	if f.userns.or(false) {
		s.add(4, "userns: on: more of the kernel can be reached")
	}
	sec := f.seccomp.or(Seccomp{Base: "default"})
	if sec.Base == "default" {
		s.add(3, "seccomp: default")
	}
	if len(sec.Allow) > 0 {
		s.add(3*len(sec.Allow), "seccomp: "+strings.Join(sec.Allow, ", ")+" allowed besides")
	}
	if f.cgroup.memory.or(defaultMemory) == Unset {
		s.add(8, "cgroup.memory: off")
	}
	if f.cgroup.pids.or(defaultPids) == Unset {
		s.add(8, "cgroup.pids: off")
	}
	if f.resolvedTimeout().Wall == 0 {
		s.add(2, "timeout.wall: off")
	}
	if f.linger.or(0) > 0 {
		s.add(3, "linger: children outlive their command")
	}
	for _, c := range f.controls {
		if c.control == ControlIO || c.control == ControlUserNS || c.control == ControlNetNS {
			continue
		}
		switch c.level {
		case LevelOff:
			s.add(15, string(c.control)+" is off")
		case LevelBestEffort:
			s.add(5, string(c.control)+" is best effort")
		case LevelRequired:
		}
	}
}

package main

import (
	"strconv"
	"strings"
	"time"

	"pinfold/audit"
)

// recordText is a record as one line for people.
func recordText(r audit.Record, s style) string {
	words := []string{s.dim(r.Time.Local().Format("2006-01-02 15:04:05.000")), plain(string(r.Kind))}
	if r.Subject.Session != "" || r.Subject.Caller != "" || r.Subject.UID != 0 {
		words = append(words, "uid "+uidText(r.Subject.UID))
	}
	event, err := r.Event()
	if err != nil {
		return strings.Join(append(words, s.red(legible(err.Error()))), "  ")
	}
	for _, w := range eventWords(event) {
		if w != "" {
			words = append(words, w)
		}
	}
	if r.Subject.Session != "" {
		words = append(words, s.dim("session "+plain(r.Subject.Session)))
	}
	return strings.Join(words, "  ")
}

func uidText(uid uint32) string {
	if uid == audit.ManyUIDs {
		return "of many"
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// named is a value with its name; nothing where it is empty.
func named(name, value string) string {
	if value == "" {
		return ""
	}
	return name + " " + plain(value)
}

// eventWords is what people look for in an event first. The whole is in the line itself.
func eventWords(event audit.Event) []string {
	switch e := event.(type) {
	case *audit.Decision:
		return decisionWords(e)
	case *audit.Started:
		return []string{plain(e.Process), named("pid", strconv.Itoa(e.PID)), named("profile", e.Profile), named("as", strconv.FormatUint(uint64(e.RunUID), 10)), plain(e.Program.Path)}
	case *audit.StartFailed:
		return []string{plain(e.Process), plain(e.Code), named("step", e.Step), plain(e.Reason)}
	case *audit.Ended:
		return endWords(e)
	case *audit.SessionOpened:
		return []string{plain(e.Role), named("pid", strconv.Itoa(e.PID)), plain(e.Unit), named("rule", e.Rule)}
	case *audit.SessionResumed:
		return []string{named("pid", strconv.Itoa(e.PID)), plain(e.Unit)}
	case *audit.SessionClosed:
		return []string{plain(e.Reason)}
	case *audit.SessionAdopted:
		return []string{named("opened", e.OpenedAt.Local().Format("2006-01-02 15:04:05.000")), named("processes", strconv.Itoa(e.Processes))}
	case *audit.Adopted:
		return []string{plain(e.Process), named("pid", strconv.Itoa(e.PID)), plain(e.State), plain(e.Reason)}
	case *audit.OperatorUse:
		return []string{plain(e.Action), named("on", e.Target), plain(e.Process), plain(e.Signal)}
	}
	return daemonWords(event)
}

// daemonWords is eventWords of what is of the daemon itself.
func daemonWords(event audit.Event) []string {
	switch e := event.(type) {
	case *audit.DaemonStarted:
		return []string{plain(e.Version), named("pid", strconv.Itoa(e.PID)), named("cgroups", e.Backend)}
	case *audit.DaemonStopped:
		return []string{plain(e.Reason)}
	case *audit.PolicyLoaded:
		return []string{plain(strings.Join(e.Files, " ")), named("sha256", e.SHA256)}
	case *audit.Refused:
		return []string{plain(e.Code), named("pid", strconv.Itoa(e.PID)), plain(e.Unit), plain(e.Reason)}
	case *audit.Program:
		return []string{plain(e.Path), named("sha256", e.SHA256), plain(e.Err)}
	case *audit.Flood:
		return []string{plain(string(e.Of)), strconv.FormatInt(e.Count, 10) + " since " + clock(e.Since)}
	case *audit.SetAside:
		return []string{plain(e.File), named("now", e.Now), plain(e.Reason)}
	case *audit.NotUpgraded:
		return []string{plain(e.Reason)}
	case *audit.Gap:
		return gapWords(e)
	case *audit.Sealed:
		return []string{strconv.FormatUint(e.Records, 10) + " records, " + strconv.FormatUint(e.First, 10) + " to " + strconv.FormatUint(e.Last, 10)}
	case *audit.Continued:
		return []string{named("after", e.File)}
	}
	return nil
}

func clock(t time.Time) string { return t.Local().Format("15:04:05.000") }

func decisionWords(e *audit.Decision) []string {
	verdict := "allowed"
	if !e.Allowed {
		verdict = "refused " + plain(e.Code)
	}
	argv := make([]string, 0, len(e.Argv))
	for _, a := range e.Argv {
		if a == "" || strings.ContainsAny(a, " \"'") {
			a = strconv.Quote(a)
		}
		argv = append(argv, plain(a))
	}
	return []string{verdict, plain(e.Process), named("profile", e.Profile), strings.Join(argv, " "), named("in", e.Cwd), named("rule", e.Rule)}
}

func endWords(e *audit.Ended) []string {
	v := e.Verdict
	end := plain(v.Cause)
	switch {
	case v.Signal != "":
		end += " " + plain(v.Signal)
	case v.Cause == "exited":
		end += " " + strconv.Itoa(v.Code)
	}
	if v.By != "" {
		end += " by " + plain(v.By)
	}
	words := []string{plain(e.Process), end, "after " + strconv.FormatFloat(v.Usage.Wall, 'f', 3, 64) + " s"}
	if len(v.Survivors) > 0 {
		words = append(words, "survivors "+strconv.Itoa(len(v.Survivors)))
	}
	return words
}

func gapWords(e *audit.Gap) []string {
	words := []string{plain(e.Reason)}
	if e.Bytes > 0 {
		words = append(words, strconv.FormatInt(e.Bytes, 10)+" bytes set aside", named("in", e.File))
	}
	if e.Lost > 0 {
		words = append(words, strconv.FormatInt(e.Lost, 10)+" events lost since "+clock(e.Since))
	}
	return append(words, plain(e.Cause))
}

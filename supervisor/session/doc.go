// Package session owns what one client started: a goroutine a session takes
// requests and events one at a time, moves its processes through the state table,
// and tells clients and the audit what happened. It enforces nothing by itself:
// policy decides, sandbox and cgroup confine, relay moves the bytes.
package session

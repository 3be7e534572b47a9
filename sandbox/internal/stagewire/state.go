package stagewire

// Requests for what the daemon, which has given up its privileges, cannot do in the
// state directory itself.
const (
	OpHome  Op = "home"  // Home + the caller's connection: a kept home
	OpPlace Op = "place" // Home: directories in a scratch file system
	OpEnd   Op = "end"   // the daemon ends: take down what is mounted at STATE/run
	OpRmdir Op = "rmdir" // Rmdir: the daemon ends: remove an empty cgroup
)

// Home asks for a directory of the state that belongs to whom a pen runs as, with a
// place in it for a workspace.
type Home struct {
	Name  string `json:"name"`           // of the kept home, or of the scratch file system
	Place string `json:"place,omitzero"` // relative
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
}

// Succeeded is the answer to OpSucceed.
type Succeeded struct {
	Pid int `json:"pid"`
}

// Rmdir names a cgroup: the base in a hierarchy, or daemon/ in it.
type Rmdir struct {
	Path string `json:"path"`
}

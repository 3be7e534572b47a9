package image

// Descriptors of PID 1 have fixed numbers, so that a Program names them. Numbers
// up to 9 that are not named here are free before the target's exec.
const (
	FDStdin  = 0 // the target's ends of its standard streams
	FDStdout = 1
	FDStderr = 2

	FDSignals = 0 // PID 1 beside the target: signalfd of SIGCHLD

	FDProgram = 3 // the program as opened inside the view (target, at the last gate)
	FDDir     = 4 // the working directory as opened inside the view (target, at the last gate)
	FDAlive   = 9 // target: write end of a pipe of PID 1's own, which ends with the exec

	FDAliveRead  = 3 // the same pipe as PID 1 makes it
	FDAliveWrite = 4

	FDStatus   = 10 // SEQPACKET socket: registers and commands in, records out
	FDRuleset  = 11 // Landlock ruleset
	FDTree     = 12 // detached mount tree of the view
	FDGate1    = 13 // read end of the first gate: one byte lets PID 1 begin, the words of commands follow
	FDGate2    = 14 // read end of the last gate
	FDHeldIn   = 15 // held: write end of stdin, or the PTY master that PID 1 opens itself
	FDHeldOut  = 16 // held: read end of stdout, or of the PTY's relay pipe
	FDHeldErr  = 17 // held: read end of stderr, or write end of the PTY's relay pipe
	FDCanary   = 18 // directory of a detached tmpfs that holds one file named CanaryFile
	FDJob      = 19 // v2 directory of job, for CLONE_INTO_CGROUP
	FDJoin     = 20 // first of at most MaxJoin files to write "0" to
	FDPeer     = 24 // held: the daemon's end of the status socket, so that a record outlives the daemon
	FDCommand  = 25 // file that is mapped at CommandAt
	FDAttach   = 32 // first of the detached mounts: attaches in order, then masks and pins
	MaxJoin    = 4
	CanaryFile = "canary" // mode 0444; no Landlock rule covers it
)

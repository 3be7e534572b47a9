package session

import (
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
)

func words[T ~string](list ...T) []string {
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = string(w)
	}
	return out
}

// TestRoomsUseTheSameWords: leaves never import each other, and the plan hands on
// their words as they are.
func TestRoomsUseTheSameWords(t *testing.T) {
	tests := []struct {
		name     string
		from, to []string
	}{
		{"controls", words(policy.Controls()...), words(sandbox.Controls()...)},
		{"levels", words(policy.LevelRequired, policy.LevelBestEffort, policy.LevelOff), words(sandbox.LevelRequired, sandbox.LevelBestEffort, sandbox.LevelOff)},
		{"absent", words(policy.AbsentPlaceholder, policy.AbsentRefuse, policy.AbsentCheck), words(sandbox.AbsentPlaceholder, sandbox.AbsentRefuse, sandbox.AbsentCheck)},
		{"missing", words(policy.MissingSkip, policy.MissingFail, policy.MissingCreate), words(sandbox.MissingSkip, sandbox.MissingFail, sandbox.MissingCreate)},
		{"net", words(policy.NetNone, policy.NetHost), words(sandbox.NetNone, sandbox.NetHost)},
		{"exec", words(policy.ExecAnything, policy.ExecListed), words(sandbox.ExecAnything, sandbox.ExecListed)},
		{"stdin", words(proto.StdinPipe, proto.StdinNull), words(sandbox.StdinPipe, sandbox.StdinNull)},
		{
			"kinds", words(sandbox.KindNone, sandbox.KindDir, sandbox.KindELF, sandbox.KindScript, sandbox.KindFile, sandbox.KindOther),
			words(policy.KindNone, policy.KindDir, policy.KindELF, policy.KindScript, policy.KindFile, policy.KindOther),
		},
	}
	for _, tt := range tests {
		if d := cmp.Diff(tt.from, tt.to); d != "" {
			t.Errorf("%s differ (-from +to):\n%s", tt.name, d)
		}
	}
}

func TestSignalOf(t *testing.T) {
	want := map[proto.Signal]syscall.Signal{
		proto.SigTerm: syscall.SIGTERM, proto.SigKill: syscall.SIGKILL, proto.SigInt: syscall.SIGINT, proto.SigHup: syscall.SIGHUP,
		proto.SigQuit: syscall.SIGQUIT, proto.SigUsr1: syscall.SIGUSR1, proto.SigUsr2: syscall.SIGUSR2, proto.SigCont: syscall.SIGCONT,
		proto.SigStop: syscall.SIGSTOP, proto.SigWinch: syscall.SIGWINCH,
	}
	for _, sig := range proto.Signals() {
		if got := signalOf(sig); got == 0 || got != want[sig] {
			t.Errorf("signalOf(%s) = %d; want %d", sig, got, want[sig])
		}
	}
	for _, sig := range []proto.Signal{"", "SIGNONE", "SIG0", "SIG32"} {
		if got := signalOf(sig); got != 0 {
			t.Errorf("signalOf(%q) = %d; want 0", sig, got)
		}
	}
}

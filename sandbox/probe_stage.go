package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/go-json-experiment/json"
)

// ProbeStage has the stage at path find out what this host can do: like Probe, but
// as a daemon of this user's would find it, which where the user is not root is
// inside a user namespace.
func ProbeStage(ctx context.Context, path string) (Features, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "--probe")
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return Features{}, fmt.Errorf("cannot probe the host by %s: %w: %s", path, err, strings.TrimSpace(said.String()))
	}
	var f Features
	if err := json.Unmarshal(out.Bytes(), &f); err != nil {
		return Features{}, fmt.Errorf("cannot read the answer of %s: %w", path, err)
	}
	return f, nil
}

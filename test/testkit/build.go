package testkit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build builds the three programs as `make build` does, into dir. top is the top
// of the source tree. With PINFOLD_TEST_RACE=1 the daemon has the race detector.
func Build(ctx context.Context, top, dir string) error {
	builds := [][]string{{"./cmd/pinfold", "./cmd/pinfoldd", "./cmd/pinfold-stage"}}
	flags := []string{"CGO_ENABLED=0"}
	if err := build(ctx, top, dir, flags, nil, builds[0]); err != nil {
		return err
	}
	if race, ok := os.LookupEnv("PINFOLD_TEST_RACE"); ok && race == "1" {
		return build(ctx, top, dir, []string{"CGO_ENABLED=1"}, []string{"-race"}, builds[0][1:2])
	}
	return nil
}

func build(ctx context.Context, top, dir string, env, flags, pkgs []string) error {
	args := append([]string{"build", "-trimpath", "-o", dir + string(filepath.Separator)}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkgs...)...)
	cmd.Dir = top
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build %v: %w\n%s", pkgs, err, out)
	}
	return nil
}

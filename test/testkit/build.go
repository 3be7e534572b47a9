package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build builds the three programs as `make build` does, into dir. top is the top
// of the source tree. With PINFOLD_TEST_RACE=1 the daemon has the race detector.
func Build(top, dir string) error {
	builds := [][]string{{"./cmd/pinfold", "./cmd/pinfoldd", "./cmd/pinfold-stage"}}
	flags := []string{"CGO_ENABLED=0"}
	if err := build(top, dir, flags, nil, builds[0]); err != nil {
		return err
	}
	if os.Getenv("PINFOLD_TEST_RACE") == "1" {
		return build(top, dir, []string{"CGO_ENABLED=1"}, []string{"-race"}, builds[0][1:2])
	}
	return nil
}

func build(top, dir string, env, flags, pkgs []string) error {
	args := append([]string{"build", "-trimpath", "-o", dir + string(filepath.Separator)}, flags...)
	cmd := exec.Command("go", append(args, pkgs...)...)
	cmd.Dir = top
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build %v: %w\n%s", pkgs, err, out)
	}
	return nil
}

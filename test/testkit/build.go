package testkit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// builtDir names the environment variable with a directory where the programs
// are already: a guest of test/vm has no compiler.
const builtDir = "PINFOLD_TEST_BUILT"

// Build builds the three programs as `make build` does, into dir, or copies them
// from where they are. top is the top of the source tree. With PINFOLD_TEST_RACE=1
// the daemon has the race detector.
func Build(ctx context.Context, top, dir string) error {
	if built, ok := os.LookupEnv(builtDir); ok {
		return os.CopyFS(dir, os.DirFS(built))
	}
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

// BuildTagged builds the program of a package with a build tag, or copies it from where
// the programs are already: below a directory named for the tag.
func BuildTagged(ctx context.Context, top, tag, pkg, file string) error {
	built, ok := os.LookupEnv(builtDir)
	if !ok {
		return build(ctx, top, filepath.Dir(file), []string{"CGO_ENABLED=0"}, []string{"-tags", tag}, []string{pkg})
	}
	program, err := os.ReadFile(filepath.Join(built, tag, filepath.Base(file)))
	if err != nil {
		return fmt.Errorf("cannot find %s as it was built with the tag %s: %w", pkg, tag, err)
	}
	return os.WriteFile(file, program, 0o700)
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

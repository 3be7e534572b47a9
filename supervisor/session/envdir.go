package session

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Limits of env.envdir.
const (
	maxEnvFiles = 256
	maxEnvValue = 64 << 10 // bytes of one file
)

// withEnvDir adds the variables of a directory to an environment: the name of a
// file is a variable's name, its content without one trailing newline the value.
// They win over what stands in env. Their values are in no request and no record.
func withEnvDir(env []string, dir string) ([]string, error) {
	if dir == "" {
		return env, nil
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read env.envdir of the profile: %w", err)
	}
	if len(files) > maxEnvFiles {
		return nil, fmt.Errorf("cannot use env.envdir %q: it has %d files, more than %d", dir, len(files), maxEnvFiles)
	}
	out := slices.Clone(env)
	for _, f := range files {
		name := f.Name()
		if strings.HasPrefix(name, ".") || f.IsDir() {
			continue
		}
		value, err := envValue(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		out = slices.DeleteFunc(out, func(v string) bool { return strings.HasPrefix(v, name+"=") })
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return out, nil
}

func envValue(file string) (string, error) {
	name := filepath.Base(file)
	if strings.ContainsAny(name, "=\x00") {
		return "", fmt.Errorf("cannot use the file %q of env.envdir: its name names no variable", name)
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("cannot read env.envdir of the profile: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxEnvValue+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("cannot read env.envdir of the profile: %w", err)
	case len(b) > maxEnvValue:
		return "", fmt.Errorf("cannot use the file %q of env.envdir: it has more than %d bytes", name, maxEnvValue)
	case bytes.IndexByte(b, 0) >= 0:
		return "", fmt.Errorf("cannot use the file %q of env.envdir: it has a NUL byte", name)
	}
	return strings.TrimSuffix(string(b), "\n"), nil
}

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// Home makes the kept home of a name of whoever connected conn, STATE/cache/UID/NAME,
// owned by uid and gid, with the directories of place in it, or finds the one that is
// there. It returns a descriptor, which the caller closes.
func (s *Stage) Home(ctx context.Context, conn *os.File, name, place string, uid, gid uint32) (*os.File, Identity, error) {
	var id Identity
	files, err := s.ask(ctx, stagewire.OpHome, stagewire.Home{Name: name, Place: place, UID: uid, GID: gid}, &id, dropAnswer, conn)
	if err != nil {
		return nil, Identity{}, err
	}
	if len(files) != 1 {
		linux.CloseAll(files...)
		return nil, Identity{}, fmt.Errorf("cannot make home %q: the stage sent %d descriptors, not one", name, len(files))
	}
	return files[0], id, nil
}

// Place makes the directories of place in the file system that Scratch made under a name.
func (s *Stage) Place(ctx context.Context, name, place string, uid, gid uint32) error {
	_, err := s.ask(ctx, stagewire.OpPlace, stagewire.Home{Name: name, Place: place, UID: uid, GID: gid}, nil, dropAnswer)
	return err
}

// EndState takes down what is mounted at STATE/run: of scratch file systems what is
// left, and the one that a daemon put there itself, which mounts call source.
func (s *Stage) EndState(ctx context.Context) error {
	_, err := s.ask(ctx, stagewire.OpEnd, struct{}{}, nil, dropAnswer)
	return err
}

// RemoveBase removes the base in a hierarchy, or daemon/ in it, which the stage leaves
// before if it is in it.
func (s *Stage) RemoveBase(ctx context.Context, path string) error {
	_, err := s.ask(ctx, stagewire.OpRmdir, stagewire.Rmdir{Path: path}, nil, dropAnswer)
	return err
}

// RunSource is what the mount table calls the file system that a daemon puts at
// STATE/run, and that its stage takes down.
const RunSource = "pinfold-run"

// MakePlace makes the directories of rel below dir. What is inside dir is its owner's:
// os.Root follows no link out of it.
func MakePlace(dir, rel string, uid, gid int) error {
	if rel == "" {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("cannot open the home directory: %w", err)
	}
	defer root.Close()
	part := ""
	for name := range strings.SplitSeq(rel, "/") {
		part = path.Join(part, name)
		if err := root.Mkdir(part, 0o700); errors.Is(err, os.ErrExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("cannot make the workspace's place %q in the home directory: %w", part, err)
		}
		if err := root.Lchown(part, uid, gid); err != nil {
			return fmt.Errorf("cannot own the workspace's place %q in the home directory: %w", part, err)
		}
	}
	return nil
}

package record

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Names below the directory of a store.
const (
	sessionDir = "session"
	processDir = "process"
	opsDir     = "ops"
	brokenDir  = "broken"
	daemonName = "daemon"
	suffix     = ".json"
	unfinished = ".new" // what a writer that was killed leaves
)

// Store is the directory of the records. Its methods may be called from any goroutine;
// of one record one at a time.
type Store struct{ dir string }

// Open makes the directories of a store where they are absent, with mode 0700.
func Open(dir string) (*Store, error) {
	for _, d := range []string{dir, filepath.Join(dir, sessionDir), filepath.Join(dir, processDir), filepath.Join(dir, opsDir), filepath.Join(dir, brokenDir)} {
		if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("cannot make the directory of records: %w", err)
		}
	}
	return &Store{dir}, nil
}

// PutDaemon stores where the daemon's cgroups are.
func (s *Store) PutDaemon(r Daemon) error {
	return s.put("", daemonName, daemonFile{header{Version}, r})
}

// DropDaemon forgets the daemon, which has ended with all that it ran.
func (s *Store) DropDaemon() error { return s.drop("", daemonName) }

// PutSession stores a session, in place of what was known of it before.
func (s *Store) PutSession(r Session) error {
	return s.put(sessionDir, r.ID, sessionFile{header{Version}, r})
}

// PutProcess stores a process, in place of what was known of it before.
func (s *Store) PutProcess(r Process) error {
	return s.put(processDir, r.ID, processFile{header{Version}, r})
}

// DropSession forgets a session and its operations; one that is not known is no error.
func (s *Store) DropSession(id string) error {
	return errors.Join(s.drop(opsDir, id), s.drop(sessionDir, id))
}

// Operations is the name of the file in which the operations of a session are kept. It
// is not the store's to write; DropSession removes it.
func (s *Store) Operations(id string) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	return s.file(opsDir, id), nil
}

// DropProcess forgets a process; one that is not known is no error.
func (s *Store) DropProcess(id string) error { return s.drop(processDir, id) }

func (s *Store) put(kind, id string, v any) error {
	err := checkID(id)
	var b []byte
	if err == nil {
		b, err = encode(v)
	}
	if err == nil {
		err = replace(s.file(kind, id), b)
	}
	if err != nil {
		return fmt.Errorf("cannot store the record of %s: %w", strings.TrimSpace(kind+" "+id), err)
	}
	return nil
}

func (s *Store) file(kind, id string) string { return filepath.Join(s.dir, kind, id+suffix) }

// replace writes a file whole under another name, and renames it.
func replace(path string, b []byte) error {
	tmp := strings.TrimSuffix(path, suffix) + unfinished
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}

func (s *Store) drop(kind, id string) error {
	err := checkID(id)
	if err == nil {
		err = os.Remove(s.file(kind, id))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot drop the record of %s: %w", strings.TrimSpace(kind+" "+id), err)
	}
	return nil
}

// Found is what an earlier daemon has left.
type Found struct {
	Daemon    Daemon // zero: no daemon has said where its cgroups are
	Sessions  []Session
	Processes []Process
	Broken    []Broken // in the order of their names
	Newer     []*NewerError
}

// Broken is a record that cannot be read: something else than a Store has written it,
// or cut it short.
type Broken struct {
	File string
	Kind string // session or process; empty: the daemon's
	ID   string // what it was called
	Why  error
}

// Err is not nil where a record is of a version that this build does not know: then
// nothing may be done to what the records name.
func (f *Found) Err() error {
	if len(f.Newer) == 0 {
		return nil
	}
	return f.Newer[0]
}

// Read returns the records in a directory and changes nothing in it. A directory that
// is not there has none.
func Read(dir string) (Found, error) {
	var f Found
	err := each(dir, "", &f, func(id string, version int, b []byte) (err error) {
		if err = sameID(id, daemonName); err == nil {
			f.Daemon, err = decodeDaemon(version, b)
		}
		return err
	})
	if err != nil {
		return f, err
	}
	err = each(dir, sessionDir, &f, func(id string, version int, b []byte) error {
		r, err := decodeSession(version, b)
		if err == nil {
			err = sameID(id, r.ID)
		}
		if err == nil {
			f.Sessions = append(f.Sessions, r)
		}
		return err
	})
	if err != nil {
		return f, err
	}
	err = each(dir, processDir, &f, func(id string, version int, b []byte) error {
		r, err := decodeProcess(version, b)
		if err == nil {
			err = sameID(id, r.ID)
		}
		if err == nil {
			f.Processes = append(f.Processes, r)
		}
		return err
	})
	slices.SortFunc(f.Processes, func(a, b Process) int { return int(min(1, max(-1, a.Asked.Mono-b.Asked.Mono))) })
	return f, err
}

func sameID(name, id string) error {
	if name != id {
		return fmt.Errorf("it is of %q", id)
	}
	return nil
}

// each hands every record of a kind to take, and notes those that are broken or newer.
func each(dir, kind string, f *Found, take func(id string, version int, b []byte) error) error {
	entries, err := os.ReadDir(filepath.Join(dir, kind))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot list records: %w", err)
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue // unfinished: the record before it stands, or there was none yet
		}
		path := filepath.Join(dir, kind, e.Name())
		b, err := read(path)
		version := 0
		if err == nil {
			version, err = versionOf(b)
		}
		if version > Version {
			f.Newer = append(f.Newer, &NewerError{File: path, Kind: kind, ID: id, Version: version})
			continue
		}
		if err == nil {
			err = errors.Join(checkID(id), take(id, version, b))
		}
		if err != nil {
			f.Broken = append(f.Broken, Broken{File: path, Kind: kind, ID: id, Why: err})
		}
	}
	return nil
}

// read returns a file that may be a record.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Size() > maxRecord:
		return nil, fmt.Errorf("it has %d bytes; a record has at most %d", info.Size(), maxRecord)
	}
	return io.ReadAll(io.LimitReader(f, maxRecord))
}

// SetAside moves a broken record out of the way, to be looked at, and returns where to.
// The oldest of those that are kept goes.
func (s *Store) SetAside(b Broken) (string, error) {
	to := filepath.Join(s.dir, brokenDir, strings.TrimPrefix(b.Kind+"-"+filepath.Base(b.File), "-"))
	if err := os.Rename(b.File, to); err != nil {
		return "", fmt.Errorf("cannot set the broken record %q aside: %w", b.File, err)
	}
	return to, s.thin()
}

// thin removes the oldest of the broken records beyond maxAside.
func (s *Store) thin() error {
	entries, err := os.ReadDir(filepath.Join(s.dir, brokenDir))
	if err != nil {
		return err
	}
	var infos []os.FileInfo
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	var errs []error
	for _, info := range infos[:max(0, len(infos)-maxAside)] {
		errs = append(errs, os.RemoveAll(filepath.Join(s.dir, brokenDir, info.Name())))
	}
	return errors.Join(errs...)
}

// kindOf says what a directory has records of.
func kindOf(dir string) string {
	if dir == opsDir {
		return sessionDir
	}
	return dir
}

// Clear removes unfinished records, and every record of those ids that are not kept. It
// is called once nothing that a record names is left but what was adopted.
func (s *Store) Clear(keep func(kind, id string) bool) error {
	var errs []error
	for _, kind := range []string{sessionDir, opsDir, processDir} {
		entries, err := os.ReadDir(filepath.Join(s.dir, kind))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, e := range entries {
			id, ok := strings.CutSuffix(e.Name(), suffix)
			if ok && keep(kindOf(kind), id) {
				continue
			}
			errs = append(errs, os.RemoveAll(filepath.Join(s.dir, kind, e.Name())))
		}
	}
	return errors.Join(errs...)
}

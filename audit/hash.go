package audit

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	hashQueue     = 256              // programs waiting to be hashed; one more is left out and asked for again at its next use
	hashChunk     = 1 << 20          // bytes between two looks at the context
	hashRetryTime = time.Minute      // a program that could not be hashed is tried again after this
	maxHashSize   = int64(16 << 30)  // larger files are not hashed
	hashTime      = 10 * time.Second // for one file; beyond it there is no hash
	maxHung       = 2                // reads left behind that do not come back: with so many nothing is hashed
)

// Hasher keeps the SHA-256 of programs. A spawn never waits for it: Lookup answers from the cache and else asks the
// worker, which writes a Program event once it knows the hash.
type Hasher struct {
	log  *Log
	size int
	read func(context.Context, File) (string, error)
	time time.Duration // for one file
	hung atomic.Int32  // reads that were left behind

	queue chan File
	mu    sync.Mutex
	known map[FileID]*list.Element
	order *list.List // of *hashed, most recently used first
}

// hashed is one entry of the cache.
type hashed struct {
	id      FileID
	sum     string    // empty: asked for, or failed
	retryAt time.Time // when it failed
}

// NewHasher makes a cache of at most size programs whose Program events go to log. Its worker is Serve.
func NewHasher(log *Log, size int) *Hasher {
	return &Hasher{
		log: log, size: max(size, 1), read: hashFile, time: hashTime,
		queue: make(chan File, hashQueue), known: map[FileID]*list.Element{}, order: list.New(),
	}
}

// Lookup fills SHA256 if it is known; if not, the worker is asked for it. It never blocks.
func (h *Hasher) Lookup(f File) File {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, ok := h.known[f.ID]; ok {
		h.order.MoveToFront(e)
		if got := entry(e); got.sum != "" || got.retryAt.IsZero() || time.Now().Before(got.retryAt) {
			f.SHA256 = got.sum
			return f
		}
		h.drop(e)
	}
	select {
	case h.queue <- f:
		h.known[f.ID] = h.order.PushFront(&hashed{id: f.ID})
		if h.order.Len() > h.size {
			h.drop(h.order.Back())
		}
	default: // asked for again at its next use
	}
	return f
}

func entry(e *list.Element) *hashed {
	got, _ := e.Value.(*hashed) // nothing else is ever put into the list
	return got
}

func (h *Hasher) drop(e *list.Element) {
	delete(h.known, entry(e).id)
	h.order.Remove(e)
}

// Serve hashes what Lookup asked for until ctx ends. An audit file that cannot be written does not end it. Each file is read beside it, by
// run, which calls a function on a goroutine of its own: a read of a dead network or FUSE mount never comes back, and is left behind.
func (h *Hasher) Serve(ctx context.Context, run func(func())) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-h.queue:
			sum, err := h.hash(ctx, f, run)
			if ctx.Err() != nil {
				return nil
			}
			h.store(f.ID, sum, err)
			if err := h.tell(f, sum, err); err != nil && !errors.Is(err, ErrUnavailable) {
				return err
			}
		}
	}
}

// hash reads one file, but for no longer than h.time and only while fewer than maxHung reads hang.
func (h *Hasher) hash(ctx context.Context, f File, run func(func())) (string, error) {
	if n := h.hung.Load(); n >= maxHung {
		return "", fmt.Errorf("cannot hash %s: %d reads of other programs hang", f.Path, n)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, h.time, fmt.Errorf("cannot hash %s: it was not read within %s", f.Path, h.time))
	defer cancel()
	var sum string
	var err error
	done := make(chan struct{})
	h.hung.Add(1)
	run(func() {
		defer h.hung.Add(-1)
		defer close(done)
		sum, err = h.read(ctx, f)
	})
	select {
	case <-done:
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return sum, err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// store puts a result into the cache.
func (h *Hasher) store(id FileID, sum string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, ok := h.known[id]
	if !ok {
		return // pushed out meanwhile
	}
	entry(e).sum = sum
	if err != nil {
		entry(e).retryAt = time.Now().Add(hashRetryTime)
	}
}

// tell writes the Program event. If that fails the program is forgotten, so that the event is written at its next use.
func (h *Hasher) tell(f File, sum string, cause error) error {
	f.SHA256 = sum
	p := Program{File: f}
	if cause != nil {
		p.Err = cause.Error()
	}
	err := h.log.Append(Subject{}, p)
	if err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if e, ok := h.known[f.ID]; ok {
			h.drop(e)
		}
	}
	return err
}

// hashFile hashes the file at f.Path if it is still the one that f.ID names, before and after reading.
func hashFile(ctx context.Context, f File) (_ string, err error) {
	file, err := os.OpenFile(f.Path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := sameFile(file, f); err != nil {
		return "", err
	}
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("cannot hash %s: not a regular file but %s", f.Path, info.Mode().Type())
	}
	if f.ID.Size > maxHashSize {
		return "", fmt.Errorf("cannot hash %s: %d bytes, the limit is %d", f.Path, f.ID.Size, maxHashSize)
	}
	sum := sha256.New()
	for err == nil {
		if err = ctx.Err(); err == nil {
			_, err = io.CopyN(sum, file, hashChunk)
		}
	}
	if !errors.Is(err, io.EOF) {
		return "", err
	}
	if err := sameFile(file, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// sameFile compares an open file with an identity.
func sameFile(file *os.File, f File) error {
	id, err := Identify(file)
	if err == nil && id != f.ID {
		err = fmt.Errorf("cannot hash %s: it is no longer the file that was looked at", f.Path)
	}
	return err
}

// Identify is the identity of an open file.
func Identify(file *os.File) (FileID, error) {
	var st unix.Stat_t
	for {
		err := unix.Fstat(int(file.Fd()), &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return FileID{}, &os.PathError{Op: "fstat", Path: file.Name(), Err: err}
		}
		return FileID{Dev: st.Dev, Ino: st.Ino, Size: st.Size, MtimeNs: st.Mtim.Nano(), CtimeNs: st.Ctim.Nano()}, nil
	}
}

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
)

// errorf is fmt.Errorf under a name that reads well beside fail.
func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }

// cause strips the operation and path that an error of os or net repeats, so that
// a sentence names its object once.
func cause(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		return call.Err
	}
	return err
}

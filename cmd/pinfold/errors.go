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
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		return call.Err
	}
	return err
}

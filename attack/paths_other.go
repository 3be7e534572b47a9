//go:build !amd64

package attack

func oldSetID() []Attack { return nil }

func x32() []Attack { return nil }

package ops

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"pinfold/proto"
)

// name is an op_id in few bytes: 128 bits of its SHA-256, which no two share.
type name [16]byte

func nameOf(id string) name {
	sum := sha256.Sum256([]byte(id))
	return name(sum[:len(name{})])
}

// names are the names of forgotten operations, at most MaxForgotten.
type names struct {
	ring    []past // in the order of their conclusion, from next on once it is full
	next    int
	set     map[name]struct{}
	horizon proto.Timestamp // conclusion of the last that is gone for good
}

type past struct {
	name name
	at   proto.Timestamp
}

func newNames() names { return names{set: map[name]struct{}{}} }

func (n *names) has(id string) bool {
	_, ok := n.set[nameOf(id)]
	return ok
}

func (n *names) add(id string, at proto.Timestamp) { n.put(past{nameOf(id), at}) }

func (n *names) put(p past) {
	n.set[p.name] = struct{}{}
	if len(n.ring) < MaxForgotten {
		n.ring = append(n.ring, p)
		return
	}
	old := n.ring[n.next]
	delete(n.set, old.name)
	n.horizon = max(n.horizon, old.at)
	n.ring[n.next] = p
	n.next = (n.next + 1) % len(n.ring)
}

// pastSize is the stored size of one: its name and the bits of its time.
const pastSize = len(name{}) + 8

// encode returns all, the oldest first.
func (n *names) encode() []byte {
	out := make([]byte, 0, pastSize*len(n.ring))
	for i := range n.ring {
		p := n.ring[(n.next+i)%len(n.ring)]
		out = append(out, p.name[:]...)
		out = binary.LittleEndian.AppendUint64(out, math.Float64bits(float64(p.at)))
	}
	return out
}

func decodeNames(b []byte, horizon proto.Timestamp) (names, error) {
	n := newNames()
	n.horizon = horizon
	if len(b)%pastSize != 0 {
		return n, fmt.Errorf("cannot read the names of operations: %d bytes are no whole number of them", len(b))
	}
	for ; len(b) > 0; b = b[pastSize:] {
		at := math.Float64frombits(binary.LittleEndian.Uint64(b[len(name{}):]))
		n.put(past{name(b[:len(name{})]), proto.Timestamp(at)})
	}
	return n, nil
}

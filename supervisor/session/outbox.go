package session

import (
	"fmt"
	"sync"
	"time"

	"pinfold/proto"
)

// maxOpen is how many requests of one connection may be unanswered. The
// connection is not read beyond it, so that a client that reads nothing makes
// nothing grow.
const maxOpen = 256

// maxWaits is how many of them may be waits: the rest is always left for others.
const maxWaits = maxOpen / 2

// Link is the way to one client.
type Link interface {
	// Write sends whole lines; it blocks while the client is slow and fails once it is gone.
	Write(lines []byte) error
	// SetWriteDeadline makes writes fail after t, also one that is waiting.
	SetWriteDeadline(t time.Time) error
}

// outbox sends answers in order, each with what is to happen once it was sent.
// Its queue never blocks: every letter stands for one of maxOpen open requests.
type outbox struct {
	link  Link
	queue chan letter
	slots chan struct{}
	gone  chan struct{} // closed when the client is known to be gone
	once  sync.Once
	over  chan struct{} // closed by end: what comes later is dropped
	ended sync.Once
}

type letter struct {
	msg  proto.Message // nil: nothing is sent
	sent func()        // called after the line was sent, or could not be
}

func newOutbox(l Link) *outbox {
	return &outbox{link: l, queue: make(chan letter, 2*maxOpen), slots: make(chan struct{}, maxOpen), gone: make(chan struct{}), over: make(chan struct{})}
}

// take waits for a free place for one more open request. false: nobody is there
// to be answered.
func (o *outbox) take() bool {
	select {
	case o.slots <- struct{}{}:
		return true
	case <-o.gone:
		return false
	case <-o.over: // answers that another session owes are dropped and free no place
		return false
	}
}

// answer puts the answer of one open request in the queue. Another session may owe
// it, and call this when ours has long ended: then it is dropped.
func (o *outbox) answer(m proto.Message, sent func()) {
	l := letter{msg: m, sent: func() {
		<-o.slots
		if sent != nil {
			sent()
		}
	}}
	select {
	case o.queue <- l:
	case <-o.over:
	}
}

// last puts a message that answers nothing behind all answers. Open requests take at
// most half of the queue.
func (o *outbox) last(m proto.Message) {
	select {
	case o.queue <- letter{msg: m}:
	case <-o.over:
	}
}

// end makes serve return once it has sent what is in the queue. Only the first call
// does anything.
func (o *outbox) end() { o.ended.Do(func() { close(o.over) }) }

// serve sends what comes until the end.
func (o *outbox) serve() {
	var buf []byte
	for {
		select {
		case l := <-o.queue:
			buf = o.send(buf, l)
			continue
		case <-o.over:
		}
		for {
			select {
			case l := <-o.queue:
				buf = o.send(buf, l)
			default:
				return
			}
		}
	}
}

// send sends one letter; buf is memory to be used again. Once the client is gone
// letters are only counted off.
func (o *outbox) send(buf []byte, l letter) []byte {
	var err error
	if l.msg != nil {
		if buf, err = encode(buf[:0], l.msg); err == nil {
			err = o.link.Write(buf)
		}
	}
	if err != nil {
		o.drop()
	}
	if l.sent != nil {
		l.sent()
	}
	return buf
}

// encode makes a line of a message. One that cannot be sent, because it is longer
// than a frame, is answered with an error in its place.
func encode(buf []byte, m proto.Message) ([]byte, error) {
	line, err := proto.Append(buf, m)
	if err == nil {
		return line, nil
	}
	id := ""
	if r, ok := m.(proto.Response); ok {
		id = r.Result().ReqID
	}
	return proto.Append(buf, proto.NewError(id, proto.CodeServerError, fmt.Sprintf("cannot answer: %v", err)))
}

// drop marks the client as gone.
func (o *outbox) drop() { o.once.Do(func() { close(o.gone) }) }

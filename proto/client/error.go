package client

import (
	"fmt"

	"pinfold/proto"
)

// Error is a request that was refused, or could not be understood.
type Error struct {
	Request   proto.Type // the request's type; empty for an error message that answers none
	Code      proto.Code
	Message   string // a sentence
	Hint      string // what to do about it, or empty
	Retryable bool
	Response  proto.Response // with all that it says beside; nil for an error message
}

// Error says what was refused, why, and what to do about it.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s (%s)", e.Message, e.Code)
	if e.Request != "" {
		text = fmt.Sprintf("cannot do %s: %s", e.Request, text)
	}
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

// Is makes errors.Is(err, &Error{Code: c}) ask for a code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

func errorOf(req proto.Request, m *proto.ErrorMsg) *Error {
	e := &Error{Code: m.Code, Message: m.Message, Retryable: m.Retryable}
	if req != nil {
		e.Request = req.Kind()
	}
	return e
}

func refusal(req proto.Request, r proto.Response) *Error {
	reply := r.Result()
	e := &Error{
		Request: req.Kind(), Code: reply.Code, Message: reply.Error, Hint: reply.Hint,
		Retryable: reply.Retryable, Response: r,
	}
	if h, ok := r.(*proto.HandshakeResp); ok && e.Message == "" {
		e.Message = string(h.Reason)
	}
	return e
}

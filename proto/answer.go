package proto

// Answer is the response of a request's own type with a reply, for an answer that
// has nothing else to say, such as a refusal. A Ping or a Shutdown has none: nil.
func Answer(req Request, r Reply) Response {
	switch q := req.(type) {
	case *Handshake:
		return &HandshakeResp{Reply: r, AcceptedCaps: []AcceptedCap{}}
	case *SpawnReq:
		return &SpawnResp{Reply: r}
	case *WriteReq:
		return &WriteResp{Reply: r, ProcID: q.ProcID}
	case *KillReq:
		return &KillResp{Reply: r, State: r.status()}
	case *StatusReq:
		return &StatusResp{Reply: r, ProcID: q.ProcID, Status: r.status()}
	case *ListReq:
		return &ListResp{Reply: r}
	case *WaitReq:
		return &WaitResp{Reply: r, ProcID: q.ProcID, Status: r.status()}
	case *StatsReq:
		return &StatsResp{Reply: r, ProcID: q.ProcID, Status: r.status()}
	case *ExplainReq:
		return &ExplainResp{Reply: r}
	case *ResizeReq:
		return &ResizeResp{Reply: r, ProcID: q.ProcID}
	}
	return nil
}

// UnknownProc is the answer to a request about a process that this session does
// not have, whether or not there is one elsewhere: always the same.
func UnknownProc(req Request) Response {
	return Answer(req, Refused(req, CodeUnknownProc, "there is no such process in this session", ""))
}

// status is the status word that goes with a refusal.
func (r *Reply) status() Status {
	switch {
	case r.OK:
		return ""
	case r.Code == CodeUnknownProc:
		return StatusNotFound
	}
	return StatusError
}

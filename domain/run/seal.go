package run

// Seal turns candidates into events in their places behind the state's last
// one, with their checksums and chain, and moves the state's seq and chain
// there. nonce is random and new for each append; it stands in the first event.
func (s *State) Seal(candidates []Candidate, nonce string) []Event {
	events := make([]Event, len(candidates))
	for i := range candidates {
		c, e := &candidates[i], &events[i]
		*e = Event{
			RunID: s.RunID, Seq: s.LastSeq + 1, Type: c.Payload.EventType(), OccurredAt: c.OccurredAt,
			AgentID: s.AgentID, Snapshot: s.Snapshot, ThreadID: s.ThreadID,
			Payload: c.encoded(), SchemaVersion: SchemaVersion,
			TraceID: c.TraceID, SpanID: c.SpanID, Source: c.Source, RequestID: c.RequestID, Owner: s.Owner, Epoch: s.Epoch,
		}
		if i == 0 {
			e.Nonce, e.Claims, s.claims = nonce, s.claims, nil
		}
		if e.Type == TypeRunStarted {
			e.RequestChecksum = s.RequestChecksum
		}
		e.PayloadChecksum = Checksum(e.Payload)
		e.ChainChecksum = e.chain(s.chain)
		s.LastSeq, s.chain = e.Seq, e.ChainChecksum
	}
	return events
}

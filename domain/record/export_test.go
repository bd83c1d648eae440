package record

// KeepIdle bounds what states of idle runs may weigh.
func (r *Runs) KeepIdle(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = bytes
}

// MaxReported is how much of a run may wait, in bytes, before its producers do.
const MaxReported = maxReported

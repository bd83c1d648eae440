package run

// Artifact is what a run's facts say of an artifact, as far as it takes to serve
// its bytes. What nobody told is empty.
type Artifact struct{ Name, MediaType, Checksum string }

// Artifact returns an artifact by its id.
func (s *State) Artifact(id string) (Artifact, bool) { return s.artifacts.get(id) }

// described is what an artifact.created says of the bytes.
func (p *ArtifactCreated) described() (a Artifact) {
	for _, m := range p.Members {
		if m.Value[0] != '"' {
			continue // it may be anything
		}
		switch m.Key {
		case "name":
			a.Name = unquote(m.Value)
		case "media_type":
			a.MediaType = unquote(m.Value)
		case "checksum":
			a.Checksum = unquote(m.Value)
		}
	}
	return a
}

package run

import "strconv"

// Artifact is what a run's facts say of an artifact, as far as it takes to serve
// its bytes. What nobody told is empty.
type Artifact struct {
	Name, MediaType, Checksum string
	Size                      int64 // in bytes; -1: nobody told
}

// Artifact returns an artifact by its id.
func (s *State) Artifact(id string) (Artifact, bool) { return s.artifacts.get(id) }

// described is what an artifact.created says of the bytes.
func (p *ArtifactCreated) described() Artifact {
	a := Artifact{Size: -1}
	for _, m := range p.Members {
		if m.Key == "size" {
			if n, err := strconv.ParseInt(string(m.Value), 10, 64); err == nil && n >= 0 {
				a.Size = n
			}
			continue
		}
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

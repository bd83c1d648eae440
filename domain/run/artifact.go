package run

import "github.com/runfacts/runfacts/domain/agent"

// Artifact is what a run's facts say of an artifact, as far as it takes to serve
// its bytes. What nobody told is empty.
type Artifact struct{ Name, MediaType, Checksum string }

// Artifact returns an artifact by its id.
func (s *State) Artifact(id string) (Artifact, bool) { return s.artifacts.get(id) }

// described is what the payload of an artifact.created says. Decoded ones have
// it in members of their own, decided ones among what was given.
func (p *Payload) described() Artifact {
	a := Artifact{string(p.Name), string(p.MediaType), string(p.Checksum)}
	for _, m := range p.Artifact {
		if len(m.value) == 0 || m.value[0] != '"' {
			continue
		}
		text := agent.Unquote(m.value).String()
		switch m.key {
		case "name":
			a.Name = text
		case "media_type":
			a.MediaType = text
		case "checksum":
			a.Checksum = text
		}
	}
	return a
}

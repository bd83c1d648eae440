package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/agent"
	runs "github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
	"github.com/runfacts/runfacts/transport/runner/langgraph"
	"github.com/runfacts/runfacts/transport/runner/sandbox"
	"github.com/runfacts/runfacts/transport/runner/scripted"
)

// agentsFile is runfacts.yaml. Unknown keys are errors. As JSON an agent's part,
// with the defaults filled in, is its snapshot: secrets are names of environment
// variables here, and nothing else.
type agentsFile struct {
	Agents map[string]*agentConfig `yaml:"agents"`
}

// agentConfig is one agent. Exactly the section of its runtime is given.
type agentConfig struct {
	AgentID     string          `yaml:"-" json:"agent_id"`
	Runtime     string          `yaml:"runtime" json:"runtime"`           // langgraph, sandbox or scripted
	MaxDuration *duration       `yaml:"max_duration" json:"max_duration"` // of a run; default 10m; 0s: no limit
	MaxSilence  *duration       `yaml:"max_silence" json:"max_silence"`   // between two AgentEvents; default 5m; 0s: no limit
	MaxWait     *duration       `yaml:"max_wait" json:"max_wait"`         // for answers from outside; default 24h; 0s: no limit
	Sandbox     *sandboxConfig  `yaml:"sandbox" json:"sandbox,omitempty"`
	Scripted    *scriptedConfig `yaml:"scripted" json:"scripted,omitempty"`
	LangGraph   *langConfig     `yaml:"langgraph" json:"langgraph,omitempty"`
}

// langConfig is a graph on a LangGraph server.
type langConfig struct {
	URL       string `yaml:"url" json:"url"`
	Assistant string `yaml:"assistant" json:"assistant"`               // an assistant's or a graph's id
	APIKeyEnv string `yaml:"api_key_env" json:"api_key_env,omitempty"` // variable of this server's environment
}

// sandboxConfig is a command under bubblewrap.
type sandboxConfig struct {
	Command   []string          `yaml:"command" json:"command"`
	Mount     []string          `yaml:"mount" json:"mount,omitempty"`       // source:target[:ro|rw]; ro by default; relative to the file
	Env       map[string]string `yaml:"env" json:"env,omitempty"`           // name: value
	EnvFrom   map[string]string `yaml:"env_from" json:"env_from,omitempty"` // name: variable of this server's environment
	Network   network           `yaml:"network" json:"network"`             // false (default), true: one of its own, or host
	Stdout    string            `yaml:"stdout" json:"stdout"`               // events (default) or text
	Timeout   *duration         `yaml:"timeout" json:"timeout"`             // wall clock; default: max_duration; 0s: no limit
	Memory    size              `yaml:"memory" json:"memory"`               // of its processes and files together; default 512MiB
	Disk      size              `yaml:"disk" json:"disk"`                   // of each of /output, /work, /tmp, /dev/shm, in memory; default 64MiB
	Output    size              `yaml:"output" json:"output"`               // of standard output; default 64MiB
	Processes *int              `yaml:"processes" json:"processes"`         // default 64
}

// scriptedConfig is a file of AgentEvents that is played.
type scriptedConfig struct {
	File     string    `yaml:"file" json:"file"`   // NDJSON; relative to the file
	Pause    *duration `yaml:"pause" json:"pause"` // before each event; default 100ms
	Checksum string    `yaml:"-" json:"checksum"`  // of what the file said
}

// duration is a time.Duration that is written as Go does, 1m30s.
type duration time.Duration

// UnmarshalYAML implements yaml.NodeUnmarshaler, which knows where the fault is.
func (d *duration) UnmarshalYAML(node ast.Node) error {
	text := node.GetToken().Value
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return wrong(node, "%q is not a duration such as 1m30s", text)
	}
	if parsed < 0 {
		return wrong(node, "a duration must not be negative: %s", text)
	}
	*d = duration(parsed)
	return nil
}

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// or returns d, or other where d is not given.
func (d *duration) or(other time.Duration) *duration {
	if d != nil {
		return d
	}
	o := duration(other)
	return &o
}

// least returns the tighter one of two limits, of which 0 is none.
func least(a, b *duration) *duration {
	if *a == 0 || *b != 0 && *b < *a {
		return b
	}
	return a
}

// size is a number of bytes, with or without KiB, MiB or GiB.
type size int64

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (s *size) UnmarshalYAML(node ast.Node) error {
	text := node.GetToken().Value
	number, unit := text, int64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB"} {
		if n, ok := strings.CutSuffix(number, suffix); ok {
			number, unit = strings.TrimSpace(n), int64(1)<<(10*(i+1))
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > 1<<62/unit {
		return wrong(node, "%q is not a size such as 512MiB", text)
	}
	*s = size(n * unit)
	return nil
}

func (s size) or(other size) size {
	if s == 0 {
		return other
	}
	return s
}

// network is false, true or host.
type network string

var networks = map[network]sandbox.Network{"false": sandbox.NoNetwork, "true": sandbox.OwnNetwork, "host": sandbox.HostNetwork}

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (n *network) UnmarshalYAML(node ast.Node) error {
	*n = network(node.GetToken().Value)
	if _, ok := networks[*n]; !ok {
		return wrong(node, "%q is neither false nor true nor host", string(*n))
	}
	return nil
}

func (n network) MarshalJSON() ([]byte, error) {
	if n == "host" {
		return []byte(`"host"`), nil
	}
	return []byte(n), nil
}

// readAgents reads a configuration file and builds its agents, whose artifacts
// have at most maxArtifact bytes. Errors name the file, the agent, the key and the
// place, all of them at once where they can be told apart.
func readAgents(ctx context.Context, path string, maxArtifact int64, log zerolog.Logger) ([]supervisor.Agent, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	page := page{path: path, text: text}
	var file agentsFile
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.Strict()); err != nil {
		return nil, page.unreadable(err)
	}
	var agents []supervisor.Agent
	var faults []error
	for _, id := range slices.Sorted(maps.Keys(file.Agents)) {
		a, err := file.Agents[id].build(ctx, id, filepath.Dir(path), maxArtifact, log)
		if err != nil {
			faults = append(faults, page.place(id, err))
			continue
		}
		agents = append(agents, a)
	}
	return agents, errors.Join(faults...)
}

// build makes an agent of its configuration, filling in the defaults.
func (c *agentConfig) build(ctx context.Context, id, base string, maxArtifact int64, log zerolog.Logger) (supervisor.Agent, error) {
	if c == nil {
		c = &agentConfig{}
	}
	c.AgentID = id
	c.MaxDuration, c.MaxSilence = c.MaxDuration.or(10*time.Minute), c.MaxSilence.or(5*time.Minute)
	c.MaxWait = c.MaxWait.or(24 * time.Hour)
	var runner agent.Runner
	var err error
	switch sections := c.sections(); {
	case agent.CheckID(id) != nil:
		err = fmt.Errorf("an agent's id %w", agent.CheckID(id))
	case c.Runtime == "":
		err = fault("runtime", "is missing: langgraph, sandbox or scripted")
	case c.Runtime != "langgraph" && c.Runtime != "sandbox" && c.Runtime != "scripted":
		err = fault("runtime", "%q is none of langgraph, sandbox, scripted", c.Runtime)
	case len(sections) != 1 || sections[0] != c.Runtime:
		err = fault("runtime", "%s needs a section %q, and no other", c.Runtime, c.Runtime)
	case c.Sandbox != nil:
		c.Sandbox.Timeout = c.Sandbox.Timeout.or(time.Duration(*c.MaxDuration))
		c.MaxDuration = least(c.MaxDuration, c.Sandbox.Timeout)
		runner, err = c.Sandbox.build(ctx, base, maxArtifact, log.With().Str("agent_id", id).Logger())
	case c.Scripted != nil:
		runner, err = c.Scripted.build(base)
	case c.LangGraph != nil:
		runner, err = c.LangGraph.build()
	}
	if err != nil {
		return supervisor.Agent{}, err
	}
	var snapshot bytes.Buffer
	encoder := json.NewEncoder(&snapshot)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(c); err != nil {
		return supervisor.Agent{}, err
	}
	return supervisor.Agent{
		ID: id, Runtime: c.Runtime, Runner: runner, Config: bytes.TrimSpace(snapshot.Bytes()),
		Limits: supervisor.Limits{Duration: time.Duration(*c.MaxDuration), Silence: time.Duration(*c.MaxSilence), Wait: time.Duration(*c.MaxWait)},
	}, nil
}

// sections returns the runtimes whose sections are there.
func (c *agentConfig) sections() (names []string) {
	if c.Sandbox != nil {
		names = append(names, "sandbox")
	}
	if c.Scripted != nil {
		names = append(names, "scripted")
	}
	if c.LangGraph != nil {
		names = append(names, "langgraph")
	}
	return names
}

func (c *sandboxConfig) build(ctx context.Context, base string, maxArtifact int64, log zerolog.Logger) (agent.Runner, error) {
	c.Memory, c.Disk, c.Output = c.Memory.or(512<<20), c.Disk.or(64<<20), c.Output.or(64<<20)
	if c.Processes == nil {
		processes := 64
		c.Processes = &processes
	}
	if c.Stdout == "" {
		c.Stdout = "events"
	}
	if c.Network == "" {
		c.Network = "false"
	}
	out := sandbox.Config{
		Command: c.Command, Env: c.Env, Secrets: make(map[string]string), Network: networks[c.Network], Text: c.Stdout == "text",
		Memory: int64(c.Memory), Disk: int64(c.Disk), Processes: *c.Processes, Output: int64(c.Output), MaxArtifact: maxArtifact,
	}
	var faults []error
	if len(c.Command) == 0 {
		faults = append(faults, fault("sandbox.command", "is missing"))
	}
	if c.Stdout != "events" && c.Stdout != "text" {
		faults = append(faults, fault("sandbox.stdout", "%q is neither events nor text", c.Stdout))
	}
	if *c.Processes < 1 {
		faults = append(faults, fault("sandbox.processes", "must be positive"))
	}
	for name, from := range c.EnvFrom {
		value, ok := os.LookupEnv(from)
		if !ok {
			faults = append(faults, fault("sandbox.env_from."+name, "%s is not set in the environment", from))
		}
		out.Secrets[name] = value
	}
	for _, text := range c.Mount {
		m, err := parseMount(text, base)
		if err != nil {
			faults = append(faults, err)
		}
		out.Mounts = append(out.Mounts, m)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return sandbox.New(ctx, out, log)
}

// parseMount reads source:target[:ro|rw].
func parseMount(text, base string) (sandbox.Mount, error) {
	parts := strings.Split(text, ":")
	if len(parts) == 2 {
		parts = append(parts, "ro")
	}
	if len(parts) != 3 || parts[0] == "" || !strings.HasPrefix(parts[1], "/") || parts[2] != "ro" && parts[2] != "rw" {
		return sandbox.Mount{}, fault("sandbox.mount", "%q is not source:/target, source:/target:ro or source:/target:rw", text)
	}
	source, err := filepath.Abs(within(base, parts[0]))
	return sandbox.Mount{Source: source, Target: parts[1], Writable: parts[2] == "rw"}, err
}

func within(base, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(base, path)
}

func (c *scriptedConfig) build(base string) (agent.Runner, error) {
	c.Pause = c.Pause.or(100 * time.Millisecond)
	if c.File == "" {
		return nil, fault("scripted.file", "is missing")
	}
	script, err := os.ReadFile(within(base, c.File))
	if err != nil {
		return nil, fault("scripted.file", "cannot be read: %v", err)
	}
	c.Checksum = runs.Checksum(script)
	runner, err := scripted.Parse(script, time.Duration(*c.Pause))
	if err != nil {
		return nil, fault("scripted.file", "%s: %v", c.File, err)
	}
	return runner, nil
}

func (c *langConfig) build() (agent.Runner, error) {
	var faults []error
	if u, err := url.Parse(c.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		// A password in it would end up in the snapshot.
		faults = append(faults, fault("langgraph.url", "must be http://… or https://…, without credentials"))
	}
	if c.Assistant == "" {
		faults = append(faults, fault("langgraph.assistant", "is missing"))
	}
	key := ""
	if c.APIKeyEnv != "" {
		var ok bool
		if key, ok = os.LookupEnv(c.APIKeyEnv); !ok {
			faults = append(faults, fault("langgraph.api_key_env", "%s is not set in the environment", c.APIKeyEnv))
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return langgraph.New(langgraph.Config{URL: c.URL, Assistant: c.Assistant, APIKey: key}), nil
}

// demoScript is what the demo agent says.
//
//go:embed demo.ndjson
var demoScript string

// demoID names the agent that --demo adds.
const demoID = "demo_agent"

// demoAgent is an agent for looking around: a sandbox where there can be one,
// else the same script played by this process.
func demoAgent(ctx context.Context, maxArtifact int64, log zerolog.Logger) (supervisor.Agent, error) {
	command := append([]string{"sh", "-c", `for event; do printf '%s\n' "$event"; sleep 0.2; done`, "demo"},
		strings.Split(strings.TrimSpace(demoScript), "\n")...)
	c := agentConfig{Runtime: "sandbox", Sandbox: &sandboxConfig{Command: command}}
	a, err := c.build(ctx, demoID, ".", maxArtifact, log)
	if err == nil {
		return a, nil
	}
	log.Info().Err(err).Msg("the demo agent is played without a sandbox")
	runner, err := scripted.Parse([]byte(demoScript), 200*time.Millisecond)
	if err != nil {
		return supervisor.Agent{}, err
	}
	return supervisor.Agent{ID: demoID, Runtime: "scripted", Runner: runner, Config: []byte(`{"agent_id":"demo_agent","runtime":"scripted"}`)}, nil
}

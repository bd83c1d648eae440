package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/supervisor"
	"github.com/runfacts/runfacts/transport/runner/sandbox"
)

// configure writes a configuration file and returns its path.
func configure(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runfacts.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigurationIsStrict(t *testing.T) {
	t.Setenv("RUNFACTS_TEST_SECRET", "hunter2")
	for text, want := range map[string][]string{
		"agents:\n  a:\n    runtime: scripted\n    scripted: {file: x, speed: 3}\n":                       {"[4:", "speed"},
		"agents:\n  a:\n    runtime: sandbox\n    sandbox: {command: [sh], memory: lots}\n":               {"agent a: sandbox.memory: [4:", `"lots"`},
		"agents:\n  a:\n    runtime: sandbox\n    sandbox: {command: [sh], timeout: 3}\n":                 {"agent a: sandbox.timeout: [4:", `"3"`},
		"agents:\n  a: {runtime: scripted}\n  b c:\n    max_silence: -1s\n":                               {"agent b c: max_silence: [4:", "negative"},
		"agents:\n  a:\n    runtime: sandbox\n    sandbox:\n      command: [sh]\n      processes: many\n": {"agent a: sandbox.processes: [6:"},
		"agents:\n  a:\n    runtime: sandbox\n    sandbox: {command: [sh], processes: 0}\n":               {"agent a: [4:", "sandbox.processes must be positive"},
		"agents:\n  a:\n    runtime: sandbox\n    sandbox: {command: [sh], memory: 0}\n":                  {"agent a: sandbox.memory: [4:"},
		"agents:\n  a:\n    runtime: sandbox\n    sandbox:\n      stdout: tea\n      command: sh\n":       {"agent a: sandbox.command: [6:"},
		"agents:\n  a:\n\n    runtime: scripted\n    scripted:\n      file: nowhere.ndjson\n":             {"agent a: [6:7] scripted.file", "nowhere.ndjson"},
		"agents:\n  \"\": {runtime: scripted}\n  a/b: {runtime: scripted}\n":                              {"[2:", "must not be blank", "agent a/b: [3:"},
		"agents:\n  a: {runtime: x}\n  a: {runtime: y}\n":                                                 {"[3:3]", "agent a"},
		"agents:\n  a:\n    runtime: sandbox\n    sandbox: {command: [sh], network: maybe}\n":             {"agent a: sandbox.network: [4:", `"maybe"`},
		"agents: [\n": {"[1:"},
		"agents:\n  a: {runtime: magic}\n  b: {}\n":                                                                 {"agent a", `"magic"`, "agent b", "runtime is missing"},
		"agents:\n  a: {runtime: scripted, sandbox: {command: [sh]}}\n":                                             {"agent a", `section "scripted"`},
		"agents:\n  a: {runtime: scripted, scripted: {}}\n":                                                         {"scripted.file is missing"},
		"agents:\n  a: {runtime: scripted, scripted: {file: nowhere.ndjson}}\n":                                     {"nowhere.ndjson"},
		"agents:\n  a: {runtime: sandbox, sandbox: {stdout: tea, mount: [x], env_from: {K: RUNFACTS_TEST_NONE}}}\n": {"command is missing", `"tea"`, `mount "x"`, "RUNFACTS_TEST_NONE is not set"},
		"agents:\n  a: {runtime: langgraph, langgraph: {url: \"http://u:p@h\", api_key_env: RUNFACTS_TEST_NONE}}\n": {"without credentials", "assistant is missing", "RUNFACTS_TEST_NONE is not set"},
		"agents: [1]\n": {"runfacts.yaml"},
	} {
		_, err := readAgents(t.Context(), configure(t, text), 1<<20, zerolog.Nop())
		if err == nil {
			t.Errorf("%s: no error", text)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s:\n%v\ndoes not say %s", text, err, part)
			}
		}
	}
}

// Nothing is not the same as 0: a limit of 0s is none, a pause of 0s is none.
func TestZeroIsNotAbsent(t *testing.T) {
	path := configure(t, "agents:\n  none: {runtime: scripted, max_duration: 0s, max_silence: 0s, max_wait: 0s, scripted: {file: s.ndjson, pause: 0s}}\n"+
		"  absent: {runtime: scripted, max_duration: null, scripted: {file: s.ndjson}}\n")
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "s.ndjson"), []byte(`{"type":"done"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	agents, err := readAgents(t.Context(), path, 1<<20, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range agents {
		want := supervisor.Limits{Duration: 10 * time.Minute, Silence: 5 * time.Minute, Wait: 24 * time.Hour}
		text := `"max_duration":"10m0s"`
		if a.ID == "none" {
			want, text = supervisor.Limits{}, `"max_duration":"0s"`
		}
		if a.Limits != want || !strings.Contains(string(a.Config), text) {
			t.Errorf("%s: %+v %s", a.ID, a.Limits, a.Config)
		}
	}
	hour, day, never := duration(time.Hour), duration(24*time.Hour), duration(0)
	for _, c := range [][3]*duration{{&hour, &day, &hour}, {&day, &hour, &hour}, {&never, &hour, &hour}, {&hour, &never, &hour}, {&never, &never, &never}} {
		if got := least(c[0], c[1]); *got != *c[2] {
			t.Errorf("least of %d and %d is %d", *c[0], *c[1], *got)
		}
	}
}

// The snapshot is the effective configuration: defaults filled in, secrets by
// name only. It is the same for the same configuration.
func TestSnapshotIsTheEffectiveConfiguration(t *testing.T) {
	need(t, "bwrap")
	t.Setenv("RUNFACTS_TEST_SECRET", "hunter2")
	path := configure(t, "agents:\n  shell:\n    runtime: sandbox\n    sandbox:\n      command: [sh, -c, 'echo <hi>']\n      memory: 1GiB\n"+
		"      timeout: 90s\n      env_from: {KEY: RUNFACTS_TEST_SECRET}\n")
	agents, err := readAgents(t.Context(), path, 1<<20, zerolog.Nop())
	if err != nil {
		if strings.Contains(err.Error(), "cannot be set up here") {
			t.Skip("this machine allows no sandboxes: ", err)
		}
		t.Fatal(err)
	}
	again, err := readAgents(t.Context(), path, 1<<20, zerolog.Nop())
	if err != nil || string(again[0].Config) != string(agents[0].Config) {
		t.Errorf("read again it is %s, %v", again[0].Config, err)
	}
	want := `{"agent_id":"shell","runtime":"sandbox","max_duration":"1m30s","max_silence":"5m0s","max_wait":"24h0m0s","sandbox":{"command":["sh","-c","echo <hi>"],` +
		`"env_from":{"KEY":"RUNFACTS_TEST_SECRET"},"network":false,"stdout":"events","timeout":"1m30s","memory":1073741824,"disk":67108864,"output":67108864,"processes":64}}`
	if got := string(agents[0].Config); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !json.Valid(agents[0].Config) || agents[0].Limits.Duration.String() != "1m30s" {
		t.Errorf("%+v", agents[0].Limits)
	}
}

func TestTheDemoAgentHasItsNameToItself(t *testing.T) {
	path := configure(t, "agents:\n  demo_agent: {runtime: scripted, scripted: {file: s.ndjson}}\n")
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "s.ndjson"), []byte(`{"type":"done"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	code := run(t.Context(), []string{"serve", "--demo", "--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--config", path}, &errs, &errs)
	if code != 1 || !strings.Contains(errs.String(), "demo_agent") {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}

func TestServeRefusesAConfigurationThatIsWrong(t *testing.T) {
	var errs strings.Builder
	code := run(t.Context(), []string{"serve", "--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--config", configure(t, "agent: {}\n")}, &errs, &errs)
	if code != 1 || !strings.Contains(errs.String(), "[1:1]") {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}

// What a sandbox's network is written as, and told as in its snapshot.
func TestNetworkIsFalseTrueOrHost(t *testing.T) {
	for text, want := range map[string]sandbox.Network{"false": sandbox.NoNetwork, "true": sandbox.OwnNetwork, "host": sandbox.HostNetwork} {
		var c sandboxConfig
		if err := yaml.Unmarshal([]byte("network: "+text), &c); err != nil || networks[c.Network] != want {
			t.Errorf("%s: %v, %v", text, c.Network, err)
		}
		if told, err := json.Marshal(c.Network); err != nil || strings.Trim(string(told), `"`) != text {
			t.Errorf("%s: %s, %v", text, told, err)
		}
	}
}

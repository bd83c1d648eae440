package main

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
	"go.uber.org/goleak"

	"github.com/runfacts/runfacts/transport/runner/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Setup() // of the tests' own sandboxes
	if os.Getenv(asBinary) != "" {
		main()
		return
	}
	// The store's client may leave an idle connection behind when one breaks
	// (BUG in transport/eventstore).
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("google.golang.org/grpc/internal/grpcsync.(*CallbackSerializer).run"))
}

func TestAWrongCommandLineExitsWith2AndSaysWhy(t *testing.T) {
	for line, want := range map[string]string{
		"":                                "serve",
		"serve --keep-alive 0s":           "--keep-alive",
		"serve --public-url runs.example": "--public-url",
		"serve --cors-origin *":           "--cors-origin",
		"serve --cors-origin a.example":   "--cors-origin",
		"serve --cors-origin https://a.example,https://a.example/x": "--cors-origin",
		"serve --cors-origin-write https://a.example?x":             "--cors-origin-write",
		"dance":                                               "dance",
		"serve --no-such-flag":                                "no-such-flag",
		"serve --listen 0.0.0.0:0":                            "--insecure-listen",
		"serve --listen :0":                                   "--insecure-listen",
		"serve --listen nonsense":                             "--listen",
		"eventstore --listen 10.0.0.1:1":                      "--insecure-listen",
		"serve --max-append 5":                                "--max-append",
		"serve --store-patience 0s":                           "--store-patience",
		"serve --log-level loud":                              "log-level",
		"serve --rehearse worst":                              "--demo",
		"eventstore --rehearse sloth":                         "sloth",
		"serve --demo --rehearse sloth":                       "sloth",
		"serve --demo --rehearse worst --eventstore esdb://h": "--eventstore",
	} {
		var out, errs bytes.Buffer
		if code := run(context.Background(), strings.Fields(line), &out, &errs); code != 2 || !strings.Contains(errs.String()+out.String(), want) {
			t.Errorf("%q: exit %d, %s", line, code, errs.String())
		}
	}
}

func TestAConnectionStringIsNeverQuoted(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(context.Background(), []string{"serve", "--listen", "127.0.0.1:0", "--eventstore", "esdb://admin:s3cret@[bad"}, &out, &errs)
	if code != 1 || strings.Contains(errs.String(), "s3cret") {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}

func TestVersionAndUsage(t *testing.T) {
	for line, want := range map[string]string{
		"version": "runfacts ", "--version": "runfacts ", "help": "Usage: runfacts <command>", "--help": "Usage: runfacts <command>", "serve --help": "--cors-origin-write",
	} {
		var out, errs bytes.Buffer
		if code := run(context.Background(), strings.Fields(line), &out, &errs); code != 0 || !strings.Contains(out.String(), want) || errs.Len() > 0 {
			t.Errorf("%q: exit %d: %s%s", line, code, out.String(), errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := run(context.Background(), nil, &out, &errs); code != 2 || !strings.Contains(errs.String(), "Usage: runfacts <command>") || !strings.Contains(errs.String(), "serve") || out.Len() > 0 {
		t.Errorf("exit %d: %s%s", code, out.String(), errs.String())
	}
}

func TestOriginsAreWrittenAsBrowsersDo(t *testing.T) {
	var c cli
	parser, err := kong.New(&c, kong.Vars{"version": ""})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"serve", "--cors-origin", "HTTPS://Page.Example:443", "--cors-origin-write", "http://localhost:5173", "--public-url", "https://runs.example/"}); err != nil {
		t.Fatal(err)
	}
	if c.Serve.CORSOrigin[0] != "https://page.example" || c.Serve.CORSWriter[0] != "http://localhost:5173" || c.Serve.PublicURL != "https://runs.example" {
		t.Errorf("%+v", c.Serve)
	}
	if c.Serve.pushLease() < 5*time.Minute {
		t.Errorf("whoever reads the README slowly loses the run after %s", c.Serve.pushLease())
	}
}

// What the compose file and the image pass to the binary is what it takes: no
// Docker is needed to know that.
func TestTheComposeFileSpeaksOurLanguage(t *testing.T) {
	text, err := os.ReadFile("../../docker/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var compose struct {
		Services map[string]struct {
			Image       string
			Environment map[string]string
			Ports       []string
			Healthcheck struct{ Test []string }
			Build       struct {
				Context, Dockerfile string
				Args                map[string]string
			}
			Volumes []string
		}
	}
	if err := yaml.Unmarshal(text, &compose); err != nil {
		t.Fatal(err)
	}
	ours, store := compose.Services["runfacts"], compose.Services["eventstore"]
	for key, value := range ours.Environment {
		t.Setenv(key, value)
	}
	dockerfile, err := os.ReadFile("../../docker/" + strings.TrimPrefix(ours.Build.Dockerfile, "docker/"))
	if err != nil || !strings.Contains(string(dockerfile), "RUNFACTS_DATA_DIR=/data") || !strings.Contains(string(dockerfile), `CMD ["serve"]`) {
		t.Errorf("Dockerfile: %v", err)
	}
	var c cli
	parser, err := kong.New(&c, kong.Vars{"version": ""})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"serve"}); err != nil {
		t.Fatal(err)
	}
	if c.Serve.Eventstore != "esdb://eventstore:2113?tls=false" || c.Serve.Listen != "0.0.0.0:8080" || !c.Serve.InsecureListen {
		t.Errorf("serve understands %+v", c.Serve)
	}
	if !slices.Contains(ours.Volumes, "runfacts-data:/data") {
		t.Errorf("artifacts' bytes are gone with the container: %v", ours.Volumes)
	}
	if ours.Build.Args["VERSION"] != "${VERSION:-}" || !strings.Contains(string(dockerfile), "main.version=${VERSION}") {
		t.Errorf("the version does not reach the binary: %v", ours.Build.Args)
	}
	check := ours.Healthcheck.Test
	if len(check) < 3 || check[0] != "CMD" {
		t.Fatalf("health check %v", check)
	}
	if _, err := parser.Parse(check[2:]); err != nil {
		t.Errorf("health check %v: %v", check, err)
	}
	for _, port := range append(ours.Ports, store.Ports...) {
		if !strings.HasPrefix(port, "127.0.0.1:") {
			t.Errorf("port %s is open to strangers", port)
		}
	}
	if !strings.HasSuffix(store.Image, ":24.6") || store.Environment["EVENTSTORE_INSECURE"] != "true" {
		t.Errorf("store %+v", store)
	}
}

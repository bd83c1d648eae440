// Command runfacts makes AI-agent runs into facts: it commits what runtimes
// report to EventStoreDB and serves what is committed.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/runfacts/runfacts/transport/runner/sandbox"
)

// version is set by the linker in releases.
var version = ""

type cli struct {
	Serve      serveCmd      `cmd:"" help:"Serve the HTTP API, on an EventStoreDB or on the embedded node."`
	Eventstore eventstoreCmd `cmd:"" help:"Run the embedded EventStoreDB node alone, for several processes or other clients."`
	Ready      readyCmd      `cmd:"" help:"Ask a running server whether it is ready; exits 0 if so."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
	Help       helpCmd       `cmd:"" help:"Print this."`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version."`
}

func main() {
	sandbox.Setup() // where this process is there to set one up
	plainly(streams{os.Stdout, os.Stderr})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process as it ends any other
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run parses and runs one command, until it is done or ctx ends. It returns
// the exit code: 0, 1 for a failure, 2 for a command line that is wrong.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	exit := -1 // what a flag such as --help wants
	parser, err := kong.New(&c, kong.Name("runfacts"), kong.Writers(stdout, stderr), kong.Exit(func(code int) { exit = code }),
		kong.Vars{"version": versionText()},
		kong.Description("Makes AI-agent runs into facts: committed to EventStoreDB first, served from there."))
	if err != nil {
		fmt.Fprintln(stderr, "runfacts:", err)
		return 1
	}
	if len(args) == 0 {
		return usage(parser, stderr, 2)
	}
	command, err := parser.Parse(args)
	if exit >= 0 {
		return exit
	}
	if err != nil {
		fmt.Fprintf(stderr, "runfacts: %v\nRun \"runfacts --help\" for the flags.\n", err)
		return 2
	}
	command.BindTo(ctx, (*context.Context)(nil))
	command.Bind(streams{stdout, stderr}, parser)
	if err := command.Run(); err != nil {
		fmt.Fprintln(stderr, "runfacts:", err)
		return 1
	}
	return 0
}

// usage prints what there is, and returns code.
func usage(parser *kong.Kong, to io.Writer, code int) int {
	parser.Stdout = to
	command, err := kong.Trace(parser, nil)
	if err == nil {
		err = command.PrintUsage(false)
	}
	if err != nil {
		fmt.Fprintln(to, "runfacts:", err)
		return 1
	}
	return code
}

// streams are where commands write.
type streams struct{ out, err io.Writer }

type helpCmd struct{}

func (helpCmd) Run(s streams, parser *kong.Kong) error {
	usage(parser, s.out, 0)
	return nil
}

type versionCmd struct{}

func (versionCmd) Run(s streams) error {
	_, err := fmt.Fprintln(s.out, versionText())
	return err
}

func versionText() string {
	v, module := version, ""
	if info, ok := debug.ReadBuildInfo(); ok {
		module = info.GoVersion
		if v == "" {
			v = info.Main.Version
		}
	}
	return fmt.Sprintf("runfacts %s (%s)", v, module)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/runfacts/runfacts/transport/embedded"
)

// storeFolder is where the embedded node keeps its data, under --data-dir.
const storeFolder = "eventstore"

type eventstoreCmd struct {
	Run_  runNodeCmd   `cmd:"" name:"run" default:"withargs" help:"Run the node (the default)."`
	Check checkNodeCmd `cmd:"" help:"Walk a stopped node's data and verify every event, and every blob."`
}

type dataFlags struct {
	DataDir string `default:"./data" env:"RUNFACTS_DATA_DIR" help:"Folder of the embedded node's data."`
}

func (d dataFlags) store() string { return filepath.Join(d.DataDir, storeFolder) }

type runNodeCmd struct {
	dataFlags
	logFlags
	rehearseFlags
	Listen         string `default:"127.0.0.1:2113" env:"RUNFACTS_LISTEN" help:"Address to listen on."`
	InsecureListen bool   `env:"RUNFACTS_INSECURE_LISTEN" help:"Listen beyond loopback although there is no authentication."`
}

// Validate is called by kong: what is wrong here is a wrong command line.
func (c *runNodeCmd) Validate() error {
	_, err := c.rehearsal()
	return errors.Join(checkListen(c.Listen, c.InsecureListen), err)
}

// Run serves until ctx ends.
func (c *runNodeCmd) Run(ctx context.Context, s streams) (err error) {
	rehearsal, err := c.rehearsal()
	if err != nil {
		return err
	}
	node, err := embedded.Open(embedded.Config{Addr: c.Listen, DataDir: c.store(), Log: c.logger(s), Rehearse: rehearsal})
	if err != nil {
		return err
	}
	if rehearsal != nil {
		var fail context.CancelCauseFunc
		ctx, fail = context.WithCancelCause(ctx)
		defer supervise(&err, fail, func(ctx context.Context) error { return setBackOnSignal(ctx, node) })()
	}
	fmt.Fprintf(s.out, "EventStoreDB protocol, without authentication: %s\n", node.ConnectionString())
	return node.Run(ctx)
}

type checkNodeCmd struct {
	dataFlags
	blobFlags
}

func (c *checkNodeCmd) Run(s streams) error {
	report, err := embedded.Check(c.store())
	if err == nil {
		_, err = fmt.Fprintln(s.out, report)
	}
	return errors.Join(err, checkBlobs(s, c.blobs(c.dataFlags)))
}

package main

import (
	"fmt"
	"net"
	"os"

	"github.com/rs/zerolog"
)

// checkListen refuses an address that strangers can reach, unless the flag
// says that this is meant: nothing here asks for a password.
func checkListen(address string, insecure bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--listen %q: %w", address, err)
	}
	ip := net.ParseIP(host)
	if host == "localhost" || ip != nil && ip.IsLoopback() || insecure {
		return nil
	}
	return fmt.Errorf("--listen %s is beyond loopback and there is no authentication: "+
		"keep it behind something that has, and say --insecure-listen", address)
}

// logger writes for people on a terminal, JSON elsewhere.
func (l logFlags) logger(s streams) zerolog.Logger {
	out := s.err
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			out = zerolog.ConsoleWriter{Out: f, TimeFormat: "15:04:05.000"}
		}
	}
	level, err := zerolog.ParseLevel(l.LogLevel)
	if err != nil {
		level = zerolog.InfoLevel // kong has let only known names through
	}
	return zerolog.New(out).Level(level).With().Timestamp().Logger()
}

type logFlags struct {
	LogLevel string `enum:"trace,debug,info,warn,error" default:"info" env:"RUNFACTS_LOG_LEVEL" help:"Least severe log level: trace, debug, info, warn or error."`
}

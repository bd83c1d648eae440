package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"strings"

	"github.com/rs/zerolog"
)

// checkListen refuses an address that strangers can reach, unless the flag
// says that this is meant: nothing here asks for a password.
func checkListen(address string, insecure bool) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("--listen %q: %w", address, err)
	}
	if loopback(address) || insecure {
		return nil
	}
	return fmt.Errorf("--listen %s is beyond loopback and there is no authentication: "+
		"keep it behind something that has, and say --insecure-listen", address)
}

// loopback reports whether only this machine can reach an address.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Log lines of one second have an order.
func init() { zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00" }

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

// plain is a log of lines, such as net/http writes, that become lines like all
// others.
func plain(l zerolog.Logger) *log.Logger { return log.New(lines{l, "net/http"}, "", 0) }

type lines struct {
	log  zerolog.Logger
	from string
}

func (l lines) Write(b []byte) (int, error) {
	l.log.Warn().Str("from", l.from).Msg(strings.TrimSpace(string(b)))
	return len(b), nil
}

// plainly makes what libraries write by the standard logger lines like all others.
func plainly(s streams) {
	log.SetFlags(0)
	log.SetOutput(lines{logFlags{LogLevel: "info"}.logger(s), "standard log"})
}

type logFlags struct {
	LogLevel string `enum:"trace,debug,info,warn,error" default:"info" env:"RUNFACTS_LOG_LEVEL" help:"Least severe log level: trace, debug, info, warn or error."`
}

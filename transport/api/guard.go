package api

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
)

// ParseOrigin reads an origin as a browser sends it: a scheme, a host, perhaps a
// port, and nothing else. The result is in the spelling that browsers use.
func ParseOrigin(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q is not an origin: it cannot be parsed", text)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Hostname() == "":
		return "", fmt.Errorf("%q is not an origin: it must be http://host or https://host, with a port where it has one", text)
	case u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.User != nil || strings.Contains(text, "#"):
		return "", fmt.Errorf("%q is not an origin: nothing may stand behind the host and its port", text)
	case strings.ContainsFunc(u.Host, func(r rune) bool { return r > '~' }):
		return "", fmt.Errorf("%q is not an origin: write the host as browsers send it, xn--…", text)
	case strings.ContainsAny(u.Host, "*?"):
		return "", fmt.Errorf("%q is not an origin: name each of them, there are no patterns", text)
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" && port != map[string]string{"http": "80", "https": "443"}[u.Scheme] {
		host += ":" + port
	}
	return u.Scheme + "://" + host, nil
}

// guard keeps out what a browser can be made to send by a page of somebody else,
// and what cannot be understood: it stands before every handler.
type guard struct {
	anyHost bool                       // strangers may come, by whatever name
	public  string                     // the host of the public URL; "": none
	writers http.CrossOriginProtection // knows the origins that may write
}

func newGuard(c Config) (*guard, error) {
	g := &guard{anyHost: c.AnyHost}
	for _, origin := range c.CORSWriters {
		if err := g.writers.AddTrustedOrigin(origin); err != nil {
			return nil, err
		}
	}
	if c.PublicOrigin != "" {
		u, err := url.Parse(c.PublicOrigin)
		if err != nil {
			return nil, err
		}
		g.public = strings.ToLower(u.Hostname())
		if err := g.writers.AddTrustedOrigin(c.PublicOrigin); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// check is the middleware.
func (g *guard) check(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if !g.knows(r.Host) {
			// DNS rebinding: a page's own name that has come to mean this machine.
			return &problem{http.StatusMisdirectedRequest, "misdirected", "this server does not go by that name (Host); say --public-url if it should", nil}
		}
		if g.writers.Check(r) != nil {
			return &problem{http.StatusForbidden, "foreign_origin", "a page of another origin may not write here; say --cors-origin-write if it should", nil}
		}
		// net/url drops in silence what it cannot parse.
		if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
			return &problem{http.StatusBadRequest, "invalid_query", "the query cannot be parsed", nil}
		}
		return next(c)
	}
}

// knows reports whether a request for host is meant for this server.
func (g *guard) knows(host string) bool {
	if g.anyHost || host == "" { // only HTTP/1.0 has none, and no browser speaks that
		return true
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	ip, err := netip.ParseAddr(name)
	switch {
	case err == nil:
		return ip.Unmap().IsLoopback()
	case name == "localhost", strings.HasSuffix(name, ".localhost"), name == g.public && name != "":
		return true
	}
	// A name without a dot is this machine's own (a container's, an entry in
	// /etc/hosts): nobody can register one, so that no page of somebody else bears it.
	return name != "" && !strings.ContainsAny(name, ".:")
}

// cors lets pages of other origins read, and those of some write as well.
func cors(readers, writers []string) []echo.MiddlewareFunc {
	writes := make(map[string]bool)
	for _, origin := range writers {
		writes[origin] = true
	}
	allow := func(origins []string, methods ...string) middleware.CORSConfig {
		return middleware.CORSConfig{
			AllowOrigins:  origins,
			AllowMethods:  methods,
			AllowHeaders:  []string{"Last-Event-ID", echo.HeaderContentType, echo.HeaderContentEncoding, echo.HeaderAuthorization, echo.HeaderCacheControl, echo.HeaderXRequestID, "Traceparent"},
			ExposeHeaders: []string{echo.HeaderLocation, echo.HeaderRetryAfter, echo.HeaderXRequestID},
			MaxAge:        600,
		}
	}
	var all []echo.MiddlewareFunc
	if len(writers) > 0 {
		c := allow(writers, http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete)
		c.Skipper = func(c echo.Context) bool { return !writes[c.Request().Header.Get(echo.HeaderOrigin)] }
		all = append(all, middleware.CORSWithConfig(c))
	}
	if len(readers) > 0 {
		c := allow(readers, http.MethodGet, http.MethodHead)
		c.Skipper = func(c echo.Context) bool { return writes[c.Request().Header.Get(echo.HeaderOrigin)] }
		all = append(all, middleware.CORSWithConfig(c))
	}
	return all
}

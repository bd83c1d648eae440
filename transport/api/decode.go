package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// param returns a part of the path, decoded once. The router sees every path as
// it was sent (New), so that this is the only decoding.
func param(c echo.Context, name string) string {
	text, err := url.PathUnescape(c.Param(name))
	if err != nil { // net/url has let no such path through
		return ""
	}
	return text
}

// runID reads the path. Text that cannot name a run names none.
func runID(c echo.Context) (run.ID, error) {
	id, err := run.ParseID(param(c, "run_id"))
	if err != nil {
		return "", ledger.ErrNotFound
	}
	return id, nil
}

func producerOf(c echo.Context) (string, error) {
	producer := c.QueryParam("producer")
	if len(producer) > maxName || !utf8.ValidString(producer) {
		return "", invalid("producer", "producer is too long or not UTF-8")
	}
	return producer, nil
}

// maxExact is the largest whole number that every JSON reader keeps exact.
const maxExact = 1<<53 - 1

// epochOf tells two lives of one producer apart; absent is 0.
func epochOf(c echo.Context) (uint64, error) {
	if !c.QueryParams().Has("epoch") {
		return 0, nil
	}
	text := c.QueryParam("epoch")
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > maxExact {
		return 0, invalid("epoch", "epoch is a whole number from 0 to 2^53-1")
	}
	return n, nil
}

// readBody reads a small JSON body whole. A request without any body has none to
// declare.
func readBody(c echo.Context) ([]byte, error) {
	r := c.Request()
	if r.ContentLength != 0 || r.Header.Get(echo.HeaderContentType) != "" {
		if err := wants(c, echo.MIMEApplicationJSON); err != nil {
			return nil, err
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &problem{http.StatusRequestEntityTooLarge, "body_too_large", "the body is larger than 4 MiB", nil}
	case err != nil:
		return nil, err
	case !utf8.Valid(body):
		return nil, &problem{http.StatusBadRequest, "invalid_json", "the body is not UTF-8", nil}
	}
	return body, nil
}

// decode tells what cannot be parsed (400) from what parses and is wrong (422).
// A member that into does not know, to the letter, is wrong: what is dropped in
// silence is lost.
func decode(body []byte, into any) error {
	var members map[string]json.RawMessage
	err := json.Unmarshal(body, &members)
	var mistyped *json.UnmarshalTypeError
	switch {
	case errors.As(err, &mistyped) || err == nil && members == nil:
		return invalid("", "the body must be a JSON object")
	case tooDeep(err):
		return invalid("", "the body "+agent.ErrTooDeep.Error())
	case err != nil:
		return &problem{http.StatusBadRequest, "invalid_json", err.Error(), nil}
	}
	known := names(into)
	for name := range members {
		if !slices.Contains(known, name) {
			return invalid(name, fmt.Sprintf("%q is not a member that is known here: %s", name, strings.Join(known, ", ")))
		}
	}
	if err := json.Unmarshal(body, into); errors.As(err, &mistyped) && mistyped.Field != "" {
		return invalid(mistyped.Field, mistyped.Field+" must not be a "+mistyped.Value)
	} else if err != nil {
		return invalid("", err.Error())
	}
	return nil
}

// tooDeep reports whether encoding/json gave up on what is nested too deep for it,
// and so for us: it parses, and is wrong.
func tooDeep(err error) bool {
	var syntax *json.SyntaxError
	return errors.As(err, &syntax) && strings.HasSuffix(syntax.Error(), "exceeded max depth")
}

// names returns the members that a pointer to a struct reads.
func names(into any) (all []string) {
	t := reflect.TypeOf(into).Elem()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		all = append(all, name)
	}
	return all
}

// value brings a member's JSON into its stored form.
func value(field string, raw json.RawMessage) (json.RawMessage, error) {
	compact, err := agent.Compact(raw)
	switch {
	case errors.Is(err, agent.ErrTooDeep):
		return nil, invalid(field, field+" "+err.Error())
	case err != nil:
		return nil, invalid(field, field+" cannot be read")
	}
	return compact, nil
}

func invalid(field, detail string) *problem {
	p := &problem{http.StatusUnprocessableEntity, "invalid_request", detail, nil}
	if field != "" {
		p.with("field", field)
	}
	return p
}

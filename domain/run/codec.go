package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
)

// TimeFormat is how every time is written: UTC with six digits.
const TimeFormat = "2006-01-02T15:04:05.000000Z"

// codec goes through the members of one object, each of which stands once in the
// code, for writing and for reading. Written, they come in the order of the
// calls. Read, they are found by their exact names, whatever else is there: what
// a producer gives can never be taken for what is ours.
type codec struct {
	out *object  // writing; nil: reading
	in  []Member // reading
	err error    // the first member that is not what it must be
}

// has reports whether the member that is read is given; null counts as absent.
func (c *codec) has(k string) (json.RawMessage, bool) {
	for i := range c.in {
		if c.in[i].Key == k {
			return c.in[i].Value, string(c.in[i].Value) != "null"
		}
	}
	return nil, false
}

func (c *codec) fail(k, want string) {
	if c.err == nil {
		c.err = fmt.Errorf("%s is not %s", k, want)
	}
}

func unquote(literal []byte) string { return agent.Unquote(literal).String() }

func (c *codec) readString(k string, v *string) {
	if raw, ok := c.has(k); ok {
		if raw[0] != '"' {
			c.fail(k, "a string")
			return
		}
		*v = unquote(raw)
	}
}

// str is a string that is always there.
func (c *codec) str(k string, v *string) {
	if c.out == nil {
		c.readString(k, v)
		return
	}
	c.out.str(k, *v)
}

// given is a string that is left out where it is empty.
func (c *codec) given(k string, v *string) {
	if c.out == nil || *v != "" {
		c.str(k, v)
	}
}

// orNull is a string that is null where it is empty.
func (c *codec) orNull(k string, v *string) {
	if c.out != nil && *v == "" {
		c.out.raw(k, []byte("null"))
		return
	}
	c.str(k, v)
}

func (c *codec) num(k string, v *uint64) {
	if c.out != nil {
		c.out.num(k, *v)
		return
	}
	if raw, ok := c.has(k); ok {
		n, err := strconv.ParseUint(string(raw), 10, 64)
		if err != nil {
			c.fail(k, "a whole number")
		}
		*v = n
	}
}

// count is a number that is left out where it is 0.
func (c *codec) count(k string, v *uint64) {
	if c.out == nil || *v != 0 {
		c.num(k, v)
	}
}

func (c *codec) flag(k string, v *bool) {
	if c.out != nil {
		c.out.raw(k, strconv.AppendBool(nil, *v))
		return
	}
	if raw, ok := c.has(k); ok {
		if *v = string(raw) == "true"; !*v && string(raw) != "false" {
			c.fail(k, "true or false")
		}
	}
}

// onlyTrue is a flag that is left out where it is false.
func (c *codec) onlyTrue(k string, v *bool) {
	if c.out == nil || *v {
		c.flag(k, v)
	}
}

// raw is a value that is kept as it was given, null where there is none.
func (c *codec) raw(k string, v *json.RawMessage) {
	if c.out == nil {
		for i := range c.in {
			if c.in[i].Key == k {
				*v = c.in[i].Value
			}
		}
		return
	}
	if *v == nil {
		c.out.raw(k, []byte("null"))
		return
	}
	c.out.raw(k, *v)
}

// givenRaw is such a value that is left out where there is none.
func (c *codec) givenRaw(k string, v *json.RawMessage) {
	if c.out == nil || *v != nil {
		c.raw(k, v)
	}
}

// time is written with six digits. Read, the zero value stands where it is not given.
func (c *codec) time(k string, v *time.Time) {
	if c.out != nil {
		c.out.str(k, v.UTC().Format(TimeFormat))
		return
	}
	var text string
	c.readString(k, &text)
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		*v = t.UTC()
	} else {
		c.fail(k, "a time")
	}
}

// object is a nested object; present says whether it is to be written, or was
// there to be read.
func (c *codec) object(k string, present bool, fields func(*codec)) bool {
	if c.out != nil {
		if present {
			inner := codec{out: newObject(128)}
			fields(&inner)
			c.out.raw(k, inner.out.close())
		}
		return present
	}
	raw, ok := c.has(k)
	if !ok {
		return false
	}
	if raw[0] != '{' {
		c.fail(k, "an object")
		return false
	}
	inner := codec{in: members(raw)}
	fields(&inner)
	if inner.err != nil && c.err == nil {
		c.err = fmt.Errorf("%s: %w", k, inner.err)
	}
	return true
}

// labels is an object of strings, left out where it is empty.
func (c *codec) labels(k string, v *map[string]string) {
	c.object(k, len(*v) > 0, func(c *codec) {
		if c.out != nil {
			for _, key := range slices.Sorted(maps.Keys(*v)) {
				c.out.foreign(Member{key, appendString(nil, (*v)[key])})
			}
			return
		}
		*v = make(map[string]string, len(c.in))
		for _, m := range c.in {
			var value string
			c.readString(m.Key, &value)
			(*v)[m.Key] = value
		}
	})
}

// texts is a list of strings, left out where it is empty.
func (c *codec) texts(k string, v *[]string) {
	if c.out != nil {
		if len(*v) == 0 {
			return
		}
		list := []byte{'['}
		for i, text := range *v {
			if i > 0 {
				list = append(list, ',')
			}
			list = appendString(list, text)
		}
		c.out.raw(k, append(list, ']'))
		return
	}
	if raw, ok := c.has(k); ok && json.Unmarshal(raw, v) != nil {
		c.fail(k, "a list of strings")
	}
}

// rest is every member whose name is none of ours, in its order.
func (c *codec) rest(ours []string, v *[]Member) {
	if c.out != nil {
		for _, m := range *v {
			c.out.foreign(m)
		}
		return
	}
	for _, m := range c.in {
		if !slices.Contains(ours, m.Key) {
			*v = append(*v, m)
		}
	}
}

// errNoObject: what should be an object is none.
var errNoObject = errors.New("it is not a JSON object")

// read begins to read an object.
func read(object []byte) (*codec, error) {
	if !json.Valid(object) {
		return nil, errNoObject
	}
	s := scanner{b: object}
	if s.space(); object[s.i] != '{' {
		return nil, errNoObject
	}
	return &codec{in: members(object)}, nil
}

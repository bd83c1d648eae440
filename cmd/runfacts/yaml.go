package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// keyFault is what is wrong with the value of one key of an agent.
type keyFault struct{ key, reason string }

func (f *keyFault) Error() string { return f.key + " " + f.reason }

// fault says what is wrong with an agent's key, sandbox.memory for example.
func fault(key, format string, args ...any) error {
	return &keyFault{key, fmt.Sprintf(format, args...)}
}

// wrong says what is wrong with a value while it is read.
func wrong(node ast.Node, format string, args ...any) error {
	return &yaml.SyntaxError{Message: fmt.Sprintf(format, args...), Token: node.GetToken()}
}

// page is a configuration file's text, which knows where in it things stand.
type page struct {
	path string
	text []byte
}

// unreadable names the agent and the key that a fault of YAML belongs to, beside
// its line and what stands there.
func (p *page) unreadable(err error) error {
	where := ""
	var located yaml.Error
	if errors.As(err, &located) && located.GetToken() != nil {
		keys := p.keys(located.GetToken().Position)
		if len(keys) > 1 && keys[0] == "agents" {
			where = " agent " + keys[1] + ":"
			keys = keys[2:]
		}
		if len(keys) > 0 {
			where += " " + strings.Join(keys, ".") + ":"
		}
	}
	return fmt.Errorf("%s:%s %s", p.path, where, yaml.FormatError(err, false, true))
}

// place names where in the file the faults of an agent stand, one a line.
func (p *page) place(id string, err error) error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		var all []error
		for _, one := range joined.Unwrap() {
			all = append(all, p.place(id, one))
		}
		return errors.Join(all...)
	}
	keys := []string{"agents", id}
	var at *keyFault
	if errors.As(err, &at) {
		keys = append(keys, strings.Split(at.key, ".")...)
	}
	position := ""
	if place := p.position(keys); place != nil {
		position = fmt.Sprintf("[%d:%d] ", place.Line, place.Column)
	}
	return fmt.Errorf("%s: agent %s: %s%w", p.path, id, position, err)
}

// top returns the members of the document.
func (p *page) top() []*ast.MappingValueNode {
	file, err := parser.ParseBytes(p.text, 0, parser.AllowDuplicateMapKey())
	if err != nil || len(file.Docs) == 0 {
		return nil
	}
	return members(file.Docs[0].Body)
}

func members(node ast.Node) []*ast.MappingValueNode {
	switch n := node.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

// keys returns the keys on the way to a position.
func (p *page) keys(at *token.Position) (keys []string) {
	for level := p.top(); ; {
		var last *ast.MappingValueNode
		for _, m := range level {
			if from := m.Key.GetToken().Position; from.Line < at.Line || from.Line == at.Line && from.Column <= at.Column {
				last = m
			}
		}
		if last == nil {
			return keys
		}
		keys = append(keys, last.Key.GetToken().Value)
		level = members(last.Value)
	}
}

// position returns where the value of a key stands, or what comes nearest to it.
func (p *page) position(keys []string) (at *token.Position) {
	level := p.top()
	for _, key := range keys {
		var found *ast.MappingValueNode
		for _, m := range level {
			if m.Key.GetToken().Value == key {
				found = m
			}
		}
		if found == nil {
			return at
		}
		at, level = found.Key.GetToken().Position, members(found.Value)
	}
	return at
}

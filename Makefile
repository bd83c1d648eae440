# make run: serve on the embedded node, with a demo agent. make test: every test. See README.md.

VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null)
LINTER   := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 30s

.PHONY: build run test lint bench fuzz clean

build:
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/runfacts ./cmd/runfacts

run: build
	bin/runfacts serve --demo

test:
	go vet ./...
	go test -race -timeout 10m ./...

# Whole-program checks, and the rule that arrows point inwards (.golangci.yaml).
lint:
	go run $(LINTER) run ./...

# Ratios to an append+fdatasync file with group commit, in one run.
bench:
	go test -run '^$$' -bench . -benchtime 2s ./cmd/... ./domain/... ./projection/... ./transport/...

# Each fuzz target for FUZZTIME.
fuzz:
	@set -e; for package in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

clean:
	rm -rf bin

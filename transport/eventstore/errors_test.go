package eventstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// The client wraps its errors or does not, as it happens; only these shapes
// reach us.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		err  error
		want fault
	}{
		{status.Error(codes.Unavailable, "gone"), away},
		{fmt.Errorf("could not: %w", status.Error(codes.Unavailable, "gone")), away},
		{&notSentError{errors.New("refused")}, away},
		{&notSentError{context.DeadlineExceeded}, away},
		{status.Error(codes.DeadlineExceeded, "late"), late},
		{context.DeadlineExceeded, late},
		{context.Canceled, late},
		{status.Error(codes.Canceled, "we left"), late},
		{fmt.Errorf("send: %w", io.EOF), cut},
		{status.Error(codes.FailedPrecondition, "Event stream 'x' is deleted."), deleted},
		{status.Error(codes.FailedPrecondition, "Delete failed due to WrongExpectedVersion. Stream: x"), conflicted},
		{status.Error(codes.InvalidArgument, "Maximum Append Size of 1048576 Exceeded."), tooLarge},
		{status.Error(codes.InvalidArgument, "something else"), other},
		{status.Error(codes.ResourceExhausted, "message too large"), tooLarge},
		{status.Error(codes.PermissionDenied, "Access Denied"), forbidden},
		{status.Error(codes.Unauthenticated, "who"), unauthenticated},
		{status.Error(codes.Unknown, "No leader info available in response"), away},
		{errBroken, away},
		{lateError{time.Second}, late},
		{&ledger.DeniedError{Right: "something", Err: errors.New("a while ago")}, forbidden},
		{nil, none},
		{status.Error(codes.Aborted, "Operation timed out"), other},
		{errors.New("the store's client gave up: unreachable code"), other},
	} {
		if got := faultOf(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

// The client tells where a stream stands in text only.
func TestWhereAStreamStands(t *testing.T) {
	for text, want := range map[string]run.Seq{
		"wrong expected version: expecting '3' but got '7'":                                             8,
		"wrong expected version: expecting '3' but got 'no_stream'":                                     0,
		"Delete failed due to WrongExpectedVersion. Stream: a, Expected version: 5, Actual version: 2":  3,
		"Delete failed due to WrongExpectedVersion. Stream: a, Expected version: 5, Actual version: -1": 0,
		"nothing": 0,
	} {
		if got := currentOf(errors.New(text)); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

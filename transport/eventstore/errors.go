package eventstore

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// fault is what an error of the client means for us.
type fault int

const (
	other     fault = iota
	conflict        // the expected revision is not the stream's
	notFound        // no such stream
	deleted         // tombstoned
	tooLarge        // the server said so
	forbidden       // credentials or an ACL
	cut             // the server ended the call early; why is lost
	away            // no connection, or it broke: a new one is needed
	late            // our own deadline, or the caller's end
)

// faultOf is the one place where the client's errors are read: by its own code
// where there is one, else by the gRPC status.
func faultOf(err error) fault {
	var own *esdb.Error
	var unsent *notSentError
	code := codes.OK
	if s, ok := status.FromError(err); ok {
		code = s.Code()
	}
	if errors.As(err, &own) {
		switch own.Code() {
		case esdb.ErrorCodeWrongExpectedVersion:
			return conflict
		case esdb.ErrorCodeStreamDeleted:
			return deleted
		case esdb.ErrorCodeResourceNotFound:
			return notFound
		case esdb.ErrorCodeAccessDenied, esdb.ErrorCodeUnauthenticated:
			return forbidden
		case esdb.ErrorCodeNotLeader, esdb.ErrorCodeConnectionClosed, esdb.ErrorUnavailable:
			return away
		case esdb.ErrorCodeDeadlineExceeded:
			return late
		}
		if s, ok := status.FromError(own.Err()); ok {
			code = s.Code()
		}
	}
	switch {
	case errors.As(err, &unsent):
		return away
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return late
	case errors.Is(err, io.EOF):
		return cut
	}
	switch code {
	case codes.FailedPrecondition:
		if strings.Contains(err.Error(), "is deleted") {
			return deleted
		}
		if strings.Contains(err.Error(), "WrongExpectedVersion") {
			return conflict
		}
	case codes.InvalidArgument:
		if strings.Contains(err.Error(), "Maximum Append Size") {
			return tooLarge
		}
	case codes.ResourceExhausted:
		return tooLarge
	case codes.PermissionDenied, codes.Unauthenticated:
		return forbidden
	case codes.Unavailable:
		return away
	case codes.DeadlineExceeded, codes.Canceled:
		return late
	}
	return other
}

// lost reports whether a session is of no more use.
func lost(err error) bool { return err != nil && faultOf(err) == away }

// appendError names the outcome of a write. What was not clearly stored or
// refused is unknown.
func appendError(id run.ID, after run.Seq, err error) error {
	if err == nil {
		return nil
	}
	switch faultOf(err) {
	case conflict:
		return &ledger.ConflictError{Run: id, Expected: after}
	case deleted:
		return ledger.ErrErased
	case tooLarge:
		return &ledger.RefusedError{Run: id, TooLarge: true, Err: err}
	case forbidden:
		return &ledger.RefusedError{Run: id, Err: err}
	case cut:
		return &ledger.UnknownError{Run: id, Answered: true, Err: err}
	}
	return &ledger.UnknownError{Run: id, Err: err}
}

func readError(err error) error {
	if err == nil {
		return nil
	}
	switch faultOf(err) {
	case notFound:
		return ledger.ErrNotFound
	case deleted:
		return ledger.ErrErased
	}
	return &ledger.UnavailableError{Err: err}
}

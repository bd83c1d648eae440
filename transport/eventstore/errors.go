package eventstore

import (
	"context"
	"errors"
	"io"
	"regexp"
	"strconv"
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
	none            fault = iota
	other                 // what is not known
	conflicted            // the expected revision is not the stream's
	notFound              // no such stream
	deleted               // tombstoned
	tooLarge              // the server said so
	forbidden             // an ACL
	unauthenticated       // the store does not know us
	cut                   // the server ended the call early; why is lost
	elsewhere             // another node leads, and the client has been told which
	away                  // no connection, or it broke: a new one is needed
	late                  // our own deadline, or the caller's end
)

// faultOf is the one place where the client's errors are read: by its own code
// where there is one, else by the gRPC status.
func faultOf(err error) fault {
	if err == nil {
		return none
	}
	var own *esdb.Error
	var unsent *notSentError
	var denied *ledger.DeniedError
	code := codes.OK
	if s, ok := status.FromError(err); ok {
		code = s.Code()
	}
	if errors.As(err, &own) {
		switch own.Code() {
		case esdb.ErrorCodeWrongExpectedVersion:
			return conflicted
		case esdb.ErrorCodeStreamDeleted:
			return deleted
		case esdb.ErrorCodeResourceNotFound:
			return notFound
		case esdb.ErrorCodeAccessDenied:
			return forbidden
		case esdb.ErrorCodeUnauthenticated:
			return unauthenticated
		case esdb.ErrorCodeNotLeader:
			return elsewhere
		case esdb.ErrorCodeConnectionClosed, esdb.ErrorUnavailable:
			return away
		case esdb.ErrorCodeDeadlineExceeded:
			return late
		}
		if s, ok := status.FromError(own.Err()); ok {
			code = s.Code()
		}
	}
	switch {
	case errors.As(err, &unsent), errors.Is(err, errBroken):
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
			return conflicted
		}
	case codes.InvalidArgument:
		if strings.Contains(err.Error(), "Maximum Append Size") {
			return tooLarge
		}
	case codes.ResourceExhausted:
		return tooLarge
	case codes.PermissionDenied:
		return forbidden
	case codes.Unauthenticated:
		return unauthenticated
	case codes.Unavailable:
		return away
	case codes.DeadlineExceeded, codes.Canceled:
		return late
	case codes.Unknown:
		if strings.Contains(err.Error(), "No leader info available") {
			return away // a new connection may find one
		}
	}
	if errors.As(err, &denied) {
		return forbidden
	}
	return other
}

// Where a stream stands that was not where it was expected: the client tells it
// in text only, of an append and of a deletion.
var (
	currentText = regexp.MustCompile(`but got '(\d+|no_stream)'`)
	actualText  = regexp.MustCompile(`Actual version: (-?\d+)`)
)

// currentOf is where the stream ends that a conflict is about; 0: it is not there.
func currentOf(err error) run.Seq {
	for _, pattern := range []*regexp.Regexp{currentText, actualText} {
		if found := pattern.FindStringSubmatch(err.Error()); found != nil {
			revision, err := strconv.ParseInt(found[1], 10, 64)
			if err != nil || revision < 0 { // no stream
				return 0
			}
			return run.Seq(revision) + 1
		}
	}
	return 0
}

// appendError names the outcome of a write. What was not clearly stored or
// refused is unknown; so is what the store denies us now, which is sent again.
func appendError(id run.ID, after run.Seq, err error) error {
	switch faultOf(err) {
	case none:
		return nil
	case conflicted:
		return &ledger.ConflictError{Run: id, Expected: after, Current: currentOf(err)}
	case deleted:
		return ledger.ErrErased
	case tooLarge:
		return &ledger.RefusedError{Run: id, TooLarge: true, Err: err}
	case cut:
		return &ledger.UnknownError{Run: id, Answered: true, Err: err}
	}
	return &ledger.UnknownError{Run: id, Err: err}
}

func readError(err error) error {
	switch faultOf(err) {
	case none:
		return nil
	case notFound:
		return ledger.ErrNotFound
	case deleted:
		return ledger.ErrErased
	}
	return &ledger.UnavailableError{Err: err}
}

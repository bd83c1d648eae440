package embedded

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/runfacts/runfacts/transport/embedded/store"
)

// handlerThrew is what the server says of an exception that nobody expected;
// clients match the text (wire 0).
func handlerThrew() error { return status.Error(codes.Unknown, "Exception was thrown by handler.") }

// trailer sets the machine-readable part of an error (wire 2.9).
func trailer(ctx context.Context, pairs ...string) {
	// It fails only outside a call, or after it.
	_ = grpc.SetTrailer(ctx, metadata.Pairs(pairs...))
}

// failure answers a call with an error of the store (wire 2.9).
func failure(ctx context.Context, err error) error {
	var deleted *store.DeletedError
	var wrong *store.WrongVersionError
	var corrupt *store.CorruptError
	var unwritable *store.UnwritableError
	switch {
	case errors.As(err, &deleted):
		trailer(ctx, "exception", "stream-deleted", "stream-name", deleted.Stream)
		return status.Errorf(codes.FailedPrecondition, "Event stream '%s' is deleted.", deleted.Stream)
	case errors.As(err, &wrong):
		trailer(ctx, "exception", "wrong-expected-version", "stream-name", wrong.Stream,
			"expected-version", strconv.FormatInt(int64(wrong.Expected), 10), "actual-version", strconv.FormatInt(wrong.Current, 10))
		return status.Errorf(codes.FailedPrecondition,
			"Delete failed due to WrongExpectedVersion. Stream: %s, Expected version: %d, Actual version: %d",
			wrong.Stream, wrong.Expected, wrong.Current)
	case errors.As(err, &corrupt):
		return status.Error(codes.DataLoss, corrupt.Error())
	case errors.As(err, &unwritable):
		return status.Error(codes.Unavailable, "Server Is Not Ready: "+unwritable.Error())
	case errors.Is(err, store.ErrStopped):
		return status.Error(codes.Unavailable, "Server Is Not Ready")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return status.FromContextError(err).Err()
	}
	return handlerThrew()
}

func tooLarge(ctx context.Context, limit int) error {
	trailer(ctx, "exception", "maximum-append-size-exceeded", "maximum-append-size", strconv.Itoa(limit))
	return status.Errorf(codes.InvalidArgument, "Maximum Append Size of %d Exceeded.", limit)
}

func missingProperty(ctx context.Context, name string) error {
	trailer(ctx, "exception", "missing-required-metadata-property", "required-metadata-properties", "type,content-type")
	return status.Error(codes.InvalidArgument, missingText(name))
}

func missingText(name string) string {
	return fmt.Sprintf("Required Metadata Property '%s' is missing", name)
}

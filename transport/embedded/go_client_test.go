package embedded_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"github.com/google/uuid"
)

func goClient(t *testing.T, url string) *esdb.Client {
	t.Helper()
	config, err := esdb.ParseConnectionString(url)
	if err != nil {
		t.Fatal(err)
	}
	config.Logger = esdb.NoopLogging()
	client, err := esdb.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func goEvents(n int, kind string) (all []esdb.EventData) {
	for range n {
		all = append(all, esdb.EventData{EventID: uuid.New(), EventType: kind, ContentType: esdb.ContentTypeJson, Data: []byte(`{}`)})
	}
	return all
}

func codeOf(err error) esdb.ErrorCode {
	var own *esdb.Error
	if errors.As(err, &own) {
		return own.Code()
	}
	return -1
}

// The official Go client, in what the ledger does not use of it.
func TestGoClient(t *testing.T) {
	node, _ := startNode(t, t.TempDir())
	for _, url := range []string{node.ConnectionString(), "esdb+discover" + node.ConnectionString()[len("esdb"):]} {
		client := goClient(t, url)
		ctx := within(t)
		stream := "go-" + uuid.NewString()
		for _, c := range []struct {
			expected esdb.ExpectedRevision
			want     uint64
			code     esdb.ErrorCode
		}{
			{esdb.StreamExists{}, 0, esdb.ErrorCodeWrongExpectedVersion},
			{esdb.NoStream{}, 1, 0},
			{esdb.NoStream{}, 0, esdb.ErrorCodeWrongExpectedVersion},
			{esdb.Revision(1), 3, 0},
			{esdb.Revision(1), 0, esdb.ErrorCodeWrongExpectedVersion},
			{esdb.Any{}, 5, 0},
			{esdb.StreamExists{}, 7, 0},
		} {
			r, err := client.AppendToStream(ctx, stream, esdb.AppendToStreamOptions{ExpectedRevision: c.expected}, goEvents(2, "go")...)
			if c.code != 0 && codeOf(err) != c.code || c.code == 0 && (err != nil || r.NextExpectedVersion != c.want || r.CommitPosition == 0) {
				t.Errorf("%T %v: %+v, %v", c.expected, c.expected, r, err)
			}
		}
		count := 0
		reader, err := client.ReadAll(ctx, esdb.ReadAllOptions{From: esdb.Start{}}, 1000)
		for err == nil {
			var e *esdb.ResolvedEvent
			if e, err = reader.Recv(); err == nil && e.OriginalEvent().StreamID == stream {
				count++
			}
		}
		reader.Close()
		if !errors.Is(err, io.EOF) || count != 8 {
			t.Errorf("$all: %d events, %v", count, err)
		}
		if _, err := client.SetStreamMetadata(ctx, stream, esdb.AppendToStreamOptions{}, maxCount(3)); err != nil {
			t.Error(err)
		}
		meta, err := client.GetStreamMetadata(ctx, stream, esdb.ReadStreamOptions{})
		if err != nil || meta.MaxCount() == nil || *meta.MaxCount() != 3 {
			t.Errorf("metadata %+v, %v", meta, err)
		}
		sub, err := client.SubscribeToAll(ctx, esdb.SubscribeToAllOptions{From: esdb.Start{}, CheckpointInterval: 1,
			Filter: &esdb.SubscriptionFilter{Type: esdb.StreamFilterType, Prefixes: []string{stream}}})
		if err != nil {
			t.Fatal(err)
		}
		seen, checked, caught := 0, 0, 0
		for caught == 0 {
			switch e := sub.Recv(); {
			case e.SubscriptionDropped != nil:
				t.Fatal(e.SubscriptionDropped.Error)
			case e.EventAppeared != nil:
				seen++
			case e.CheckPointReached != nil:
				checked++
			case e.CaughtUp != nil:
				caught++
			}
		}
		if sub.Close(); seen != 8 || checked == 0 {
			t.Errorf("subscription: %d events, %d checkpoints", seen, checked)
		}
		if _, err := client.DeleteStream(ctx, stream, esdb.DeleteStreamOptions{ExpectedRevision: esdb.Revision(7)}); err != nil {
			t.Error(err)
		}
		if r, err := client.ReadStream(ctx, stream, esdb.ReadStreamOptions{}, 1); err == nil {
			if _, err = r.Recv(); codeOf(err) != esdb.ErrorCodeResourceNotFound {
				t.Errorf("deleted: %v", err)
			}
			r.Close()
		}
		if _, err := client.TombstoneStream(ctx, stream, esdb.TombstoneStreamOptions{ExpectedRevision: esdb.Any{}}); err != nil {
			t.Error(err)
		}
		if _, err := client.AppendToStream(ctx, stream, esdb.AppendToStreamOptions{}, goEvents(1, "go")...); codeOf(err) != esdb.ErrorCodeStreamDeleted {
			t.Errorf("tombstoned: %v", err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

func maxCount(n uint64) (m esdb.StreamMetadata) {
	m.SetMaxCount(n)
	m.SetMaxAge(time.Hour)
	return m
}

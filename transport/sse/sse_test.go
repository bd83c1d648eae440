package sse_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/runfacts/runfacts/transport/sse"
)

func TestFrame(t *testing.T) {
	got, err := sse.AppendFrame(nil, 4, "message.delta", []byte(`{"seq":4}`))
	if want := "id: 4\nevent: message.delta\ndata: {\"seq\":4}\n\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
	if got := string(sse.Retry(1500 * time.Millisecond)); got != "retry: 1500\n" {
		t.Errorf("%q", got)
	}
}

func TestFramesThatNobodyUnderstandsAreRefused(t *testing.T) {
	for _, c := range []struct{ event, data string }{
		{"", "{}"}, {"error", "{}"}, {"open", "{}"}, {"message", "{}"}, {"a\nb", "{}"}, {"a\rb", "{}"}, {"a", "{\n}"}, {"a", "\r"},
	} {
		var fault *sse.FrameError
		if got, err := sse.AppendFrame([]byte("before"), 1, c.event, []byte(c.data)); !errors.As(err, &fault) || string(got) != "before" {
			t.Errorf("%q %q: %q, %v", c.event, c.data, got, err)
		}
	}
}

func TestWriterSendsHeadersFirst(t *testing.T) {
	opened := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		out, err := sse.Open(w)
		<-opened // the client has the headers before any frame
		if err == nil {
			err = out.Write(sse.KeepAlive, sse.Retry(time.Second))
		}
		if err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	response, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	close(opened)
	h := response.Header
	if h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store, no-transform" || h.Get("X-Accel-Buffering") != "no" {
		t.Errorf("%v", h)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil || string(body) != ": keep-alive\nretry: 1000\n" {
		t.Errorf("%q, %v", body, err)
	}
}

func TestReader(t *testing.T) {
	r := sse.NewReader(strings.NewReader(": hi\n\nretry: 5\n\n\nretry: 6\n: there\nid: 6\ndata: z\n: within\n\n: twice\n: over\nid: 7\nevent: x.y\ndata: a\ndata:b\n\nid: 8\ndata: cut off"), 1<<10)
	for _, want := range []sse.Frame{{Comment: "hi"}, {Retry: "5"}, {Retry: "6"}, {Comment: "there"}, {ID: "6", Data: "z", Comment: "within"}, {Comment: "twice"}, {Comment: "over"}, {ID: "7", Event: "x.y", Data: "a\nb"}} {
		if got, err := r.Next(); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	if f, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("a frame that was cut off: %+v, %v", f, err)
	}
}

// FuzzRoundTrip: what is written is read, whatever it says.
func FuzzRoundTrip(f *testing.F) {
	f.Add(uint64(1), "message.delta", []byte(`{"delta":"id: 9"}`))
	f.Add(uint64(2), "x:y", []byte(": \u2028"))
	f.Fuzz(func(t *testing.T, id uint64, event string, data []byte) {
		frame, err := sse.AppendFrame(nil, id, event, data)
		if err != nil {
			return
		}
		twice := bytes.Repeat(frame, 2)
		r := sse.NewReader(bytes.NewReader(twice), len(twice)+1)
		for range 2 {
			got, err := r.Next()
			if err != nil || got.Event != event || got.Data != string(data) {
				t.Fatalf("%+v, %v", got, err)
			}
		}
	})
}

// FuzzReader: no stream makes it fail in another way than by saying so.
func FuzzReader(f *testing.F) {
	f.Add([]byte("id: 1\ndata: x\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := sse.NewReader(bytes.NewReader(stream), 1<<16)
		for range len(stream) + 1 {
			if _, err := r.Next(); err != nil {
				return
			}
		}
		t.Error("more frames than bytes")
	})
}

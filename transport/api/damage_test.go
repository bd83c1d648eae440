package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/transport/blobfolder"
)

// Bytes that were altered, cut, emptied or grown on disk are never sent whole, and
// bringing the right ones mends them for every run.
func TestDamagedArtifactsAreToldAndMended(t *testing.T) {
	folder := t.TempDir()
	blobs, err := blobfolder.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	log, to := logged(t)
	h := open(t, to, func(s *Server) { s.config.Blobs, s.config.MaxArtifact = blobs, 10<<20 })
	for _, size := range []int{1, 14, checked, checked + 1, 3<<20 + 17} {
		good := bytes.Repeat([]byte("the true bytes "), size/15+1)[:size]
		path := h.create()
		if a := h.do("PUT", path+"/artifacts/x", string(good), "Content-Type", "text/plain"); a.status != 201 {
			t.Fatalf("%d %s", a.status, a.text)
		}
		sum := strings.TrimPrefix(run.Checksum(good), "sha256:")
		file := filepath.Join(folder, sum[:2], sum, "content")
		damages := map[string][]byte{"emptied": {}, "shorter": good[:size-1], "longer": append(bytes.Clone(good), '!')}
		for name, at := range map[string]int{"first byte": 0, "middle": size / 2, "last byte": size - 1} {
			altered := bytes.Clone(good)
			altered[at] ^= 1
			damages[name] = altered
		}
		for name, content := range damages {
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
			response, err := h.client.Get(h.url + path + "/artifacts/artifact_1")
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(response.Body)
			response.Body.Close()
			if response.StatusCode == 200 && err == nil || response.StatusCode != 200 && (response.StatusCode != 500 || !bytes.Contains(got, []byte("artifact_damaged"))) {
				t.Errorf("%d bytes, %s: %d with %d bytes, %v", size, name, response.StatusCode, len(got), err)
			}
			if small := size <= checked || len(content) != size; small && response.StatusCode != 500 {
				t.Errorf("%d bytes, %s: it was found only while it was sent", size, name)
			}
			if !strings.Contains(response.Header.Get("Cache-Control"), "no-store") && response.StatusCode != 200 {
				t.Errorf("%d bytes, %s: kept by caches: %v", size, name, response.Header)
			}
			if a := h.do("GET", path+"/artifacts/artifact_1", "", "Range", "bytes=0-0"); a.status != 500 || a.fields["code"] != "artifact_damaged" {
				t.Errorf("%d bytes, %s: a range: %d %.200s", size, name, a.status, a.text)
			}
		}
		if a := h.do("GET", "/metrics", ""); !strings.Contains(a.text, `runfacts_blob_errors_total{cause="damaged"}`) || strings.Contains(a.text, `{cause="damaged"} 0`) {
			t.Error("nothing was counted")
		}
		other := h.create()
		if a := h.do("PUT", other+"/artifacts/x", string(good), "Content-Type", "text/plain"); a.status != 201 {
			t.Fatalf("%d %s", a.status, a.text)
		}
		for _, p := range []string{path, other} {
			if a := h.do("GET", p+"/artifacts/artifact_1", ""); a.status != 200 || a.text != string(good) {
				t.Errorf("%d bytes are not mended: %d, %d bytes", size, a.status, len(a.text))
			}
		}
	}
	if got := log.next("artifact broken off"); got["level"] != "error" || !strings.Contains(got["error"].(string), "damaged") {
		t.Errorf("%v", got)
	}
}

// failingBlobs is a blob store that fails.
type failingBlobs struct {
	blob.Store
	cause blob.Cause
}

func (f failingBlobs) err() error {
	return &blob.StoreError{Cause: f.cause, Err: errors.New("for a reason")}
}
func (f failingBlobs) Put(_ context.Context, _ run.ID, _ io.Reader, _ int64) (string, int64, error) {
	return "", 0, f.err()
}
func (f failingBlobs) Open(context.Context, string) (io.ReadSeekCloser, error) { return nil, f.err() }

func TestABlobStoreThatFailsSaysHow(t *testing.T) {
	for cause, want := range map[blob.Cause]struct {
		status int
		code   string
	}{
		blob.Full: {507, "artifact_store_full"}, blob.ReadOnly: {503, "artifact_store_unavailable"}, blob.Denied: {503, "artifact_store_unavailable"},
		blob.Missing: {503, "artifact_store_unavailable"}, blob.Failed: {503, "artifact_store_unavailable"},
	} {
		h := open(t)
		path := h.create()
		h.do("PUT", path+"/artifacts/x", "x")
		h.server.config.Blobs = failingBlobs{h.server.config.Blobs, cause}
		long := `{"type":"tool_result","tool_name":"t","tool_call_id":"c","tool_result":"` + strings.Repeat("x", 2000) + `"}`
		for what, a := range map[string]answer{
			"PUT": h.do("PUT", path+"/artifacts/y", "y"), "GET": h.do("GET", path+"/artifacts/artifact_1", ""), "push": h.push(path, long),
		} {
			if a.status != want.status || a.fields["code"] != want.code || strings.Contains(a.text, "for a reason") {
				t.Errorf("%s, %s: %d %s", cause, what, a.status, a.text)
			}
		}
		if a := h.push(path, `{"type":"delta","content":"small ones go on"}`); a.status != 200 {
			t.Errorf("%d %s", a.status, a.text)
		}
	}
}

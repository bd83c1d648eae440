package sandbox_test

import (
	"net"
	"testing"
)

// listen accepts connections on loopback until stop is called, and returns its
// port.
func listen(t *testing.T) (port string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	_, port, err = net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, func() {
		listener.Close()
		<-done
	}
}

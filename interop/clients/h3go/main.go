// A server and a client of HTTP/3 by quic-go, with its defaults, for `outboard-lab bench quic-relay`.
//
// h3go serve ADDR:PORT FOLDER CERT KEY serves the files of the folder, which it keeps in memory,
// and prints a line when it is ready.
//
// h3go pull ADDR:PORT MILLISECONDS LARGE COUNT [SMALL] begins so many downloads of the path LARGE
// over one connection, half of the time later one of SMALL, and ends when the time is over. It
// prints one line: the time taken in microseconds, bytes of content of the large ones, and the
// microseconds from SMALL's request to its last byte (0 if there is none, and if it was not
// complete at the end). It believes every certificate.
package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go/http3"
)

// Reads the files of a folder.
func readFiles(folder string) (map[string][]byte, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		files["/"+entry.Name()] = content
	}
	return files, nil
}

// Loads a certificate for TLS with HTTP/3's ALPN.
func loadTLS(cert, key string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	return http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}}), nil
}

func serve(addr, folder, cert, key string) error {
	files, err := readFiles(folder)
	if err != nil {
		return err
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, found := files[r.URL.Path]
		if !found {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, r.URL.Path, time.Time{}, bytes.NewReader(content))
	})
	socket, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	config, err := loadTLS(cert, key)
	if err != nil {
		return err
	}
	server := http3.Server{Handler: handler, TLSConfig: config}
	fmt.Println("ready")
	return server.Serve(socket)
}

// Downloads a URL, adding its bytes up as they come.
func fetch(client *http.Client, url string, sum *atomic.Int64) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	buffer := make([]byte, 128<<10)
	for {
		n, err := response.Body.Read(buffer)
		sum.Add(int64(n))
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func pull(addr, milliseconds, large, count string, small []string) error {
	ms, err := strconv.Atoi(milliseconds)
	if err != nil {
		return err
	}
	streams, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	config := &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}
	client := &http.Client{Transport: &http3.Transport{TLSClientConfig: config}}
	var sum, ignored atomic.Int64
	failed := make(chan error)
	began := time.Now()
	half := time.Duration(ms/2) * time.Millisecond
	for range streams {
		// What ends is begun again: the time is what counts.
		go func() {
			for {
				if err := fetch(client, "https://"+addr+large, &sum); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	var asked time.Time
	done := make(chan time.Duration, 1)
	beside, end := time.After(half), time.After(2*half)
	var took time.Duration
	for {
		select {
		case err := <-failed:
			return err
		case <-beside:
			if len(small) > 0 {
				asked = time.Now()
				go func() {
					if err := fetch(client, "https://"+addr+small[0], &ignored); err != nil {
						failed <- err
						return
					}
					done <- time.Since(asked)
				}()
			}
		case took = <-done:
		case <-end:
			us := time.Since(began).Microseconds()
			fmt.Println("numbers", us, sum.Load(), took.Microseconds())
			return nil
		}
	}
}

func main() {
	args := os.Args[1:]
	switch {
	case len(args) == 5 && args[0] == "serve":
		log.Fatal(serve(args[1], args[2], args[3], args[4]))
	case len(args) >= 5 && args[0] == "pull":
		if err := pull(args[1], args[2], args[3], args[4], args[5:]); err != nil {
			log.Fatal(err)
		}
	default:
		log.Fatal("usage: h3go serve|pull ..")
	}
}

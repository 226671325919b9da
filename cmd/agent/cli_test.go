package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/node"
	"github.com/weir-stream/weir/internal/web"
	"github.com/weir-stream/weir/internal/web/webtest"
	"github.com/weir-stream/weir/wasmops"
	"github.com/weir-stream/weir/wasmops/abitest"
	"github.com/weir-stream/weir/wasmops/optest"
)

// spoken are parts that only say what they were asked.
func spoken() parts {
	return parts{
		demo: func(_ context.Context, keep bool, out io.Writer) error {
			_, err := fmt.Fprintln(out, "keep:", keep)
			return err
		},
		importCheckpoint: func(_ context.Context, file io.Reader, dir string) (node.Imported, error) {
			data, err := io.ReadAll(file)
			if string(data) != "whole\n" {
				return node.Imported{}, fmt.Errorf("the file is cut off")
			}
			return node.Imported{Job: "vibration", Epoch: 9, Tasks: 3}, err
		},
		testOperator: func(_ context.Context, module []byte, opt optest.Options, in, want io.Reader) (optest.Report, error) {
			a, _ := io.ReadAll(in)
			b, _ := io.ReadAll(want)
			if string(a) != string(b) {
				return optest.Report{}, fmt.Errorf("%s with %v: record 1 differs", module[:3], opt.Config)
			}
			if opt.MaxDelay != nil {
				return optest.Report{Records: 1, Runs: []string{"with watermarks " + opt.MaxDelay.String() + " behind"}}, nil
			}
			return optest.Report{Records: 1, Runs: []string{"whole", "restored after every batch"}}, nil
		},
		tryOperators: func(_ context.Context, file *job.File, paths map[string]string) error {
			for name, path := range paths {
				if b, err := os.ReadFile(path); err != nil || string(b) == "bad\n" {
					return fmt.Errorf("%s:9:5: operator %s: config siez: there is no such key", file.Path, name)
				}
			}
			return nil
		},
		verifyOperator: func(_ context.Context, module []byte, opt abitest.Options) (abitest.Report, error) {
			if string(module) == "bad\n" {
				return abitest.Report{}, fmt.Errorf("module lacks the exports memory, with %v", opt.Config)
			}
			return abitest.Report{Module: &wasmops.Module{Digest: "sha256:12", Size: 3000, MinMemory: 65536, Imports: []string{"weir.emit", "weir.fail"}}, Snapshot: 4096}, nil
		},
		kit: func(_ context.Context, module []byte, _ abitest.Options) []abitest.Result {
			results := []abitest.Result{{Name: "empty batch"}, {Name: "clock"}}
			if string(module) == "slow\n" {
				results[1].Err = fmt.Errorf("it stands still")
			}
			return results
		},
	}
}

func spokenRun(out io.Writer) func(context.Context, node.Options, *slog.Logger) error {
	return func(_ context.Context, o node.Options, log *slog.Logger) error {
		fmt.Fprintf(out, "data=%s name=%s labels=%v nats=%s nats-listen=%s mqtt-listen=%s http=%s\n",
			o.Data, o.Name, o.Labels, o.NATS, o.NATSListen, o.MQTTListen, o.HTTP)
		a := o.Auth
		fmt.Fprintf(out, "passwords: nats %s:%s mqtt %s:%s http %s:%s\n",
			a.NATS.User, a.NATS.Password, a.MQTT.User, a.MQTT.Password, a.HTTP.User, a.HTTP.Password)
		log.Debug("debugging")
		log.Info("informing")
		return nil
	}
}

func TestScripts(t *testing.T) {
	srv := serve(t, web.Options{})
	locked := serve(t, web.Options{User: "anna", Password: "s3cret"})
	gone := serve(t, web.Options{})
	gone.Close()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			abs, err := filepath.Abs(file)
			if err != nil {
				t.Fatal(err)
			}
			s := script{t: t, file: abs, text: string(data), vars: strings.NewReplacer(
				"$LOCKED", locked.Listener.Addr().String(), "$GONE", gone.Listener.Addr().String())}
			t.Setenv("WEIR_SERVER", srv.URL)
			s.run(func(stdout, stderr io.Writer, args []string) int {
				p := program{stdout: stdout, stderr: stderr, parts: spoken()}
				p.parts.run = spokenRun(stdout)
				return p.main(t.Context(), args)
			})
		})
	}
}

func serve(t *testing.T, opt web.Options) *httptest.Server {
	opt.Backend, opt.Log = webtest.New(10), slog.New(slog.DiscardHandler)
	srv := httptest.NewServer(web.New(opt))
	t.Cleanup(srv.Close)
	return srv
}

// TestEveryCommandRuns: what the command line names can be run, and has help.
func TestEveryCommandRuns(t *testing.T) {
	found := 0
	var look func(path []string, of reflect.Value)
	look = func(path []string, of reflect.Value) {
		leaf := true
		for i := range of.NumField() {
			f := of.Type().Field(i)
			if _, ok := f.Tag.Lookup("cmd"); ok {
				leaf = false
				look(append(slices.Clip(path), strings.ToLower(f.Name)), of.Field(i))
			}
		}
		if _, runs := of.Addr().Interface().(runner); leaf && !runs {
			t.Errorf("%s cannot be run", path)
		}
		var stdout, stderr bytes.Buffer
		p := program{stdout: &stdout, stderr: &stderr}
		if code := p.main(t.Context(), append(path, "--help")); code != exitFine || stderr.Len() > 0 ||
			!strings.HasPrefix(stdout.String(), strings.Join(append([]string{"Usage: agent"}, path...), " ")+" ") {
			t.Errorf("%s --help: code %d\n%s%s", path, code, &stdout, &stderr)
		}
		found++
	}
	look(nil, reflect.ValueOf(&commands{}).Elem())
	if found < 30 {
		t.Errorf("%d commands: the test looks in the wrong place", found)
	}
}

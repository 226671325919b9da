package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	_ "net/http/pprof" // of the hub, at the address that the environment names
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/weir-stream/weir/internal/node"
)

// The program runs itself as hub and as gateways: fleet gives the first argument "run", as to an agent.
const (
	roleHub      = "run"
	roleGateways = "gateways"
	// pprofAt is the variable with the address at which the hub answers pprof.
	pprofAt = "WEIR_SCALE_PPROF"
)

func roleOf(args []string) func([]string) error {
	if len(args) < 2 {
		return nil
	}
	return map[string]func([]string) error{roleHub: runHub, roleGateways: runGateways}[args[1]]
}

// runHub is `agent run` with the flags that the fleet gives.
func runHub(args []string) error {
	var opt node.Options
	f := flag.NewFlagSet(roleHub, flag.ContinueOnError)
	f.StringVar(&opt.Data, "data", "", "")
	f.StringVar(&opt.Name, "name", "", "")
	f.StringVar(&opt.HTTP, "http", "", "")
	f.StringVar(&opt.NATSListen, "nats-listen", "", "")
	f.StringVar(&opt.MQTTListen, "mqtt-listen", "", "")
	f.Func("label", "", func(s string) error {
		k, v, _ := strings.Cut(s, "=")
		opt.Labels = map[string]string{k: v}
		return nil
	})
	if err := f.Parse(args); err != nil {
		return err
	}
	if at := os.Getenv(pprofAt); at != "" {
		go func() { fmt.Fprintln(os.Stderr, http.ListenAndServe(at, nil)) }()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return node.Run(ctx, opt, slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// runGateways runs agents that use a hub until the first fails.
func runGateways(args []string) error {
	f := flag.NewFlagSet(roleGateways, flag.ContinueOnError)
	n, dir, url := f.Int("n", 1, ""), f.String("dir", "", ""), f.String("nats", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	g, ctx := errgroup.WithContext(ctx)
	for i := range *n {
		name := gatewayName(i)
		g.Go(func() error {
			err := node.Run(ctx, node.Options{
				Data: filepath.Join(*dir, name), Name: name, Labels: map[string]string{"role": "gateway"}, NATS: *url, HTTP: "127.0.0.1:0",
			}, log)
			if err == nil && ctx.Err() == nil {
				err = errors.New("ended by itself")
			}
			if err != nil {
				return fmt.Errorf("gateway %s: %w", name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func gatewayName(i int) string { return fmt.Sprintf("g%04d", i) }

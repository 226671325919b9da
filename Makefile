# Weir's tasks. Each works on a clean checkout with Go alone; `make race` needs a C compiler too.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME ?= 10s
DURATION ?= 5m
ROUND ?= 4m
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Platforms of a release, as GOOS-GOARCH; armv7 is GOARCH=arm GOARM=7.
PLATFORMS = linux-amd64 linux-arm64 linux-armv7 linux-riscv64
# The largest a binary may be: what a small device can still update over a slow link.
MAX_BINARY_BYTES = 31457280

.PHONY: build test race fuzz bench bench-mqtt bench-recovery bench-scale chaos reboots chaos-mqtt eval lint examples operators release demo clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/agent ./cmd/agent

test:
	$(GO) test ./...

# The simulator has one goroutine at a time, so a few seeds of it are enough here; the examples' operators run in one
# goroutine too, and five minutes of compiling them with the detector would show nothing.
race:
	$(GO) test -race -timeout 30m $$($(GO) list ./... | grep -vE '/(dataflow/sim|examples)$$')
	$(GO) test -race -timeout 30m ./dataflow/sim -run Seeds -sim.seeds=5

fuzz:
	.ci/fuzz $(FUZZTIME)

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./...

# Everything that goes wrong, on seven agents, for as long as DURATION says; WEIR_CHAOS_SEED repeats a round.
chaos:
	$(GO) run ./internal/chaos -duration $(DURATION) -round $(ROUND)

# One of many gateways is always being rebooted.
GATEWAYS ?= 20
reboots:
	$(GO) run ./internal/chaos -reboots $(GATEWAYS) -duration $(DURATION)

# MQTT in full: 250,000 messages through kills, broker restarts and cut connections, and a broker that is away for
# ten minutes. Needs mosquitto, and the machine for itself: the rate at which a backlog goes is judged.
chaos-mqtt:
	$(GO) test -count=1 -tags mosquitto ./transport/mqtt
	$(GO) test -count=1 -run 'TestDiskFull|TestLogBudget|TestClockIsSet|TestRenamedIsSaid' ./internal/node
	WEIR_E2E_CHAOS=whole $(GO) test -count=1 -timeout 70m -tags mosquitto -run 'MQTT|SharedSubscriptions|OnceKills' -v ./internal/e2e

# An agent that relays MQTT through an operator against a bare relay. Needs mosquitto; clang for the operator in C.
bench-mqtt:
	$(GO) run ./internal/bench

# The evaluation of the paper, with plots; see docs/performance.md. EVAL=-short takes minutes, EVAL=-full an hour.
EVAL ?=
eval:
	$(GO) run ./internal/eval $(EVAL)

# From the start of a killed agent's process to the first output for a new record, and to the latency of before.
bench-recovery:
	$(GO) run ./internal/bench/recovery

# What an agent, a channel and a checkpoint cost the hub, up to 200 agents, and what follows for 10,000; half an hour.
# SCALE='-gateways 1,10,50 -window 20s' takes less.
SCALE ?=
bench-scale:
	$(GO) run ./internal/bench/scale $(SCALE)

lint:
	.ci/gofmt
	$(GO) vet ./...
	CGO_ENABLED=0 GOARCH=arm $(GO) vet ./cmd/... ./internal/node ./abs/... ./dataflow/... ./storage/... ./transport/... ./wasmops/...
	GOFLAGS=-mod=mod $(GO) run $(STATICCHECK) ./...

# The examples' operators against their expected outputs.
examples:
	$(GO) test ./examples/...

# The ready-made operators as modules.
operators: build
	packaging/operators dist/operators bin/agent

demo:
	$(GO) run ./cmd/agent demo

release: $(PLATFORMS:%=dist/agent-%) operators dist/weir.service dist/mosquitto.conf dist/LICENSE dist/LICENSES-OF-OTHERS
	cd dist && sha256sum agent-* operators/*.wasm weir.service mosquitto.conf LICENSE* > SHA256SUMS
	@ls -l dist

# Always built: what it depends on is the whole module, which the compiler's cache knows better.
.PHONY: FORCE
dist/agent-%: FORCE
	@mkdir -p dist
	@set -e; platform=$*; IFS=-; set -- $$platform; unset IFS; \
	  arch=$$2; arm=; case $$arch in armv*) arm=$${arch#armv}; arch=arm;; esac; \
	  CGO_ENABLED=0 GOOS=$$1 GOARCH=$$arch GOARM=$$arm \
	  $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $@ ./cmd/agent; \
	  size=$$(($$(wc -c < $@))); echo "$@: $$size bytes"; \
	  if [ $$size -gt $(MAX_BINARY_BYTES) ]; then echo "$@ is larger than $(MAX_BINARY_BYTES) bytes" >&2; exit 1; fi

dist/weir.service dist/mosquitto.conf: dist/%: packaging/%
	@mkdir -p dist
	cp $< $@

dist/LICENSE: LICENSE
	@mkdir -p dist
	cp $< $@

dist/LICENSES-OF-OTHERS: FORCE
	@mkdir -p dist
	packaging/licences > $@

clean:
	rm -rf bin dist

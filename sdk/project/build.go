package project

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Missing says which program is needed to build and is not there, and how to get it.
type Missing struct {
	Program string
	For     string // what it is needed for
	Get     string // how to get it
}

func (m *Missing) Error() string {
	return fmt.Sprintf("%s is needed to build %s and was not found; %s", m.Program, m.For, m.Get)
}

// Options of a build. The zero value is usable.
type Options struct {
	// TinyGo builds a project in Go with TinyGo.
	TinyGo bool
}

// Detect tells the language of the project in a folder.
func Detect(dir string) (Language, error) {
	var found []Language
	for _, l := range Languages() {
		files, err := filepath.Glob(filepath.Join(dir, languages[l].mark))
		if err != nil {
			return "", err
		}
		if len(files) > 0 {
			found = append(found, l)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("no project in %s: it has none of go.mod, Cargo.toml, *.c, asconfig.json; agent operator new writes one", dir)
	}
	return "", fmt.Errorf("%s could be a project in any of %v: its language is not clear", dir, found)
}

// Build builds the project in dir to a module in the file out, with the tools that are there ([*Missing] if
// one is not). It needs no network. The error holds what the compiler said.
func Build(ctx context.Context, dir, out string, opt Options) error {
	l, err := Detect(dir)
	if err != nil {
		return err
	}
	if opt.TinyGo && l != Go {
		return fmt.Errorf("%s is a project in %s: TinyGo builds Go", dir, languages[l].title)
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	c, err := commands[l](ctx, dir, out, opt)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), c.env...)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w:\n%s", filepath.Base(c.args[0]), errors.Join(err, ctx.Err()), bytes.TrimSpace(said))
	}
	return c.finish(out)
}

// command is what builds a project.
type command struct {
	env  []string
	args []string
	made string // where the module is if the tool does not put it into out
}

func (c command) finish(out string) error {
	if c.made == "" {
		return nil
	}
	data, err := os.ReadFile(c.made)
	if err != nil {
		return err
	}
	return os.WriteFile(out, data, 0o644)
}

var commands = map[Language]func(ctx context.Context, dir, out string, opt Options) (command, error){
	Go: goCommand, C: cCommand, Rust: rustCommand, AssemblyScript: ascCommand,
}

// shown is the command as the README of a new project shows it.
func shown(l Language, name string) []string {
	out := name + ".wasm"
	switch l {
	case Go:
		return []string{strings.Join(goEnv[:2], " ") + " " + strings.Join(append([]string{"go"}, goArgs(out)...), " ")}
	case Rust:
		return []string{strings.Join(append([]string{"rustc"}, rustArgs(name, out)...), " ") + " -C linker=wasm-ld src/lib.rs"}
	case C:
		return []string{strings.Join(append([]string{"clang"}, cArgs(false, out)...), " ") + " operator.c"}
	}
	return []string{"npm ci   # once, for the compiler", "npx asc --config asconfig.json --outFile " + out}
}

var goEnv = []string{"GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0", "GOWORK=off"}

func goArgs(out string) []string {
	return []string{"build", "-trimpath", "-buildmode=c-shared", "-o", out, "."}
}

func goCommand(_ context.Context, _, out string, opt Options) (command, error) {
	if opt.TinyGo {
		tool, err := exec.LookPath("tinygo")
		if err != nil {
			return command{}, &Missing{"tinygo", "Go operators with TinyGo", "get 0.34 or newer from https://tinygo.org/getting-started/install"}
		}
		return command{args: []string{tool, "build", "-target=wasip1", "-buildmode=c-shared", "-no-debug", "-o", out, "."}}, nil
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		return command{}, &Missing{"go", "operators in Go", "get Go 1.24 or newer from https://go.dev/dl (Debian 12 has an older one)"}
	}
	return command{env: goEnv, args: append([]string{tool}, goArgs(out)...)}, nil
}

// cArgs are the compiler's arguments but for the sources; libc says whether there is a C library.
func cArgs(libc bool, out string) []string {
	target := []string{"--target=wasm32", "-nostdlib", "-Wl,--no-entry"}
	if libc {
		target = []string{"--target=wasm32-wasi", "--sysroot=/usr", "-mexec-model=reactor"}
	}
	// The stack lies below all else, so that an overflow traps.
	return append(target, "-std=c11", "-O3", "-mbulk-memory", "-fvisibility=hidden", "-Wall", "-Wl,--stack-first", "-Wl,-S", "-o", out)
}

// freestanding are the headers that C has without a library.
var freestanding = []string{"float.h", "iso646.h", "limits.h", "stdalign.h", "stdarg.h", "stdbool.h", "stddef.h", "stdint.h", "stdnoreturn.h", "wasm_simd128.h"}

var include = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]*<([^>]+)>`)

func cCommand(_ context.Context, dir, out string, _ Options) (command, error) {
	get := "on Debian: apt-get install clang lld"
	tool, err := exec.LookPath("clang")
	if err != nil {
		return command{}, &Missing{"clang", "operators in C", get}
	}
	if _, err := exec.LookPath("wasm-ld"); err != nil {
		return command{}, &Missing{"wasm-ld, the linker for WebAssembly,", "operators in C", get}
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		return command{}, err
	}
	header := ""
	for _, s := range sources {
		text, err := os.ReadFile(s)
		if err != nil {
			return command{}, err
		}
		for _, m := range include.FindAllSubmatch(text, -1) {
			if !slices.Contains(freestanding, string(m[1])) {
				header = string(m[1])
			}
		}
	}
	if header != "" {
		if _, err := os.Stat("/usr/include/wasm32-wasi/stdlib.h"); err != nil {
			return command{}, &Missing{"wasi-libc, the C library,", "an operator that includes <" + header + ">", "on Debian: apt-get install wasi-libc libclang-rt-14-dev-wasm32"}
		}
	}
	return command{args: slices.Concat([]string{tool}, cArgs(header != "", out), sources)}, nil
}

func rustArgs(name, out string) []string {
	return []string{"--edition", "2021", "--crate-type", "cdylib", "--crate-name", strings.ReplaceAll(name, "-", "_"),
		"--target", "wasm32-unknown-unknown", "-C", "opt-level=3", "-C", "panic=abort", "-C", "lto", "-C", "strip=symbols", "-o", out}
}

// rustTool is a compiler that has the target, and what it links with.
func rustTool(ctx context.Context) (tool string, linker []string, err error) {
	found := ""
	for _, name := range []string{"rustc", "/usr/bin/rustc"} {
		tool, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		found = tool
		lib, err := exec.CommandContext(ctx, tool, "--print", "target-libdir", "--target", "wasm32-unknown-unknown").Output()
		if err != nil {
			continue
		}
		if core, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(lib)), "libcore-*.rlib")); err != nil || len(core) == 0 {
			continue
		}
		// A toolchain's own linker fits it best; Debian's has none.
		if own, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(lib)), "../../*/bin/rust-lld")); err == nil && len(own) > 0 {
			return tool, nil, nil
		}
		if _, err := exec.LookPath("wasm-ld"); err != nil {
			return "", nil, &Missing{"wasm-ld, the linker for WebAssembly,", "operators in Rust", "on Debian: apt-get install lld"}
		}
		return tool, []string{"-C", "linker=wasm-ld"}, nil
	}
	if found == "" {
		return "", nil, &Missing{"rustc", "operators in Rust", "on Debian: apt-get install rustc libstd-rust-dev-wasm32 lld"}
	}
	return "", nil, &Missing{"the target wasm32-unknown-unknown of " + found, "operators in Rust",
		"on Debian: apt-get install rustc libstd-rust-dev-wasm32 lld; with rustup: rustup target add wasm32-unknown-unknown"}
}

var dependencies = regexp.MustCompile(`(?m)^[ \t]*\[(target\..*\.)?dependencies`)

// rustCommand needs cargo only where a project has dependencies.
func rustCommand(ctx context.Context, dir, out string, _ Options) (command, error) {
	tool, linker, err := rustTool(ctx)
	if err != nil {
		return command{}, err
	}
	manifest, err := os.ReadFile(filepath.Join(dir, "Cargo.toml"))
	if err != nil {
		return command{}, err
	}
	name, err := nameOf(dir)
	if err != nil {
		return command{}, err
	}
	if m := regexp.MustCompile(`(?m)^name *= *"([^"]+)"`).FindSubmatch(manifest); m != nil {
		name = string(m[1])
	}
	if !dependencies.Match(manifest) {
		return command{args: slices.Concat([]string{tool}, rustArgs(name, out), linker, []string{"src/lib.rs"})}, nil
	}
	cargo := filepath.Join(filepath.Dir(tool), "cargo") // one of another release may not understand the compiler
	if _, err := exec.LookPath(cargo); err != nil {
		return command{}, &Missing{cargo, "operators in Rust with dependencies", "on Debian: apt-get install cargo"}
	}
	made := filepath.Join(dir, "target", "wasm32-unknown-unknown", "release", strings.ReplaceAll(name, "-", "_")+".wasm")
	return command{env: []string{"RUSTC=" + tool}, args: []string{cargo, "build", "--release", "--offline", "--target", "wasm32-unknown-unknown"}, made: made}, nil
}

// ascCommand looks for the compiler in node_modules of the project and the folders above it, then in PATH.
func ascCommand(_ context.Context, dir, out string, _ Options) (command, error) {
	if _, err := exec.LookPath("node"); err != nil {
		return command{}, &Missing{"node", "operators in AssemblyScript", "on Debian: apt-get install nodejs npm; then npm ci in " + dir}
	}
	args := []string{"--config", "asconfig.json", "--outFile", out}
	for at := dir; ; at = filepath.Dir(at) {
		script := filepath.Join(at, "node_modules", "assemblyscript", "bin", "asc.js")
		if _, err := os.Stat(script); err == nil {
			return command{args: append([]string{"node", script}, args...)}, nil
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	tool, err := exec.LookPath("asc")
	if err != nil {
		return command{}, &Missing{"asc, the AssemblyScript compiler,", "operators in AssemblyScript", "npm ci in " + dir + " installs it (npm is in Debian's package npm)"}
	}
	return command{args: append([]string{tool}, args...)}, nil
}

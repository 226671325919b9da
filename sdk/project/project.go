// Package project writes and builds operator projects: a folder with an operator's source, the SDK, and
// golden records to test it with. Building needs the language's compiler and no network.
package project

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/weir-stream/weir/sdk"
)

//go:embed all:templates
var templates embed.FS

// Language is a language that there is an SDK for.
type Language string

// Languages with an SDK.
const (
	Go             Language = "go"
	Rust           Language = "rust"
	C              Language = "c"
	AssemblyScript Language = "assemblyscript"
)

// Languages are all of them.
func Languages() []Language { return []Language{Go, Rust, C, AssemblyScript} }

// language says how a project in it is laid out.
type language struct {
	title string
	mark  string // a file by which a project is known; it may be a pattern
	main  string // the operator's source
	sdk   map[string]string
	files string // rows for the README
	tools string
	hooks string // for variables to survive an upgrade
}

var languages = map[Language]language{
	Go: {
		title: "Go", mark: "go.mod", main: "main.go",
		files: "| `main.go`, `main_test.go` | the operator, and a test that runs it natively: `go test` |\n| `weir/` | the SDK; `weir/ops` is a library of building blocks, `weir/migrate` lets variables survive upgrades |",
		tools: "Go 1.24 or newer",
		hooks: "`migrate.Register` of `weir/migrate`",
	},
	Rust: {
		title: "Rust", mark: "Cargo.toml", main: "src/lib.rs",
		sdk:   map[string]string{"src/weir.rs": "rust/src/weir.rs", "src/ops.rs": "rust/src/ops.rs"},
		files: "| `src/lib.rs` | the operator |\n| `src/weir.rs` | the SDK |\n| `src/ops.rs` | a library of building blocks: `mod ops;` |\n| `Cargo.toml`, `.cargo/` | for cargo: `cargo build --release` |",
		tools: "rustc, libstd-rust-dev-wasm32 and lld of Debian 12, or a newer Rust with the target wasm32-unknown-unknown",
		hooks: "the trait `weir::Migrate` and `weir::migrate!`",
	},
	C: {
		title: "C", mark: "*.c", main: "operator.c",
		sdk:   map[string]string{"weir.h": "c/weir.h"},
		files: "| `operator.c` | the operator; all .c files here are built |\n| `weir.h` | the SDK |",
		tools: "clang and lld; wasi-libc and libclang-rt-14-dev-wasm32 too if a source includes headers of the C library",
		hooks: "`WEIR_MIGRATE`, described in `weir.h`",
	},
	AssemblyScript: {
		title: "AssemblyScript", mark: "asconfig.json", main: "assembly/index.ts",
		sdk: map[string]string{
			"assembly/weir.ts": "assemblyscript/assembly/weir.ts",
			"package.json":     "assemblyscript/package.json", "package-lock.json": "assemblyscript/package-lock.json",
		},
		files: "| `assembly/index.ts` | the operator |\n| `assembly/weir.ts` | the SDK |\n| `package.json`, `package-lock.json` | for npm: the compiler, `npm ci` |",
		tools: "node, npm, and `npm ci` once",
		hooks: "`weir.registerMigrate`, described in `assembly/weir.ts`",
	},
}

// MainFile is where the operator's source is in a project, relative to its folder.
func MainFile(l Language) string { return languages[l].main }

const placeholder = "NAME-OF-OPERATOR"

var nameFormat = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

const sdkModule = "module github.com/weir-stream/weir/sdk/go\n\ngo 1.24\n"

// New writes a project into dir, which is made and must be empty; its last part is the operator's
// name. The project builds and passes its test as it stands.
func New(dir string, l Language) error {
	lang, ok := languages[l]
	if !ok {
		return fmt.Errorf("no SDK for %q; there are %v", l, Languages())
	}
	name, err := nameOf(dir)
	if err != nil {
		return err
	}
	if !nameFormat.MatchString(name) || len(name) > 64 {
		return fmt.Errorf("%q cannot be an operator's name: lower-case letters, digits and dashes, a letter first", name)
	}
	if there, err := os.ReadDir(dir); err == nil && len(there) > 0 {
		return fmt.Errorf("%s is not empty", dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	files := map[string][]byte{}
	for _, folder := range []string{"all", string(l)} {
		if err := collect(files, templates, path.Join("templates", folder), ""); err != nil {
			return err
		}
	}
	if err := addSDK(files, l); err != nil {
		return err
	}
	readme := strings.NewReplacer("LANGUAGE", lang.title, "FILES", lang.files, "TOOLS", lang.tools, "MIGRATE", lang.hooks, "COMMAND", strings.Join(shown(l, name), "\n"))
	files["README.md"] = []byte(readme.Replace(string(files["README.md"])))
	for file, data := range files {
		text := strings.ReplaceAll(string(data), placeholder, name)
		if strings.HasPrefix(file, "package") {
			text = strings.ReplaceAll(text, "weir-operator", name)
		}
		if err := write(filepath.Join(dir, filepath.FromSlash(file)), text); err != nil {
			return err
		}
	}
	return nil
}

// nameOf is the last part of a folder's path.
func nameOf(dir string) (string, error) {
	if dir == "" {
		return "", nil // not that of the working directory
	}
	abs, err := filepath.Abs(dir)
	return filepath.Base(abs), err
}

// addSDK adds the SDK's own files.
func addSDK(files map[string][]byte, l Language) error {
	if l == Go {
		files["weir/go.mod"] = []byte(sdkModule)
		return collect(files, sdk.Go, "go", "weir")
	}
	for to, from := range languages[l].sdk {
		data, err := sdk.Others.ReadFile(from)
		if err != nil {
			return err
		}
		files[to] = data
	}
	return nil
}

// collect adds the files below a folder. What Go would take for its own has .txt behind its name there. Tests
// of the SDK stay behind.
func collect(files map[string][]byte, from fs.FS, folder, to string) error {
	return fs.WalkDir(from, folder, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || to != "" && strings.HasSuffix(p, "_test.go") {
			return err
		}
		data, err := fs.ReadFile(from, p)
		name := strings.TrimSuffix(strings.TrimPrefix(p, folder+"/"), ".txt")
		if name == "gitignore" {
			name = ".gitignore"
		}
		files[path.Join(to, name)] = data
		return err
	})
}

func write(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

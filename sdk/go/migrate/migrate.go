// Package migrate lets an operator's variables survive an upgrade. A module that imports it exports
// weir_migrate_out and weir_migrate_in; keyed state needs neither, since it survives every upgrade.
//
//	func init() {
//		weir.Register(weir.Operator{Process: process})
//		migrate.Register(func() ([]byte, error) { return json.Marshal(state) },
//			func(b []byte) error { return json.Unmarshal(b, &state) })
//	}
//
// The old version's Out is called once, when the upgrade takes its place among the records, and the new
// version's In with what it gave, after Init. What the two agree on is theirs: begin with a number of the
// format, since In may be given what any older version, or after a roll-back a newer one, has written.
package migrate

import "errors"

var hooks struct {
	out func() ([]byte, error)
	in  func([]byte) error
}

// Register gives the hooks; it is called once, from an init function. An error of either refuses the upgrade,
// and the old version goes on. What in is given is valid until it returns.
func Register(out func() ([]byte, error), in func([]byte) error) {
	if out == nil || in == nil {
		panic("migrate.Register: both hooks are needed")
	}
	hooks.out, hooks.in = out, in
}

var errNone = errors.New("the module imports migrate and does not call migrate.Register")

// Out is what the host is given of this version; for tests.
func Out() ([]byte, error) {
	if hooks.out == nil {
		return nil, errNone
	}
	return hooks.out()
}

// In takes what another version gave; for tests.
func In(state []byte) error {
	if hooks.in == nil {
		return errNone
	}
	return hooks.in(state)
}

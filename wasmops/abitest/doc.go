// Package abitest checks WebAssembly modules against the guest ABI (docs/abi.md).
//
// [Verify] takes any operator and asks whether a host would take it: exports, imports, limits, whether all
// its state can be captured, and whether a copy that was restored goes on. [Kit] takes the conformance
// operator, which is written once for each SDK, and checks every part of the ABI through it. All SDKs
// give the same bytes: the records wanted are in the folder golden.
//
// # The conformance operator
//
// It opens the outputs "side" and "unused" besides "out". Its configuration is ratio (a number, 0.5 if it
// is not set) and limit (a whole number, 7 if it is not set); what is set to something else is a failure
// of weir_init whose reason is
//
//	config limit: "x" is not a whole number
//
// and "is not a number" for ratio. The first byte of a record's value is a command, the rest its
// argument. An answer is a record on "out" with the key and the time of the record and no headers. "-"
// stands for what is not there.
//
//	e         emits the record itself, headers included
//	s         emits it on "side" and on "unused"
//	nCOUNT    answers COUNT times: 0, 1, 2, …
//	wSIZE     answers with SIZE bytes "w"
//	cNAME     answers with a configuration value, or "-"
//	C         answers with ratio, at most 6 decimals, "|" and limit
//	hNAME     answers with a header's value, or "-"
//	i         answers with the index of the input
//	g         answers with the keyed state of the record's key, or "-"
//	pVALUE    puts VALUE there
//	d         deletes it; answers 1 if it was there, else 0
//	xPREFIX   scans: emits a record with key, the record's time and value of each entry
//	kNAME     adds the record's time to a counter
//	uNAME     sets a gauge to half of the record's time
//	lLEVEL…   logs the rest at a level of one digit
//	t         answers with the clock
//	f…        answers with the rest, then fails with it as the reason
//	j…        answers about the field "v" of a JSON object: its text or "-", "|", the number at most 3
//	          decimals or "-", "|", the bits of the double in 16 hexadecimal digits or "-"
//	rDNUMBER  answers with the number at D decimals at most, D one digit
//	q…        answers with the rest as a JSON string
//	TKAT      sets a timer with the record's key: K is 0 for event time, 1 for processing time, AT a time
//	UKAT      clears it; answers 1 if it was set, else 0
//	m         answers with the watermark, "-" before the first, "end" at the end
//	PUNTIL|…  puts the rest there, until the watermark has reached UNTIL
//	v         answers with how many records of this command there were, which is a plain variable
//	MTEXT     from now on weir_migrate_out gives TEXT; without any it fails with the reason "nothing to give"
//
// weir_migrate_out gives "1 " and how many records of the command v there were; weir_migrate_in goes on from there, and
// fails with the reason "unknown format" if it is given what does not begin with "1 ".
//
// A timer that is due emits a record on "out" with its key and time and the value "timer" and its kind, a digit.
// If the key begins with "a", it then sets the same timer again, if with "c", it clears that of event time
// with the same time and the key "d", if with "f", it fails with the reason "timer fails". Once
// there was one of these four commands (a plain variable), a watermark emits a record with its time, no key and the
// value "watermark", and the end one with the time 0, no key, and the value "end".
//
// An empty value is a failure with the reason "empty command", any other command one with "unknown
// command". A record that would be too large is a failure too. A batch that is not what its length and count
// say is a failure, never a trap and never read past its end.
package abitest

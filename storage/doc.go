// Package storage keeps what an agent must not lose: the input log of its tasks, their snapshots,
// copies of what the control plane knows, modules, and who the agent is.
//
// # Data directory
//
// [OpenDir] makes or opens it. One agent has it at a time.
//
//	lock           locked (flock) while the directory is open; holds the process id, for people
//	format         version of the layout, a decimal number; a newer one is refused
//	identity.json  name, instance id, incarnation: the number of openings
//	log/           the input log (Log)
//	state.db       snapshots (Store)
//	local.db       copies of jobs, plans, manifests (Copies)
//	blobs/         modules and packs (Blobs)
//	uploads/       modules that have not come whole yet (Uploads)
//
// # The log
//
// One sequence of entries for all tasks of an agent, in segment files NUMBER.seg (16 hexadecimal
// digits). A task has a stream in it. Positions count entries over all streams, ascend, and are never
// given out twice. All numbers are little-endian; checksums are CRC-32C.
//
// Segment header:
//
//	offset size field
//	     0    7 "WEIRLOG"
//	     7    1 format version (1)
//	     8    4 length of the header
//	    12    4 checksum of the header without this field
//	    16    8 log id, random; its low half is the seed of the records' checksums
//	    24    8 number of the segment
//	    32    8 position of the first entry
//	    40    4 next free stream id
//	    44    4 count of earlier segments that belong to the log
//	    48    4 count of streams
//	    52      earlier segments: number, first position, last position, length (8 each)
//	            streams: id (4), front (8), length of the name (2), name
//
// Records follow without gaps:
//
//	 0    4 length of the data
//	 4    4 checksum of the record without this field
//	 8    8 position
//	16    4 stream id; 0 in a commit record
//	20    1 kind of entry; 255 in a commit record
//	21    3 zero
//	24      data
//
// A commit record stands before the entries of each commit and has the position of the last entry
// before it. It is written only when everything before it in the file is durable, so a whole one
// behind a bad record tells damage from a torn write. Its data, all uvarints, may be empty: flag
// (1: the log was closed), new streams (count; id, length, name), fronts (count; id, position),
// dropped streams (count; id), segments whose files may be gone (count; number).
//
// Crash safety, operation by operation:
//
//   - Append copies to memory. Nothing is promised until Synced reaches the position.
//   - A commit writes a commit record and all entries that wait, at the end of the last segment, and
//     syncs once. Cut short, it leaves a torn tail; open keeps its whole entries up to the first bad
//     byte. What follows was never synced.
//   - A new segment is written under a temporary name, synced, renamed, and the directory synced,
//     before anything is written to it. Its header says up to where the segment before it counts;
//     nothing is added to that one any more.
//   - A failed write leaves what is durable alone; the file is cut back and the commit written again.
//     It goes on with growing waits up to 2 s until it succeeds or the log is closed.
//   - After a failed sync the pages written may be lost though they read back, and the block they
//     share with older entries may be damaged. The commit, and older commits in that block, which are
//     still in memory, are written again to a new segment. Until that is durable the new header lists
//     the old segment whole: open takes the end from whichever has it.
//   - Truncate moves a stream's front in memory. A segment of which no stream needs an entry is named in
//     a commit record, together with the fronts, and its file removed when that is durable. Segments
//     go one by one, so a stream that lags keeps only those with its own entries.
//   - On a full disk a commit that only gives segments up is written with the room of a file of 32 KiB,
//     ballast, that is kept for it; the log can always be opened and freed.
//   - Open writes the last commit again and syncs it before it counts (the process may have been killed
//     before its sync), then starts a new segment. Unless the log was closed its first position is
//     2^20 beyond the last one found, more than can have been given out, so that positions of lost
//     entries do not come again.
//   - Close writes a last commit record: after it even the final commit is proven.
//
// Damage anywhere but in a torn tail is an error that names file and offset; nothing is changed. A segment that
// the medium does not give back (EIO) is damaged as well.
//
// Assumptions: what was synced stays unless the device fails, then checksums find it; a sector that is
// written over with the same bytes does not get worse; rename is atomic.
//
// Limits: the last commit before a power cut, damaged afterwards, cannot be told from one that was
// never synced. An entry has at most 1 MiB of data. Each open that is followed by entries makes a
// segment. Followers that are behind read all entries of the segments that have theirs.
//
// # Snapshots
//
// state.db is a bbolt file: bucket format (version, checksum), bucket tasks with a bucket for each
// task, and in it
//
//	parts    version (8, big-endian) → manifest: flags, generation, epoch, position, size, floor, count
//	         of keys, sum of their hashes, reason of a rejection, the task's own state, checksum
//	keys     space (1), key with 00 as 00 ff, 00 01, inverted version (8) → hash (8), flag (1), value,
//	         or pack (8), offset (4), length (4)
//	packs    number of a pack → values of 512 bytes and more, together up to 64 KiB
//	small    the same for packs below 24 KiB
//	live     number of a pack → values, bytes needed, bytes at first (4 each), keys that refer to it
//	changed  version → the keys that its part changed
//	info     highest version, full part up to which keys were swept
//
// What a version has is, for every key, the newest value from its full part up to it that is not
// rejected. The hash of a value covers key, version and value. The manifest has the number of keys of
// the whole state and the sum of their hashes, so a value that is wrong, missing or too many is found
// when it is loaded, however often older parts were dropped.
//
// Save, Reject and Drop's steps, DropAll's for several tasks, are one transaction each, durable on return; a power cut leaves the
// state before or after it. bbolt's own pages have no checksums and it panics, or faults, on damaged
// ones. So every page is walked before bbolt gets the file; a file that fails is renamed to
// NAME.damaged-N, reported and replaced. Should a file be damaged while it is open, the store says so
// and refuses to go on; closing and opening it sets it aside. The file grows and never shrinks: free
// pages are used again.
//
// local.db has a bucket for each kind of copy, with a checksum before each value. All are checked at open: of a
// file in which one does not match, the others go into a new one. It is a file of its
// own so that a damaged snapshot file does not take the jobs with it, and so that a large snapshot,
// one write transaction, does not make a small copy wait.
//
// # Packs for the replica
//
// [Store.WritePack] writes a part, or the changes between two, as one stream:
//
//	 0    7 "WEIRPAK"
//	 7    1 format version (1)
//	 8    4 length of the rest of the header, little-endian
//	12      since, version, length of the task's name (uvarints), name, manifest
//	        XXH3 of the header up to here (8, little-endian)
//	        zstd: changes, each space (1), length of the key, key, length of the value + 1 (0: gone),
//	        value; then 0 (1), count of changes (8), XXH3 of the changes' bytes (8), little-endian
//
// # Blobs
//
// A blob is a file whose name is that of the blob with bytes other than letters, digits, '-', '_' and
// '.' as % and two digits. It is written under a temporary name, synced, renamed, and the directory
// synced, so it is there whole or not at all.
package storage

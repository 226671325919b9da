package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/storage"
)

// Diagnosis says how an agent's directory is.
type Diagnosis struct {
	Agent     string          `json:"agent"`
	Directory string          `json:"directory"`
	Starts    uint32          `json:"starts"`
	Items     []DiagnosedItem `json:"items"`
	Tasks     []DiagnosedTask `json:"tasks"`
}

// States of what was diagnosed.
const (
	DiagnosedFine    = "fine"
	DiagnosedMissing = "missing"
	DiagnosedDamaged = "damaged"
	DiagnosedFailed  = "unreadable" // but not known to be damaged
	DiagnosedKept    = "kept"       // set aside by an agent, in nobody's use
	DiagnosedFull    = "full"       // the disk: an agent cannot work on it
	DiagnosedLocked  = "read-only"  // likewise
)

// DiagnosedItem is one part of the directory.
type DiagnosedItem struct {
	Name    string    `json:"name"`
	Path    string    `json:"path"`
	State   string    `json:"state"`
	Bytes   int64     `json:"bytes"`
	Written time.Time `json:"written"`
	Detail  string    `json:"detail"`
	Advice  string    `json:"advice"`
}

// DiagnosedTask is a task that the agent would run.
type DiagnosedTask struct {
	Job   string `json:"job"`
	Task  string `json:"task"`
	State string `json:"state"`
	// Epoch is that of the newest snapshot; LogEntries follow it at least, entries of other tasks included.
	Epoch      uint64 `json:"epoch"`
	Parts      int    `json:"parts"`
	LogEntries uint64 `json:"log_entries"`
	Detail     string `json:"detail"`
	Advice     string `json:"advice"`
}

// Fine says that nothing is wrong.
func (d *Diagnosis) Fine() bool {
	for _, i := range d.Items {
		if i.State != DiagnosedFine && i.State != DiagnosedKept {
			return false
		}
	}
	for _, t := range d.Tasks {
		if t.State != DiagnosedFine {
			return false
		}
	}
	return true
}

// Diagnose looks at the directory of an agent that does not run. It writes nothing.
func Diagnose(dir string) (_ *Diagnosis, err error) {
	in, err := storage.Inspect(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	d := &Diagnosis{Agent: in.Identity.Name, Directory: in.Path, Starts: in.Starts, Items: []DiagnosedItem{}, Tasks: []DiagnosedTask{}}
	if free, readOnly, known := diskRoom(in.Path); known {
		d.Items = append(d.Items, diagnoseDisk(in.Path, free, readOnly))
	}
	fresh := onlyImported(in)
	for _, item := range in.Items {
		if errors.Is(item.Err, fs.ErrNotExist) && fresh && (item.Name == "log" || item.Name == "snapshots") {
			item.Err, item.Detail = nil, "there is none yet: a checkpoint was imported, and no agent has run here since the directory was made"
			d.Items = append(d.Items, DiagnosedItem{Name: item.Name, Path: item.Path, State: DiagnosedFine, Detail: item.Detail})
			continue
		}
		d.Items = append(d.Items, diagnose(item, in.Log))
	}
	if in.Copies != nil {
		d.diagnoseJobs(in)
		if letters := diagnoseLetters(in.Copies); letters.State != "" {
			d.Items = append(d.Items, letters)
		}
	}
	return d, nil
}

// onlyImported says whether all that has come into a directory is an imported checkpoint: no agent has run on it, so it has
// neither log nor snapshots, and a job goes on from the packs that came with it.
func onlyImported(in *storage.Inspection) bool {
	if in.Copies == nil || in.Identity.Name != "" {
		return false
	}
	id, ok, err := in.Copies.Get(copyCluster, "id")
	return err == nil && ok && string(id) == importedCluster
}

// leastRoom is what an agent needs to start and to take anything, in bytes.
const leastRoom = 4 << 20

// diagnoseDisk says whether an agent can work on the disk.
func diagnoseDisk(dir string, free int64, readOnly bool) DiagnosedItem {
	out := DiagnosedItem{Name: "disk", Path: dir, State: DiagnosedFine, Detail: fmt.Sprintf("%d MiB are free", free>>20)}
	switch {
	case readOnly:
		out.State, out.Detail = DiagnosedLocked, "nothing can be written"
		out.Advice = "the system may have made it so after an error: look into its log (dmesg), check the file system while no agent runs, and mount it for writing. The agent loses nothing by waiting"
	case free < leastRoom:
		out.State, out.Detail = DiagnosedFull, fmt.Sprintf("%d KiB are free", free>>10)
		out.Advice = fmt.Sprintf("make room, %d MiB at least: an agent on a full disk acknowledges nothing, takes no checkpoint and may not start. Delete nothing of this directory but what has been set aside; the agent goes on by itself when there is room", leastRoom>>20)
	}
	return out
}

// advice says what becomes of a part of the directory that is missing or damaged, and what can be done.
var advice = map[string]string{
	"identity":          "restore the file from a backup of this directory, or start the agent with a new directory and --name, and apply its jobs with --replace",
	"log":               "what the sources of this agent acknowledged since their newest snapshots is in it alone. Started as it is, the agent sets it aside, and tasks that need it stop and say so: their jobs are applied again with --replace NAME, if all tasks of this agent begin with sources, and else deleted and applied again. Restore the directory instead if there is a copy of it, taken while the agent was stopped",
	"snapshots":         "start the agent: it sets the file aside and fetches the newest replicated snapshots, from which the log leads on",
	"local copies":      "start the agent with its control plane in reach: it sets the file aside and gets jobs and manifests from there",
	"modules and packs": "start the agent with its control plane in reach: it fetches modules again. What came from an imported checkpoint must be imported again",
}

func diagnose(item storage.Inspected, log storage.LogReport) DiagnosedItem {
	out := DiagnosedItem{Name: item.Name, Path: item.Path, State: DiagnosedFine, Bytes: item.Bytes, Written: item.Modified.UTC(), Detail: item.Detail}
	switch {
	case item.Name == "set aside":
		out.State, out.Advice = DiagnosedKept, "nobody uses it: delete it when nobody wants to look at it any more"
		return out
	case item.Err == nil:
	case errors.Is(item.Err, storage.ErrCorrupt):
		out.State = DiagnosedDamaged
	case errors.Is(item.Err, fs.ErrNotExist):
		out.State = DiagnosedMissing
	default:
		out.State = DiagnosedFailed
	}
	if item.Err != nil {
		out.Detail = item.Err.Error()
		if out.State != DiagnosedFailed {
			out.Advice = advice[item.Name]
		}
	} else if item.Name == "log" {
		out.Detail = fmt.Sprintf("%d segments, %d streams, last entry %d", log.Segments, len(log.Streams), log.Last)
		if !log.Closed {
			out.Detail += "; the agent was cut off, which is no harm"
		}
	}
	return out
}

// diagnoseJobs looks whether snapshots and log of the tasks fit together.
func (d *Diagnosis) diagnoseJobs(in *storage.Inspection) {
	err := in.Copies.List(copyJob, func(_ string, value []byte) error {
		var rec jobRecord
		if err := json.Unmarshal(value, &rec); err != nil {
			return err
		}
		if rec.State == jobDeleted || rec.Plan == nil {
			return nil
		}
		for _, t := range rec.Plan.On(in.Identity.Name) {
			d.Tasks = append(d.Tasks, diagnoseTask(in, rec, t.ID, t.Source != nil))
		}
		return nil
	})
	if err != nil {
		d.Items = append(d.Items, DiagnosedItem{Name: "jobs", Path: in.Path, State: DiagnosedDamaged, Detail: err.Error(), Advice: advice["local copies"]})
	}
}

// diagnoseLetters looks whether the dead letters can be read. Without any it returns nothing.
func diagnoseLetters(copies *storage.Copies) (out DiagnosedItem) {
	kept, damaged := 0, []string{}
	err := copies.List(copyDead, func(id string, value []byte) error {
		kept++
		out.Bytes += int64(len(value))
		if r, _ := readLetter(id, value); r.damaged {
			damaged = append(damaged, id)
		}
		return nil
	})
	switch out.Name = "dead letters"; {
	case err != nil:
		out.State, out.Detail, out.Advice = DiagnosedDamaged, err.Error(), advice["local copies"]
	case kept == 0:
		return DiagnosedItem{}
	case len(damaged) > 0:
		out.State, out.Detail = DiagnosedDamaged, fmt.Sprintf("%d of %d cannot be read: %s", len(damaged), kept, strings.Join(damaged[:min(3, len(damaged))], ", "))
		if len(damaged) > 3 {
			out.Detail += ", …"
		}
		out.Advice = "they keep nothing from running, and cannot be replayed: agent job deadletters shows what is kept of them"
	default:
		out.State, out.Detail = DiagnosedFine, fmt.Sprintf("%d, all of which can be read", kept)
	}
	return out
}

func diagnoseTask(in *storage.Inspection, rec jobRecord, id abs.TaskID, source bool) DiagnosedTask {
	name := rec.Name + "/" + string(id)
	out := DiagnosedTask{Job: rec.Name, Task: string(id), State: DiagnosedFine}
	fail := func(state, advice, format string, args ...any) DiagnosedTask {
		out.State, out.Advice, out.Detail = state, advice, fmt.Sprintf(format, args...)
		return out
	}
	if in.Store == nil {
		return fail(DiagnosedMissing, advice["snapshots"], "no snapshots can be read")
	}
	parts, err := in.Store.Parts(name)
	if err != nil {
		return fail(DiagnosedDamaged, advice["snapshots"], "%v", err)
	}
	var newest *dataflow.PartInfo
	for i, p := range parts {
		if p.Generation == rec.Generation && (newest == nil || p.Pos >= newest.Pos) {
			newest = &parts[i]
		}
	}
	out.Parts = len(parts)
	stream, logged := in.Log.Streams[name]
	switch {
	case newest == nil && rec.live() && len(parts) == 0 && logged && stream.Last > stream.Front:
		return fail(DiagnosedMissing, advice["snapshots"], "the log has entries of it, and there is no snapshot that they follow")
	case newest == nil:
		out.Detail = "has not begun its generation"
		return out
	}
	out.Epoch = uint64(newest.Epoch)
	of, err := dataflow.LogOf(*newest)
	switch {
	case err != nil:
		return fail(DiagnosedDamaged, advice["snapshots"], "%v", err)
	case of != in.Log.ID:
		return fail(DiagnosedMissing, advice["log"], "its newest snapshot is of another log than the one that is there")
	case in.Log.Last < newest.Pos:
		return fail(DiagnosedMissing, advice["log"], "its newest snapshot is of log entry %d, and the log ends at %d", newest.Pos, in.Log.Last)
	case logged && stream.Front > newest.Pos:
		return fail(DiagnosedMissing, advice["snapshots"], "its newest snapshot is of log entry %d, and its log begins after %d", newest.Pos, stream.Front)
	case logged && stream.Last > newest.Pos:
		out.LogEntries = uint64(stream.Last - newest.Pos)
	}
	out.Detail = "goes on from its snapshot"
	if out.LogEntries > 0 {
		out.Detail += fmt.Sprintf(" and up to %d log entries", out.LogEntries)
	}
	if source {
		out.Detail += "; what its log holds was acknowledged"
	}
	return out
}

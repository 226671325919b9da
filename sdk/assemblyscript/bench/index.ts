// The operators that benchmarks compare, see BenchmarkOperators in sdk/project: "mode" is noop, filter, count or
// state.
import * as weir from "../assembly/weir";
export { weir_abi_v1, weir_alloc, weir_init, weir_process } from "../assembly/weir";

@unmanaged
class Count {
  n: i64 = 0;
}

enum Mode {
  Noop,
  Filter,
  Count,
  State,
}

let mode = Mode.Noop;
const counts = new weir.KeyMap<Count>();
const text = new weir.Text();

function start(): bool {
  const name = weir.configString("mode", "noop");
  mode = name == "filter" ? Mode.Filter : name == "count" ? Mode.Count : name == "state" ? Mode.State : Mode.Noop;
  return true;
}

function answer(r: weir.Record, n: i64): void {
  text.clear();
  text.putInt(n);
  weir.emit(weir.OUT, r.key, r.time, text);
}

function process(r: weir.Record): bool {
  switch (mode) {
    case Mode.Filter:
      if (r.value.len && r.value.at(r.value.len - 1) & 1) weir.emitRecord(weir.OUT, r);
      break;
    case Mode.Count:
      answer(r, ++counts.at(r.key).n);
      break;
    case Mode.State: {
      const n: i64 = weir.stateGet(r.key, text) ? load<i64>(text.ptr) + 1 : 1;
      text.clear();
      text.reserve(8);
      store<i64>(text.ptr, n);
      text.len = 8;
      weir.statePut(r.key, text);
      answer(r, n);
    }
  }
  return true;
}

weir.register(process, start);

//! Weir operators in Rust, in this one file. It needs `core` and nothing else.
//!
//! ```ignore
//! mod weir;
//!
//! struct Count {
//!     seen: i64, // the operator's variables are its state: the host captures and restores them
//!     text: weir::Text,
//! }
//!
//! impl weir::Operator for Count {
//!     fn new(_: &weir::Config) -> weir::Result<Self> {
//!         Ok(Count { seen: 0, text: weir::Text::new() })
//!     }
//!     fn process(&mut self, r: &weir::Record, out: &mut weir::Out) -> weir::Result {
//!         self.seen += 1;
//!         self.text.clear();
//!         self.text.put_int(self.seen);
//!         out.emit(r.key, r.time, &self.text);
//!         Ok(())
//!     }
//! }
//!
//! weir::operator!(Count);
//! ```
//!
//! Build it with (Debian: rustc, libstd-rust-dev-wasm32, lld)
//!
//! ```sh
//! rustc --edition 2021 --crate-type cdylib --target wasm32-unknown-unknown -C opt-level=3 \
//!     -C panic=abort -C lto -C strip=symbols -C linker=wasm-ld -o operator.wasm src/lib.rs
//! ```
//!
//! Nothing here allocates per record, once its buffers have grown. What a module imports and exports is described in
//! docs/abi.md.

#![allow(dead_code)]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

pub use crate::{migrate, operator};

/// The host's functions.
mod host {
    #[link(wasm_import_module = "weir")]
    extern "C" {
        pub fn emit(output: u32, ptr: *const u8, len: usize, count: u32);
        pub fn output_open(name: *const u8, len: usize) -> i32;
        pub fn config_get(key: *const u8, len: usize, out: *mut u8, cap: usize) -> i32;
        pub fn state_get(key: *const u8, len: usize, out: *mut u8, cap: usize) -> i32;
        pub fn state_put(key: *const u8, len: usize, value: *const u8, value_len: usize);
        pub fn state_delete(key: *const u8, len: usize) -> i32;
        pub fn state_scan(prefix: *const u8, prefix_len: usize, after: *const u8, after_len: usize, out: *mut u8, cap: usize) -> i32;
        pub fn log(level: u32, ptr: *const u8, len: usize);
        pub fn counter_add(name: *const u8, len: usize, delta: i64);
        pub fn gauge_set(name: *const u8, len: usize, value: f64);
        pub fn clock_ms() -> i64;
        pub fn state_put_until(key: *const u8, len: usize, value: *const u8, value_len: usize, until: i64);
        pub fn timer_set(kind: u32, at: i64, key: *const u8, len: usize);
        pub fn timer_clear(kind: u32, at: i64, key: *const u8, len: usize) -> i32;
        pub fn watermark() -> i64;
        pub fn fail(ptr: *const u8, len: usize);
    }
}

/// Largest record in bytes, with 16 bytes for what is not key, headers and value.
pub const MAX_RECORD: usize = 256 << 10;
/// Longest key of a record in bytes.
pub const MAX_KEY: usize = 8 << 10;
/// The output that every operator has.
pub const MAIN_OUTPUT: &str = "out";

const FIXED: usize = 16;

/// Why a record, or a configuration, is not taken. Made from anything that is text: `"reason"`, a `String`,
/// a [`Text`].
pub struct Failure(Text);

impl<T: AsRef<[u8]>> From<T> for Failure {
    fn from(reason: T) -> Self {
        let mut text = Text::new();
        text.put(reason.as_ref());
        Failure(text)
    }
}

impl Failure {
    /// The reason as text.
    pub fn reason(&self) -> &[u8] {
        &self.0
    }
}

pub type Result<T = ()> = core::result::Result<T, Failure>;

/// One record of a stream. What it refers to is borrowed until `process` returns.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// Event time in milliseconds since 1970.
    pub time: i64,
    pub key: &'a [u8],
    /// Encoded; see [`Record::header`].
    pub headers: &'a [u8],
    pub value: &'a [u8],
    /// Index of the operator's input, in the order of the job. Not used when a record is emitted.
    pub input: u32,
}

impl<'a> Record<'a> {
    /// The value of a header. A message's MQTT topic is in "topic".
    pub fn header(&self, name: &[u8]) -> Option<&'a [u8]> {
        let mut b = self.headers;
        while b.len() >= 3 {
            let (n, v) = (b[0] as usize, u16::from_le_bytes([b[1], b[2]]) as usize);
            if 3 + n + v > b.len() {
                return None;
            }
            if &b[3..3 + n] == name {
                return Some(&b[3 + n..3 + n + v]);
            }
            b = &b[3 + n + v..];
        }
        None
    }

    /// Splits the first record off a batch.
    #[inline(always)]
    fn next(b: &'a [u8], input: u32) -> Option<(Record<'a>, &'a [u8])> {
        if b.len() < FIXED {
            return None;
        }
        let size = u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize;
        let key = u16::from_le_bytes([b[12], b[13]]) as usize;
        let headers = u16::from_le_bytes([b[14], b[15]]) as usize;
        if size > b.len() - 4 || FIXED + key + headers > size + 4 {
            return None;
        }
        let time = i64::from_le_bytes([b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11]]);
        // Checked above: key and headers are within the record, and it is within the batch.
        let part = |from: usize, to: usize| unsafe { b.get_unchecked(from..to) };
        let (headers_at, value_at, end) = (FIXED + key, FIXED + key + headers, size + 4);
        let (key, headers, value, rest) = (part(FIXED, headers_at), part(headers_at, value_at), part(value_at, end), part(end, b.len()));
        Some((Record { time, key, headers, value, input }, rest))
    }
}

/// An operator. Its fields are its state.
pub trait Operator: Sized {
    /// Names of side outputs, besides [`MAIN_OUTPUT`].
    const OUTPUTS: &'static [&'static str] = &[];
    /// Called once, before the first record. A failure refuses the job's configuration.
    fn new(config: &Config) -> Result<Self>;
    /// Called for each record, in order. After a failure, or a panic, the operator's state is put back to
    /// what it was before the record, which is given up as the job says (on_error).
    fn process(&mut self, r: &Record, out: &mut Out) -> Result;
    /// Called for each timer that [`set_timer`] has set, once its time has come. A failure gives it up.
    fn on_timer(&mut self, _: &Timer, _: &mut Out) -> Result {
        Err(Failure::from("a timer is due and Operator::on_timer is not there"))
    }
    /// Called when the watermark has moved on, after the timers that it makes due; [`END_OF_TIME`] at the end.
    fn on_watermark(&mut self, _at: i64, _: &mut Out) -> Result {
        Ok(())
    }
    /// Called once when the input has ended, after the timers and `on_watermark`; nothing follows.
    fn on_end(&mut self, _: &mut Out) -> Result {
        Ok(())
    }
}

/// An operator whose variables survive an upgrade; `weir::migrate!(T);` behind `weir::operator!(T);` exports it. Without it,
/// in both versions, variables begin anew. Keyed state needs none of it.
///
/// What the two versions agree on is theirs: begin with a number of the format, since `migrate_in` may be given
/// what any older version, or after a roll-back a newer one, has written. A failure of either refuses the
/// upgrade, and the old version goes on.
pub trait Migrate {
    /// Writes what the next version is to have, at most 16 MiB. Called once in the old version, when the upgrade takes its
    /// place among the records.
    fn migrate_out(&self, state: &mut Text) -> Result;
    /// Takes what another version wrote. Called once, after `new`.
    fn migrate_in(&mut self, state: &[u8]) -> Result;
}

/// Which clock a timer waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerKind {
    /// Due when the watermark reaches the timer.
    EventTime,
    /// Due when the agent's clock reaches the timer, some 100 ms later at most.
    ProcessingTime,
}

/// A timer that is due. Its key is borrowed until `on_timer` returns.
#[derive(Clone, Copy)]
pub struct Timer<'a> {
    pub kind: TimerKind,
    /// Milliseconds since 1970.
    pub at: i64,
    pub key: &'a [u8],
}

/// The watermark before the first one.
pub const NO_WATERMARK: i64 = i64::MIN;
/// The watermark at the end of the input.
pub const END_OF_TIME: i64 = i64::MAX;

/// Asks for a call of [`Operator::on_timer`] at a time in milliseconds since 1970. There is one timer for each kind,
/// time and key, which has up to 4,096 bytes. Timers that are due together fire in order of time, then
/// key. One set at or before the watermark, or while timers fire, is due when the watermark moves next, or at the end
/// of the input; those of processing time, likewise, at the next tick of the clock, and not at the end.
pub fn set_timer(kind: TimerKind, at: i64, key: &[u8]) {
    unsafe { host::timer_set(kind as u32, at, key.as_ptr(), key.len()) }
}

/// Takes a timer back and says whether it was set.
pub fn clear_timer(kind: TimerKind, at: i64, key: &[u8]) -> bool {
    unsafe { host::timer_clear(kind as u32, at, key.as_ptr(), key.len()) != 0 }
}

/// How far event time has come, in milliseconds since 1970: a record with a time before it is late. It never goes
/// back.
#[inline(always)]
pub fn watermark() -> i64 {
    let known = unsafe { &mut *WATERMARK.0.get() };
    *known.get_or_insert_with(|| unsafe { host::watermark() })
}

/// The watermark, once it was asked for in the host's call under way: it moves between calls only.
struct Watermark(UnsafeCell<Option<i64>>);

unsafe impl Sync for Watermark {} // one thread

static WATERMARK: Watermark = Watermark(UnsafeCell::new(None));

/// Takes what an operator emits. What is given to it is copied.
pub struct Out {
    outputs: List<Output>,
}

struct Output {
    name: &'static str,
    index: i32, // -1: the job does not use it
    buf: Text,
    count: u32,
}

impl Output {
    fn open(name: &'static str) -> Self {
        let index = unsafe { host::output_open(name.as_ptr(), name.len()) };
        Output { name, index, buf: Text::new(), count: 0 }
    }

    #[inline(always)]
    fn add(&mut self, key: &[u8], headers: &[u8], time: i64, value: &[u8]) {
        if self.index < 0 {
            return;
        }
        let size = FIXED + key.len() + headers.len() + value.len();
        if key.len() > MAX_KEY || headers.len() > 65535 || size > MAX_RECORD {
            too_large(size, key.len());
        }
        if self.buf.0.cap - self.buf.0.len < size {
            self.buf.0.reserve(size.max(64 << 10));
        }
        // There is room: no call below can fail or grow.
        unsafe {
            let p = self.buf.0.ptr.add(self.buf.0.len);
            (p as *mut u32).write_unaligned((size as u32 - 4).to_le());
            (p.add(4) as *mut i64).write_unaligned(time.to_le());
            (p.add(12) as *mut u16).write_unaligned((key.len() as u16).to_le());
            (p.add(14) as *mut u16).write_unaligned((headers.len() as u16).to_le());
            let p = p.add(FIXED);
            copy(p, key);
            copy(p.add(key.len()), headers);
            copy(p.add(key.len() + headers.len()), value);
        }
        self.buf.0.len += size;
        self.count += 1;
    }
}

/// Copies short runs, as keys are, in words: a call costs more.
#[inline(always)]
pub(crate) unsafe fn copy(to: *mut u8, from: &[u8]) {
    let (n, from) = (from.len(), from.as_ptr());
    if n > 64 {
        core::ptr::copy_nonoverlapping(from, to, n);
    } else if n >= 8 {
        let last = (from.add(n - 8) as *const u64).read_unaligned();
        let mut i = 0;
        while i + 8 < n {
            (to.add(i) as *mut u64).write_unaligned((from.add(i) as *const u64).read_unaligned());
            i += 8;
        }
        (to.add(n - 8) as *mut u64).write_unaligned(last);
    } else if n >= 4 {
        let first = (from as *const u32).read_unaligned();
        let last = (from.add(n - 4) as *const u32).read_unaligned();
        (to as *mut u32).write_unaligned(first);
        (to.add(n - 4) as *mut u32).write_unaligned(last);
    } else if n > 0 {
        *to = *from;
        *to.add(n / 2) = *from.add(n / 2);
        *to.add(n - 1) = *from.add(n - 1);
    }
}

#[cold]
#[inline(never)]
fn too_large(size: usize, key: usize) -> ! {
    panic!("record of {} bytes with a key of {}, at most {} and {}", size, key, MAX_RECORD, MAX_KEY)
}

impl Out {
    /// Emits a record on the main output. Time is the event time in milliseconds since 1970.
    #[inline(always)]
    pub fn emit(&mut self, key: &[u8], time: i64, value: &[u8]) {
        self.outputs[0].add(key, &[], time, value)
    }

    /// Emits a record on the output of that name: [`MAIN_OUTPUT`] or one of [`Operator::OUTPUTS`].
    #[inline(always)]
    pub fn emit_to(&mut self, output: &str, key: &[u8], time: i64, value: &[u8]) {
        self.named(output).add(key, &[], time, value)
    }

    /// Emits a whole record, with its headers, on the output of that name.
    #[inline(always)]
    pub fn emit_record(&mut self, output: &str, r: &Record) {
        self.named(output).add(r.key, r.headers, r.time, r.value)
    }

    #[inline(always)]
    fn named(&mut self, name: &str) -> &mut Output {
        // Most often it is the very same text.
        let same = |o: &Output| core::ptr::eq(o.name, name);
        match self.outputs.iter().position(same).or_else(|| self.outputs.iter().position(|o| o.name == name)) {
            Some(i) => &mut self.outputs[i],
            None => panic!("operator has no output {}: name it in Operator::OUTPUTS", name),
        }
    }
}

/// The operator's configuration in the job file. It is fixed for the life of an operator.
#[derive(Clone, Copy, Default)]
pub struct Config(());

impl Config {
    /// The value of a key, None if it is not set.
    pub fn get(&self, key: &str) -> Option<Text> {
        let mut text = Text::new();
        fetch(&mut text, |out, cap| unsafe { host::config_get(key.as_ptr(), key.len(), out, cap) }).then(|| text)
    }

    /// The names of all keys that are set, sorted, with a line feed between them. Empty on an agent that does not tell.
    pub fn keys(&self) -> Text {
        self.get("weir:keys").unwrap_or_default()
    }

    /// Whether the job has event time: without it no watermark comes before the end of the input, and no timer of event
    /// time is called until then. An agent that does not tell has it.
    pub fn event_time(&self) -> bool {
        self.get("weir:event_time").map_or(true, |v| &v[..] != b"none")
    }

    /// The number that a key is set to, or the fallback. The failure names the key and its value.
    pub fn float(&self, key: &str, fallback: f64) -> Result<f64> {
        match self.get(key) {
            None => Ok(fallback),
            Some(v) => number(&v).ok_or_else(|| wrong(key, &v, "a number")),
        }
    }

    /// The whole number that a key is set to, or the fallback. The failure names the key and its value.
    pub fn int(&self, key: &str, fallback: i64) -> Result<i64> {
        match self.get(key) {
            None => Ok(fallback),
            Some(v) => v.as_str().parse().map_err(|_| wrong(key, &v, "a whole number")),
        }
    }
}

fn wrong(key: &str, value: &[u8], what: &str) -> Failure {
    let mut text = Text::new();
    text.put(b"config ");
    text.put(key.as_bytes());
    text.put(b": ");
    text.put_json(value);
    text.put(b" is not ");
    text.put(what.as_bytes());
    Failure(text)
}

/// Reads into buf what a look-up gives, in a second call if it is larger; false if there is nothing.
#[inline(always)]
fn fetch(buf: &mut Text, look: impl Fn(*mut u8, usize) -> i32) -> bool {
    buf.clear();
    loop {
        let n = look(buf.0.ptr, buf.0.cap);
        if n < 0 {
            return false;
        }
        if n as usize <= buf.0.cap {
            buf.0.len = n as usize;
            return true;
        }
        buf.0.reserve(n as usize);
    }
}

/// State that the host keeps by key: it may exceed memory, and follows its keys when a job is rescaled.
/// Keys have 1 to 4,096 bytes, values up to 1 MiB.
pub mod state {
    use super::{fetch, host, Text};

    /// Reads the value of a key into buf; false if there is none.
    #[inline(always)]
    pub fn get(key: &[u8], buf: &mut Text) -> bool {
        fetch(buf, |out, cap| unsafe { host::state_get(key.as_ptr(), key.len(), out, cap) })
    }

    /// Sets the value of a key.
    #[inline(always)]
    pub fn put(key: &[u8], value: &[u8]) {
        unsafe { host::state_put(key.as_ptr(), key.len(), value.as_ptr(), value.len()) }
    }

    /// Sets the value of a key for a time: it is gone once the watermark has reached until, in milliseconds since
    /// 1970. `put` makes it stay again.
    pub fn put_until(key: &[u8], value: &[u8], until: i64) {
        unsafe { host::state_put_until(key.as_ptr(), key.len(), value.as_ptr(), value.len(), until) }
    }

    /// Removes a key and says whether it was there.
    pub fn delete(key: &[u8]) -> bool {
        unsafe { host::state_delete(key.as_ptr(), key.len()) != 0 }
    }

    /// Visits the keys that begin with prefix in byte order until visit returns false. Keys may be changed
    /// meanwhile; a change may or may not be seen.
    pub fn scan(prefix: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> bool) {
        let (mut buf, mut after) = (Text::new(), Text::new());
        buf.0.reserve(16 << 10);
        loop {
            let n = unsafe { host::state_scan(prefix.as_ptr(), prefix.len(), after.as_ptr(), after.len(), buf.0.ptr, buf.0.cap) };
            if n == 0 {
                return;
            }
            if n < 0 {
                buf.0.reserve(n.unsigned_abs() as usize);
                continue;
            }
            buf.0.len = n as usize;
            let mut b = &buf[..];
            while b.len() >= 8 {
                let size = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]) as usize;
                let (klen, vlen) = (size(0), size(4));
                let (key, value) = (&b[8..8 + klen], &b[8 + klen..8 + klen + vlen]);
                b = &b[8 + klen + vlen..];
                if b.is_empty() {
                    after.clear();
                    after.put(key);
                }
                if !visit(key, value) {
                    return;
                }
            }
            buf.clear();
        }
    }
}

/// Level of a log line.
#[derive(Clone, Copy)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Writes a line to the agent's log. Lines beyond the host's rate are dropped and counted.
pub fn log(level: Level, text: impl AsRef<[u8]>) {
    let text = text.as_ref();
    unsafe { host::log(level as u32, text.as_ptr(), text.len()) }
}

/// Adds to a counter of this operator, which the agent shows as a metric. Counters and gauges have 64 names
/// together.
pub fn count(counter: impl AsRef<[u8]>, delta: i64) {
    let name = counter.as_ref();
    unsafe { host::counter_add(name.as_ptr(), name.len(), delta) }
}

/// Sets a gauge of this operator, which the agent shows as a metric.
pub fn gauge(gauge: impl AsRef<[u8]>, value: f64) {
    let name = gauge.as_ref();
    unsafe { host::gauge_set(name.as_ptr(), name.len(), value) }
}

/// The host's clock in milliseconds since 1970: the time at which the agent logged the records that are
/// being processed. It is 0 in [`Operator::new`].
pub fn now() -> i64 {
    unsafe { host::clock_ms() }
}

/// Text, or other bytes, that grows: like a `Vec<u8>`, but without an allocator of the program's.
pub struct Text(List<u8>);

impl Deref for Text {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Text {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl core::fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        self.put(s.as_bytes());
        Ok(())
    }
}

impl Default for Text {
    fn default() -> Self {
        Text::new()
    }
}

impl Text {
    pub const fn new() -> Self {
        Text(List::new())
    }

    /// The text; empty if it is not UTF-8.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self).unwrap_or("")
    }

    #[inline(always)]
    pub fn clear(&mut self) {
        self.0.len = 0;
    }

    /// Keeps so many bytes from the beginning, if there are more.
    #[inline(always)]
    pub fn truncate(&mut self, len: usize) {
        self.0.len = self.0.len.min(len);
    }

    #[inline(always)]
    pub fn put_byte(&mut self, c: u8) {
        self.0.push(c);
    }

    #[inline(always)]
    pub fn put(&mut self, b: &[u8]) {
        if self.0.cap - self.0.len < b.len() {
            self.0.reserve(b.len());
        }
        unsafe { copy(self.0.ptr.add(self.0.len), b) };
        self.0.len += b.len();
    }

    /// Makes it so many bytes long and gives them to be written, whatever they are now.
    #[inline(always)]
    pub(crate) fn refill(&mut self, len: usize) -> *mut u8 {
        if self.0.cap < len {
            self.0.reserve(len - self.0.len.min(len));
        }
        self.0.len = len;
        self.0.ptr
    }

    /// Appends a whole number.
    pub fn put_int(&mut self, v: i64) {
        if v < 0 {
            self.put_byte(b'-');
        }
        self.put_unsigned(v.unsigned_abs());
    }

    fn put_unsigned(&mut self, mut u: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        while u > u32::MAX as u64 {
            at -= 1;
            digits[at] = b'0' + (u % 10) as u8;
            u /= 10;
        }
        let mut u = u as u32; // divides faster
        loop {
            at -= 1;
            digits[at] = b'0' + (u % 10) as u8;
            u /= 10;
            if u == 0 {
                break;
            }
        }
        self.put(&digits[at..]);
    }

    /// Appends a number rounded to so many decimals (0 to 9), half away from zero, without zeros at the end:
    /// the same text in every language's SDK. What cannot be written so, because it is infinite, not a number,
    /// or v times 10 to the power of decimals is 2^63 or more, becomes null.
    pub fn put_fixed(&mut self, v: f64, decimals: usize) {
        const POWERS: [u64; 10] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];
        assert!(decimals <= 9, "put_fixed: 0 to 9 decimals");
        let mut p = POWERS[decimals];
        let x = v * p as f64;
        if !(x < 9223372036854775808.0 && x > -9223372036854775808.0) {
            self.put(b"null");
            return;
        }
        let mut i = x as i64;
        let off = x - i as f64;
        if off >= 0.5 {
            i += 1;
        } else if off <= -0.5 {
            i -= 1;
        }
        if i < 0 {
            self.put_byte(b'-');
        }
        let mut u = i.unsigned_abs();
        self.put_unsigned(u / p);
        u %= p;
        if u > 0 {
            self.put_byte(b'.');
        }
        while u > 0 {
            p /= 10;
            self.put_byte(b'0' + (u / p) as u8);
            u %= p;
        }
    }

    /// Appends a JSON string. Bytes that are not ASCII are appended as they are.
    pub fn put_json(&mut self, text: &[u8]) {
        let hex = b"0123456789abcdef";
        self.put_byte(b'"');
        for &c in text {
            match c {
                b'"' | b'\\' => self.put(&[b'\\', c]),
                0..=31 => self.put(&[b'\\', b'u', b'0', b'0', hex[(c >> 4) as usize], hex[(c & 15) as usize]]),
                _ => self.put_byte(c),
            }
        }
        self.put_byte(b'"');
    }
}

/// Reads a decimal number, as in JSON: the nearest double, as every language's SDK reads it. None if b is
/// something else, or too large for a double.
pub fn number(b: &[u8]) -> Option<f64> {
    if let Some(v) = short_number(b) {
        return Some(v);
    }
    for c in b {
        if !matches!(c, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E') {
            return None;
        }
    }
    let v: f64 = core::str::from_utf8(b).ok()?.parse().ok()?;
    (v < f64::INFINITY && v > f64::NEG_INFINITY).then(|| v)
}

/// A number of up to 15 digits without an exponent, as most are: both numbers that it is the quotient of are
/// exact, so it is the nearest double.
#[inline(always)]
fn short_number(b: &[u8]) -> Option<f64> {
    const POWERS: [f64; 16] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
    let negative = b.first() == Some(&b'-');
    let digits = &b[negative as usize..];
    if digits.is_empty() || digits.len() > 15 {
        return None;
    }
    let (mut v, mut point) = (0u64, None);
    for (i, &c) in digits.iter().enumerate() {
        match c {
            b'0'..=b'9' => v = v * 10 + (c - b'0') as u64,
            b'.' if point.is_none() && i > 0 && i + 1 < digits.len() => point = Some(i),
            _ => return None,
        }
    }
    let v = v as f64 / POWERS[point.map_or(0, |i| digits.len() - 1 - i)];
    Some(if negative { -v } else { v })
}

/// The raw JSON of a field of an object; None if value is not an object or has no such field before its
/// first error. Names are compared byte by byte: names written with escapes are not found. It does not
/// look into nested objects; what comes after the field is not checked.
pub fn json_field<'a>(value: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut s = Scanner { b: value, at: 0 };
    if !s.take(b'{') {
        return None;
    }
    loop {
        let key = s.value()?;
        if key[0] != b'"' || !s.take(b':') {
            return None;
        }
        let field = s.value()?;
        let found = equal(&key[1..key.len() - 1], name);
        if found && s.take(b'}') {
            return Some(field);
        }
        if !s.take(b',') {
            return None;
        }
        if found {
            return Some(field);
        }
    }
}

/// A number field of an object; None if there is none or it is no number.
pub fn json_number(value: &[u8], name: &[u8]) -> Option<f64> {
    number(json_field(value, name)?)
}

/// Visits the fields of an object in order, with their names as they are written, up to its first error.
pub fn json_fields<'a>(value: &'a [u8], mut visit: impl FnMut(&'a [u8], &'a [u8])) {
    let mut s = Scanner { b: value, at: 0 };
    let mut more = s.take(b'{');
    while more {
        match (s.value(), s.take(b':'), s.value()) {
            (Some(name), true, Some(raw)) if name[0] == b'"' => visit(&name[1..name.len() - 1], raw),
            _ => return,
        }
        more = s.take(b',');
    }
}

/// Says where in a JSON text a value is: the names of fields and the indexes of elements that lead to it, from outside to
/// inside. The empty path is the whole text.
#[derive(Default)]
pub struct Path(List<Text>);

impl Path {
    /// Reads a path as it is written in a configuration: parts with dots between them, as in
    /// "motor.phases.0.current". A part that is a whole number is an element of an array, counted from 0, or a
    /// field of that name. A backslash takes the next byte as it is: "a\.b" is one field. "" is the empty path.
    pub fn parse(text: &[u8]) -> Result<Path> {
        let mut path = Path(List::new());
        if text.is_empty() {
            return Ok(path);
        }
        let mut part = Text::new();
        let mut i = 0;
        loop {
            match text.get(i) {
                None | Some(b'.') => {
                    let most = path.0.len() == 32;
                    if part.is_empty() || most {
                        let mut why = Text::new();
                        why.put(b"path ");
                        why.put_json(text);
                        why.put(if most { b" has more than 32 parts" } else { b" has an empty part" });
                        return Err(Failure(why));
                    }
                    path.0.push(core::mem::take(&mut part));
                    if i == text.len() {
                        return Ok(path);
                    }
                }
                Some(b'\\') if i + 1 < text.len() => {
                    i += 1;
                    part.put_byte(text[i]);
                }
                Some(&c) => part.put_byte(c),
            }
            i += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The raw JSON of the value that the path leads to; None if there is none before the text's first error. Names are
    /// compared byte by byte, as [`json_field`] does.
    pub fn find<'a>(&self, value: &'a [u8]) -> Option<&'a [u8]> {
        let mut s = Scanner { b: value, at: 0 };
        if self.is_empty() {
            return s.value();
        }
        s.space();
        let mut v = &value[s.at..];
        for part in self.0.iter() {
            v = if v.first() == Some(&b'[') { json_element(v, part)? } else { json_field(v, part)? };
        }
        Some(v)
    }

    /// The number that the path leads to; None if there is none or it is not a number.
    pub fn number(&self, value: &[u8]) -> Option<f64> {
        number(self.find(value)?)
    }
}

/// An element of an array; part is its index, counted from 0.
#[inline(never)]
fn json_element<'a>(array: &'a [u8], part: &[u8]) -> Option<&'a [u8]> {
    let mut index = 0;
    for c in part {
        if !(b'0'..=b'9').contains(c) || index > MAX_RECORD {
            return None;
        }
        index = index * 10 + (c - b'0') as usize;
    }
    let mut s = Scanner { b: array, at: 0 };
    if !s.take(b'[') {
        return None;
    }
    loop {
        let v = s.value()?;
        if index == 0 {
            return (s.take(b',') || s.take(b']')).then(|| v);
        }
        if !s.take(b',') {
            return None;
        }
        index -= 1;
    }
}

/// Walks over JSON text. All but nested values is inlined, so that where it is stays out of memory.
struct Scanner<'a> {
    b: &'a [u8],
    at: usize,
}

/// The byte c eight times.
const fn eight(c: u8) -> u64 {
    0x0101_0101_0101_0101 * c as u64
}

/// The eight bytes at a place; None if there are fewer.
#[inline(always)]
fn eight_at(b: &[u8], at: usize) -> Option<u64> {
    if b.len() < 8 || at > b.len() - 8 {
        return None;
    }
    // Checked above.
    Some(u64::from_le(unsafe { (b.as_ptr().add(at) as *const u64).read_unaligned() }))
}

impl<'a> Scanner<'a> {
    #[inline(always)]
    fn peek(&self) -> Option<u8> {
        self.b.get(self.at).copied()
    }

    #[inline(always)]
    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Skips space and c.
    #[inline(always)]
    fn take(&mut self, c: u8) -> bool {
        if self.peek() == Some(c) {
            self.at += 1;
            return true;
        }
        self.space();
        let there = self.peek() == Some(c);
        self.at += there as usize;
        there
    }

    /// Skips space and one value and returns its text, which is not empty. Objects and arrays are taken
    /// by their brackets alone.
    #[inline(always)]
    fn value(&mut self) -> Option<&'a [u8]> {
        self.space();
        let start = self.at;
        match self.peek()? {
            b'"' => self.at = string(self.b, self.at),
            b'{' | b'[' => self.at = nested(self.b, self.at),
            _ => self.at = scalar(self.b, self.at),
        }
        if self.at == start {
            self.at = self.b.len(); // so that nothing is found behind an error
            return None;
        }
        // Each of the three gives a place within the text.
        Some(unsafe { self.b.get_unchecked(start..self.at) })
    }
}

/// Where a string that begins at a place ends; that place itself if it does not.
#[inline(always)]
fn string(b: &[u8], start: usize) -> usize {
    const ONES: u64 = eight(1);
    let mut at = start + 1;
    while let Some(w) = eight_at(b, at) {
        // The lowest byte that is a quote or a backslash has its highest bit set.
        let (quote, back) = (w ^ eight(b'"'), w ^ eight(b'\\'));
        let found = (quote.wrapping_sub(ONES) & !quote | back.wrapping_sub(ONES) & !back) & eight(0x80);
        if found == 0 {
            at += 8;
            continue;
        }
        at += found.trailing_zeros() as usize / 8;
        if b[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    while let Some(&c) = b.get(at) {
        match c {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    start
}

/// Where an object or array that begins at a place ends; that place itself if it does not.
#[inline(never)]
fn nested(b: &[u8], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while let Some(&c) = b.get(at) {
        match c {
            b'"' => {
                let end = string(b, at);
                if end == at {
                    return start;
                }
                at = end;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
    start
}

/// Where a number, true, false or null that begins at a place ends; that place itself if there is none.
#[inline(always)]
fn scalar(b: &[u8], start: usize) -> usize {
    let mut at = start;
    while let Some(w) = eight_at(b, at) {
        // The lowest byte that is no digit has its highest bit set.
        let found = (w.wrapping_add(eight(0x80 - b'9' - 1)) | w.wrapping_sub(eight(b'0'))) & eight(0x80);
        if found == 0 {
            at += 8;
            continue;
        }
        at += found.trailing_zeros() as usize / 8;
        match b[at] {
            b'-' | b'+' | b'.' | b'a'..=b'z' | b'E' => at += 1,
            _ => return at,
        }
    }
    while let Some(b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E') = b.get(at) {
        at += 1;
    }
    at
}

/// A hash table from keys to values, in the module's memory: state like any other variable, faster than keyed
/// state, but neither rescaled nor larger than memory. Entries stay in the order in which they came; the last takes the place
/// of one that is removed.
pub struct Map<V> {
    entries: List<(Text, V)>,
    slots: List<(u32, u32)>, // hash, 1 + place in entries; 0: free
}

impl<V> Default for Map<V> {
    fn default() -> Self {
        Map { entries: List::new(), slots: List::new() }
    }
}

impl<V> Map<V> {
    #[inline(always)]
    fn place(&self, key: &[u8], hash: u32) -> Option<usize> {
        let mask = self.slots.len().wrapping_sub(1);
        if self.slots.is_empty() {
            return None;
        }
        let mut at = hash as usize & mask;
        loop {
            let (h, i) = self.slots[at];
            if i == 0 {
                return None;
            }
            if h == hash && equal(&self.entries[i as usize - 1].0, key) {
                return Some(i as usize - 1);
            }
            at = (at + 1) & mask;
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&V> {
        self.place(key, hash(key)).map(|i| &self.entries[i].1)
    }

    /// Where the value of a key is, until an entry is added or removed.
    #[inline(always)]
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        self.place(key, hash(key))
    }

    #[inline(always)]
    pub(crate) fn value(&self, place: usize) -> &V {
        &self.entries[place].1
    }

    #[inline(always)]
    pub(crate) fn value_mut(&mut self, place: usize) -> &mut V {
        &mut self.entries[place].1
    }

    /// The value of a key, which make makes if there is none.
    #[inline(always)]
    pub fn at(&mut self, key: &[u8], make: impl FnOnce() -> V) -> &mut V {
        let h = hash(key);
        let i = match self.place(key, h) {
            Some(i) => i,
            None => self.add(key, h, make()),
        };
        &mut self.entries[i].1
    }

    #[inline(never)]
    fn add(&mut self, key: &[u8], hash: u32, value: V) -> usize {
        let mut own = Text::new();
        own.put(key);
        self.entries.push((own, value));
        if self.entries.len() * 4 > self.slots.len() * 3 {
            let old = core::mem::replace(&mut self.slots, List::new());
            for _ in 0..(old.len() * 2).max(64) {
                self.slots.push((0, 0));
            }
            for (h, i) in old.iter().filter(|s| s.1 != 0) {
                self.fill(*h, *i);
            }
        }
        self.fill(hash, self.entries.len() as u32);
        self.entries.len() - 1
    }

    fn fill(&mut self, hash: u32, entry: u32) {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at].1 != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = (hash, entry);
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: &[u8]) -> Option<V> {
        let i = self.place(key, hash(key))?;
        let slot = self.slot(i, hash(key));
        let last = self.entries.len() - 1;
        if i != last {
            let moved = self.slot(last, hash(&self.entries[last].0));
            self.slots[moved].1 = i as u32 + 1;
            self.entries.swap(i, last);
        }
        self.free(slot);
        self.entries.pop().map(|(_, v)| v)
    }

    /// Where the slot of an entry is.
    fn slot(&self, entry: usize, hash: u32) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at].1 as usize != entry + 1 {
            at = (at + 1) & mask;
        }
        at
    }

    /// Frees a slot, and moves those behind it that would not be found any more.
    fn free(&mut self, mut hole: usize) {
        let mask = self.slots.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (h, i) = self.slots[at];
            if i == 0 {
                break;
            }
            if (at.wrapping_sub(h as usize) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = (0, 0);
    }

    /// All entries, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        self.entries.iter().map(|(k, v)| (&k[..], v))
    }
}

#[inline(always)]
fn word(b: &[u8]) -> u64 {
    u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
}

/// The last up to 7 bytes as a number; different ones for different bytes of one length.
#[inline(always)]
fn tail(b: &[u8]) -> u64 {
    let n = b.len();
    if n >= 4 {
        let half = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]) as u64;
        half(0) | half(n - 4) << 32
    } else if n > 0 {
        b[0] as u64 | (b[n / 2] as u64) << 8 | (b[n - 1] as u64) << 16
    } else {
        0
    }
}

#[inline(always)]
fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let (mut a, mut b) = (a.chunks_exact(8), b.chunks_exact(8));
    while let (Some(x), Some(y)) = (a.next(), b.next()) {
        if word(x) != word(y) {
            return false;
        }
    }
    tail(a.remainder()) == tail(b.remainder())
}

#[inline(always)]
fn hash(key: &[u8]) -> u32 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut h = (key.len() as u64).wrapping_mul(K);
    let mut words = key.chunks_exact(8);
    for w in &mut words {
        h = (h ^ word(w)).wrapping_mul(K);
        h ^= h >> 32;
    }
    ((h ^ tail(words.remainder())).wrapping_mul(K) >> 32) as u32
}

/// The operator of a module and its buffers; made by [`operator!`]. A module has one thread, and the host
/// never calls it from within a call.
pub struct Module<T>(UnsafeCell<Option<Running<T>>>, UnsafeCell<Text>);

/// A type that [`operator!`] has made the operator of this module.
pub trait Exported: Sized + 'static {
    fn module() -> &'static Module<Self>;
}

struct Running<T> {
    op: T,
    out: Out,
}

unsafe impl<T> Sync for Module<T> {}

impl<T: Operator> Module<T> {
    /// A buffer for batches; 0 if there is no memory.
    pub fn alloc(&self, size: usize) -> *mut u8 {
        let input = unsafe { &mut *self.1.get() };
        *input = Text::new();
        if !input.0.try_reserve(size) {
            return core::ptr::null_mut();
        }
        input.0.ptr
    }

    pub fn init(&self) -> i32 {
        let mut out = Out { outputs: List::new() };
        out.outputs.push(Output::open(MAIN_OUTPUT));
        for name in T::OUTPUTS {
            out.outputs.push(Output::open(name));
        }
        status(T::new(&Config(())).map(|op| unsafe { *self.0.get() = Some(Running { op, out }) }))
    }

    #[inline(always)]
    pub fn process(&self, input: u32, ptr: *const u8, len: usize, count: u32) -> i32 {
        let buffer = unsafe { &*self.1.get() };
        let running = match unsafe { &mut *self.0.get() } {
            Some(r) if ptr == buffer.0.ptr && len <= buffer.0.cap => r,
            _ => return status(Err(Failure::from(MALFORMED))),
        };
        // The host has written it.
        status(running.process(input, unsafe { core::slice::from_raw_parts(ptr, len) }, count))
    }

    pub fn timer(&self, kind: u32, at: i64, ptr: *const u8, len: usize) -> i32 {
        let buffer = unsafe { &*self.1.get() };
        if ptr != buffer.0.ptr || len > buffer.0.cap {
            return status(Err(Failure::from(MALFORMED)));
        }
        // The host has written it.
        let key = unsafe { core::slice::from_raw_parts(ptr, len) };
        let kind = if kind == 0 { TimerKind::EventTime } else { TimerKind::ProcessingTime };
        self.due(|op, out| op.on_timer(&Timer { kind, at, key }, out))
    }

    pub fn watermark(&self, at: i64) -> i32 {
        self.due(|op, out| op.on_watermark(at, out))
    }

    pub fn end(&self) -> i32 {
        self.due(|op, out| op.on_end(out))
    }

    fn due(&self, call: impl FnOnce(&mut T, &mut Out) -> Result) -> i32 {
        match unsafe { &mut *self.0.get() } {
            None => status(Err(Failure::from(MALFORMED))),
            Some(running) => {
                running.begin();
                let result = call(&mut running.op, &mut running.out);
                if result.is_ok() {
                    running.flush();
                }
                status(result)
            }
        }
    }
}

impl<T: Migrate> Module<T> {
    /// Address and length of what the next version is to have, -1 after a failure. It is kept: nothing follows.
    pub fn migrate_out(&self) -> i64 {
        let mut state = Text::new();
        let result = match unsafe { &*self.0.get() } {
            Some(running) => running.op.migrate_out(&mut state),
            None => Err(Failure::from(MALFORMED)),
        };
        if status(result) != 0 {
            return -1;
        }
        let at = (state.as_ptr() as u64) << 32 | state.len() as u64;
        core::mem::forget(state);
        at as i64
    }

    pub fn migrate_in(&self, ptr: *const u8, len: usize) -> i32 {
        let buffer = unsafe { &*self.1.get() };
        status(match unsafe { &mut *self.0.get() } {
            // The host has written it.
            Some(running) if ptr == buffer.0.ptr && len <= buffer.0.cap => running.op.migrate_in(unsafe { core::slice::from_raw_parts(ptr, len) }),
            _ => Err(Failure::from("malformed state from the host")),
        })
    }
}

impl<T> Module<T> {
    pub const fn new() -> Self {
        Module(UnsafeCell::new(None), UnsafeCell::new(Text::new()))
    }
}

const MALFORMED: &str = "malformed batch from the host";

impl<T: Operator> Running<T> {
    #[inline(always)]
    fn process(&mut self, input: u32, mut batch: &[u8], count: u32) -> Result {
        self.begin();
        for _ in 0..count {
            let (r, rest) = Record::next(batch, input).ok_or(MALFORMED)?;
            self.op.process(&r, &mut self.out)?;
            batch = rest;
        }
        self.flush();
        Ok(())
    }
}

impl<T> Running<T> {
    #[inline(always)]
    fn begin(&mut self) {
        unsafe { *WATERMARK.0.get() = None };
        for o in self.out.outputs.iter_mut() {
            o.buf.clear();
            o.count = 0;
        }
    }

    /// Gives the host the buffers, which it reads when this call has returned; the next one overwrites them.
    #[inline(always)]
    fn flush(&self) {
        for o in self.out.outputs.iter().filter(|o| o.count > 0) {
            unsafe { host::emit(o.index as u32, o.buf.as_ptr(), o.buf.len(), o.count) };
        }
    }
}

fn status(r: Result) -> i32 {
    match r {
        Ok(()) => 0,
        Err(Failure(reason)) => {
            unsafe { host::fail(reason.as_ptr(), reason.len()) };
            1
        }
    }
}

/// Gives a panic as the reason of the trap that follows.
pub fn panicked(info: &dyn core::fmt::Display) {
    let mut text = Text::new();
    let _ = core::fmt::write(&mut text, format_args!("{}", info)); // it never fails
    unsafe { host::fail(text.as_ptr(), text.len()) };
}

/// Makes a type the operator of this module. `operator!(T, no_std)` is for crates without the standard library:
/// it also makes the panic handler.
#[macro_export]
macro_rules! operator {
    ($t:ty) => {
        $crate::operator!($t, @ {
            std::panic::set_hook(std::boxed::Box::new(|info| $crate::weir::panicked(info)));
        });
    };
    ($t:ty, no_std) => {
        $crate::operator!($t, @ {});

        #[panic_handler]
        fn weir_panic(info: &core::panic::PanicInfo) -> ! {
            $crate::weir::panicked(info);
            core::arch::wasm32::unreachable()
        }
    };
    ($t:ty, @ $start:block) => {
        const _: () = {
            static MODULE: $crate::weir::Module<$t> = $crate::weir::Module::new();

            impl $crate::weir::Exported for $t {
                fn module() -> &'static $crate::weir::Module<$t> {
                    &MODULE
                }
            }

            #[no_mangle]
            pub extern "C" fn weir_abi_v1() {}

            #[no_mangle]
            pub extern "C" fn weir_alloc(size: usize) -> *mut u8 {
                MODULE.alloc(size)
            }

            #[no_mangle]
            pub extern "C" fn weir_init() -> i32 {
                $start
                MODULE.init()
            }

            #[no_mangle]
            pub extern "C" fn weir_process(input: u32, ptr: *const u8, len: usize, count: u32) -> i32 {
                MODULE.process(input, ptr, len, count)
            }

            #[no_mangle]
            pub extern "C" fn weir_timer(kind: u32, at: i64, ptr: *const u8, len: usize) -> i32 {
                MODULE.timer(kind, at, ptr, len)
            }

            #[no_mangle]
            pub extern "C" fn weir_watermark(at: i64) -> i32 {
                MODULE.watermark(at)
            }

            #[no_mangle]
            pub extern "C" fn weir_end() -> i32 {
                MODULE.end()
            }
        };
    };
}

/// Lets the variables of the module's operator survive an upgrade: behind [`operator!`], for a type that is [`Migrate`].
#[macro_export]
macro_rules! migrate {
    ($t:ty) => {
        const _: () = {
            #[no_mangle]
            pub extern "C" fn weir_migrate_out() -> i64 {
                <$t as $crate::weir::Exported>::module().migrate_out()
            }

            #[no_mangle]
            pub extern "C" fn weir_migrate_in(ptr: *const u8, len: usize) -> i32 {
                <$t as $crate::weir::Exported>::module().migrate_in(ptr, len)
            }
        };
    };
}

/// What grows in the SDK: a vector with memory of this file's own.
pub(crate) struct List<T> {
    ptr: *mut T,
    len: usize,
    cap: usize,
}

impl<T> Deref for List<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        unsafe { core::slice::from_raw_parts(self.ptr, self.len) }
    }
}

impl<T> DerefMut for List<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        unsafe { core::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        List::new()
    }
}

impl<T> List<T> {
    pub(crate) const fn new() -> Self {
        List { ptr: core::ptr::NonNull::dangling().as_ptr(), len: 0, cap: 0 }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        Some(unsafe { self.ptr.add(self.len).read() })
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, v: T) {
        if self.len == self.cap {
            self.reserve(1);
        }
        unsafe { self.ptr.add(self.len).write(v) };
        self.len += 1;
    }

    #[cold]
    #[inline(never)]
    fn reserve(&mut self, more: usize) {
        assert!(self.try_reserve(more), "out of memory");
    }

    /// Makes room for so many more; false if there is no memory.
    fn try_reserve(&mut self, more: usize) -> bool {
        if self.cap - self.len >= more {
            return true;
        }
        let each = core::mem::size_of::<T>();
        let cap = match self.len.checked_add(more) {
            Some(least) if least <= (1 << 30) / each => least.max(self.cap * 2).max(16),
            _ => return false,
        };
        let ptr = memory::take(cap * each) as *mut T;
        if ptr.is_null() {
            return false;
        }
        unsafe { core::ptr::copy_nonoverlapping(self.ptr, ptr, self.len) };
        self.release();
        self.ptr = ptr;
        self.cap = cap;
        true
    }

    fn release(&mut self) {
        if self.cap > 0 {
            unsafe { memory::give_back(self.ptr as *mut u8, self.cap * core::mem::size_of::<T>()) };
        }
    }
}

impl<T> Drop for List<T> {
    fn drop(&mut self) {
        unsafe { core::ptr::drop_in_place(core::ptr::slice_from_raw_parts_mut(self.ptr, self.len)) };
        self.release();
    }
}

/// A small allocator: sizes are rounded up to powers of two, what is freed is used again for the same size. It
/// takes whole pages from the end of memory and lives beside a program's own allocator.
mod memory {
    use super::UnsafeCell;
    use core::ptr::null_mut;

    struct Memory(UnsafeCell<State>);

    struct State {
        idle: [*mut u8; 32], // freed blocks by the logarithm of their size, each beginning with the next
        at: usize,           // of the pages from which blocks are cut
        end: usize,
    }

    unsafe impl Sync for Memory {} // one thread

    static MEMORY: Memory = Memory(UnsafeCell::new(State { idle: [null_mut(); 32], at: 0, end: 0 }));

    fn class(size: usize) -> usize {
        size.max(16).next_power_of_two().trailing_zeros() as usize
    }

    /// A block aligned to 16, null if there is no memory.
    pub fn take(size: usize) -> *mut u8 {
        let m = unsafe { &mut *MEMORY.0.get() };
        let class = class(size);
        let block = m.idle[class];
        if !block.is_null() {
            m.idle[class] = unsafe { *(block as *const *mut u8) };
            return block;
        }
        let size = 1 << class;
        if m.end - m.at < size {
            let pages = (size + 65535) / 65536;
            let was = grow(pages);
            if was == usize::MAX {
                return null_mut();
            }
            if was * 65536 != m.end {
                m.at = was * 65536; // someone else has grown memory: the rest stays unused
            }
            m.end = (was + pages) * 65536;
        }
        m.at += size;
        (m.at - size) as *mut u8
    }

    #[cfg(target_arch = "wasm32")]
    fn grow(pages: usize) -> usize {
        core::arch::wasm32::memory_grow(0, pages)
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn grow(_: usize) -> usize {
        usize::MAX // it can be checked elsewhere, but runs only in WebAssembly
    }

    /// Gives back a block of that size.
    pub unsafe fn give_back(block: *mut u8, size: usize) {
        let m = &mut *MEMORY.0.get();
        *(block as *mut *mut u8) = m.idle[class(size)];
        m.idle[class(size)] = block;
    }
}

//! Building blocks for operators: windows, aggregates, joins and filters, in this one file beside `weir.rs`. The Go
//! package `sdk/go/ops` has the same; both give the same bytes for the same records.
//!
//! ```ignore
//! mod ops;
//! mod weir;
//! ```
//!
//! A block is a value that an operator holds and calls from its functions. Each keeps its state where its
//! [`Store`] says:
//!
//! - [`Store::Keyed`]: in the host, by key. It may exceed memory, follows its keys when a job is rescaled, and is kept
//!   when a new version of the operator takes over. Each access is a call of the host. This is what the ready-made
//!   modules in `examples/operators` do.
//! - [`Store::memory`]: in the program's variables. Faster, and captured with the rest of memory.
//!
//! [`IntervalJoin`] always uses keyed state. [`Aggregate`], [`sketch`], [`Expr`] and [`Reading`] hold no state of their own: what
//! they accumulate is in the bytes that they are given.
//!
//! All blocks depend on records, configuration and watermarks alone. Results come out ordered by time, then by key.
//!
//! Event times are milliseconds since 1970, durations milliseconds. Nothing here needs an allocator.

#![allow(dead_code)]

use crate::weir;
use weir::{List, Path, Record, Text, Timer};

/// Where a block keeps its state.
pub enum Store {
    /// In the host's keyed state.
    Keyed,
    /// In the module's memory.
    Memory(weir::Map<Text>),
}

impl Default for Store {
    fn default() -> Self {
        Store::Keyed
    }
}

impl Store {
    /// A store in the module's memory.
    pub fn memory() -> Store {
        Store::Memory(weir::Map::default())
    }

    /// Reads the value of a key into buf, which is empty if there is none; false then.
    #[inline(always)]
    pub fn get(&self, key: &[u8], buf: &mut Text) -> bool {
        buf.clear();
        match self {
            Store::Keyed => weir::state::get(key, buf),
            Store::Memory(m) => match m.get(key) {
                Some(v) => {
                    buf.put(v);
                    true
                }
                None => false,
            },
        }
    }

    /// Sets the value of a key.
    #[inline(always)]
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        match self {
            Store::Keyed => weir::state::put(key, value),
            Store::Memory(m) => {
                let own = m.at(key, Text::new);
                own.clear();
                own.put(value);
            }
        }
    }

    /// As get; for [`Store::put_back`] it says where the value was.
    #[inline(always)]
    fn find(&self, key: &[u8], buf: &mut Text) -> Option<usize> {
        match self {
            Store::Keyed => weir::state::get(key, buf).then(|| 0),
            Store::Memory(m) => {
                let place = m.find(key)?;
                buf.clear();
                buf.put(m.value(place));
                Some(place)
            }
        }
    }

    /// As put, for a key that find was asked for; nothing has been put or removed since.
    #[inline(always)]
    fn put_back(&mut self, key: &[u8], place: Option<usize>, value: &[u8]) {
        match (self, place) {
            (Store::Memory(m), Some(place)) => {
                let own = m.value_mut(place);
                own.clear();
                own.put(value);
            }
            (store, _) => store.put(key, value),
        }
    }

    /// Removes a key and says whether it was there.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        match self {
            Store::Keyed => weir::state::delete(key),
            Store::Memory(m) => m.remove(key).is_some(),
        }
    }
}

/// Keys of records are at most so long: a block's keys in the store have a few bytes more.
const MAX_KEY: usize = 4000;

/// Makes the key under which a block keeps state: length of the record's key (2 bytes, big-endian), the key, the
/// block's tag, and what else tells its entries apart.
#[inline(always)]
fn slot(slot: &mut Text, key: &[u8], tag: u8) -> weir::Result {
    if key.len() > MAX_KEY {
        return Err(say(&[&"key of ", &key.len(), &" bytes: at most 4000 where state is kept by key"]));
    }
    slot.clear();
    slot.put(&(key.len() as u16).to_be_bytes());
    slot.put(key);
    slot.put_byte(tag);
    Ok(())
}

/// Puts a time behind a slot's first bytes, so that byte order is that of time.
#[inline(always)]
fn at(slot: &mut Text, len: usize, time: i64) {
    slot.truncate(len);
    slot.put(&(time as u64 ^ 1 << 63).to_be_bytes());
}

/// slot and at in one.
#[inline(always)]
fn slot_at(text: &mut Text, key: &[u8], tag: u8, time: i64) -> weir::Result {
    if key.len() > MAX_KEY {
        return slot(text, key, tag);
    }
    let p = text.refill(key.len() + 11);
    // There is room for all of it.
    unsafe {
        (p as *mut [u8; 2]).write_unaligned((key.len() as u16).to_be_bytes());
        weir::copy(p.add(2), key);
        let p = p.add(2 + key.len());
        *p = tag;
        (p.add(1) as *mut [u8; 8]).write_unaligned((time as u64 ^ 1 << 63).to_be_bytes());
    }
    Ok(())
}

/// The key of a block's timers: the record's key and the block's tag.
fn timer_key(buf: &mut Text, key: &[u8], tag: u8) {
    buf.clear();
    buf.put(key);
    buf.put_byte(tag);
}

/// The record's key of a timer; None if the timer is not of this block.
fn timer_of<'a>(t: &Timer<'a>, tag: u8) -> Option<&'a [u8]> {
    match t.key.split_last() {
        Some((&last, key)) if last == tag && t.kind == weir::TimerKind::EventTime => Some(key),
        _ => None,
    }
}

/// What became of a record that was given to a block.
#[derive(Clone, Copy, PartialEq)]
pub enum Outcome {
    /// The record counts.
    Taken,
    /// It came after all that it would have counted in was final.
    Late,
    /// It has not what the block works on, such as a number.
    Ignored,
}

/// Event times are at most so far from 1970, so that no sum of times overflows.
const MAX_TIME: i64 = 1 << 60;

fn check_time(time: i64) -> weir::Result {
    if time > MAX_TIME || time < -MAX_TIME {
        return Err(say(&[&"event time ", &time, &" is too far from 1970"]));
    }
    Ok(())
}

/// A part of a message.
trait Part {
    fn say(&self, text: &mut Text);
}

impl Part for &str {
    fn say(&self, text: &mut Text) {
        text.put(self.as_bytes())
    }
}

impl Part for usize {
    fn say(&self, text: &mut Text) {
        text.put_int(*self as i64)
    }
}

impl Part for i64 {
    fn say(&self, text: &mut Text) {
        text.put_int(*self)
    }
}

impl Part for Text {
    fn say(&self, text: &mut Text) {
        text.put(self)
    }
}

/// A failure whose reason is put together.
#[cold]
fn say(parts: &[&dyn Part]) -> weir::Failure {
    let mut text = Text::new();
    parts.iter().for_each(|p| p.say(&mut text));
    weir::Failure::from(text)
}

#[inline(always)]
fn le32(b: &[u8]) -> usize {
    u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize
}

#[inline(always)]
fn le64(b: &[u8]) -> u64 {
    u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
}

#[inline(always)]
fn float(b: &[u8]) -> f64 {
    f64::from_bits(le64(b))
}

#[inline(always)]
fn set64(b: &mut [u8], v: u64) {
    b[..8].copy_from_slice(&v.to_le_bytes());
}

#[inline(always)]
fn set_float(b: &mut [u8], v: f64) {
    set64(b, v.to_bits());
}

fn put32(text: &mut Text, v: usize) {
    text.put(&(v as u32).to_le_bytes());
}

/// What windows do with their records. What it accumulates is bytes, so that windows can keep them in any
/// [`Store`]. [`Aggregate`] is one.
pub trait Fold {
    /// Adds a record to an accumulator, which is empty at first; false if the record is not one to add.
    fn add(&self, acc: &mut Text, r: &Record) -> bool;
    /// Adds another accumulator.
    fn merge(&self, acc: &mut Text, other: &[u8]);
}

/// Takes the number out of a record.
pub struct Reading {
    /// Where it is in a value that is a JSON object or array.
    pub field: Path,
}

impl Reading {
    /// The number in the value's field, or that is the value; None if there is none.
    pub fn of(&self, value: &[u8]) -> Option<f64> {
        match value.iter().find(|c| !matches!(c, b' ' | b'\t' | b'\n' | b'\r')) {
            Some(b'{' | b'[') => self.field.number(value),
            _ => weir::number(value),
        }
    }
}

/// Quantiles by DDSketch (Masson, Rim, Lee 2019, PVLDB 12(12), doi 10.14778/3352063.3352135) with buckets by exponent and
/// leading bits of the mantissa. The Go package's type `Sketch` says what it promises.
///
/// A sketch is a sequence of buckets, each 8 bytes, little-endian: the bucket's index in the upper 20 bits, how many
/// values it has in the lower 44, ordered by index. It begins at a position of the text and goes on to its end.
pub mod sketch {
    use super::{le64, set64, Text};

    /// The most buckets that a sketch has.
    pub const MAX_BUCKETS: usize = 512;
    const SHIFT: u32 = 52 - 6;
    const ZERO: u64 = 1 << 19;
    const COUNT_BITS: u32 = 44;
    const MAX_COUNT: u64 = (1 << COUNT_BITS) - 1;

    fn bucket_of(v: f64) -> u64 {
        let m = (v.to_bits() & !(1 << 63)) >> SHIFT;
        if v < 0.0 {
            ZERO - m
        } else {
            ZERO + m
        }
    }

    fn value_of(index: u64) -> f64 {
        if index < ZERO {
            return -value_of(2 * ZERO - index);
        }
        let m = index - ZERO;
        if m == 0 {
            return 0.0;
        }
        let (low, high) = (f64::from_bits(m << SHIFT), f64::from_bits((m + 1) << SHIFT));
        if high == f64::INFINITY {
            return low;
        }
        let r = high / low;
        low * (2.0 * r / (1.0 + r))
    }

    fn bucket(s: &[u8], i: usize) -> (u64, u64) {
        let b = le64(&s[8 * i..]);
        (b >> COUNT_BITS, b & MAX_COUNT)
    }

    fn set(s: &mut [u8], i: usize, index: u64, count: u64) {
        set64(&mut s[8 * i..], index << COUNT_BITS | count.min(MAX_COUNT));
    }

    /// Adds a value, which is neither infinite nor NaN, to the sketch that begins at from.
    pub fn add(text: &mut Text, from: usize, v: f64) {
        add_to(text, from, bucket_of(v), 1);
    }

    fn add_to(text: &mut Text, from: usize, index: u64, count: u64) {
        let n = (text.len() - from) / 8;
        let (mut low, mut high) = (0, n);
        while low < high {
            let mid = (low + high) / 2;
            if bucket(&text[from..], mid).0 < index {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        let mut at = low;
        if at < n && bucket(&text[from..], at).0 == index {
            // there
        } else if n < MAX_BUCKETS {
            text.put(&[0; 8]);
            let s = &mut text[from..];
            s.copy_within(8 * at..8 * n, 8 * at + 8);
            set(s, at, index, 0);
        } else if at > 0 {
            let s = &mut text[from..]; // the lowest two become one
            let lowest = bucket(s, 0).1;
            at -= 1;
            s.copy_within(8..8 * at + 8, 0);
            set(s, at, index, 0);
            let (next, has) = bucket(s, 0);
            set(s, 0, next, has + lowest);
        }
        let s = &mut text[from..];
        let (i, had) = bucket(s, at);
        set(s, at, i, had + count);
    }

    /// Adds all values of another sketch.
    pub fn merge(text: &mut Text, from: usize, other: &[u8]) {
        for i in 0..other.len() / 8 {
            let (index, count) = bucket(other, i);
            add_to(text, from, index, count);
        }
    }

    /// How many values were added.
    pub fn count(s: &[u8]) -> u64 {
        (0..s.len() / 8).map(|i| bucket(s, i).1).sum()
    }

    /// The value below which a share q, from 0 to 1, of the values lies; 0 if there are none.
    pub fn quantile(s: &[u8], q: f64) -> f64 {
        let total = count(s);
        if total == 0 {
            return 0.0;
        }
        let (rank, mut below) = (q * (total - 1) as f64, 0);
        for i in 0..s.len() / 8 {
            let (index, count) = bucket(s, i);
            below += count;
            if below as f64 > rank {
                return value_of(index);
            }
        }
        value_of(bucket(s, s.len() / 8 - 1).0)
    }
}

/// Computes functions of numbers: count, sum, mean, min, max, and quantiles as pN, such as p50 or p99.9. It is a [`Fold`] over
/// a record's [`Reading`].
///
/// An accumulator has the count (8 bytes), sum, minimum and maximum (8 each, doubles), little-endian; if there are
/// quantiles, a [`sketch`] follows.
pub struct Aggregate {
    pub reading: Reading,
    /// Of results, 0 to 9.
    pub decimals: usize,
    functions: List<Function>,
    sketch: bool,
    number: bool,
}

struct Function {
    name: Text,
    kind: u8, // c, s, a for mean, < for min, > for max, q
    q: f64,
}

const FIXED: usize = 32;

impl Aggregate {
    /// Takes the functions from a list such as "count, mean, p99", in the order in which results have them.
    pub fn new(list: &[u8], reading: Reading, decimals: usize) -> weir::Result<Self> {
        let mut a = Aggregate { reading, decimals, functions: List::new(), sketch: false, number: false };
        for part in list.split(|&c| c == b',') {
            let part = trim(part, b" ");
            let mut f = Function { name: Text::new(), kind: b'q', q: 0.0 };
            f.name.put(part);
            match part {
                b"count" => f.kind = b'c',
                b"sum" => f.kind = b's',
                b"mean" => f.kind = b'a',
                b"min" => f.kind = b'<',
                b"max" => f.kind = b'>',
                _ => match part.split_first().filter(|(&c, _)| c == b'p').and_then(|(_, n)| weir::number(n)) {
                    Some(percent) if percent >= 0.0 && percent <= 100.0 => {
                        f.q = percent / 100.0;
                        a.sketch = true;
                    }
                    _ => {
                        let mut name = Text::new();
                        name.put_json(part);
                        return Err(say(&[&name, &" is not count, sum, mean, min, max or a quantile such as p50 or p99.9"]));
                    }
                },
            }
            a.number |= f.kind != b'c';
            a.functions.push(f);
        }
        if a.functions.len() > 32 {
            return Err(weir::Failure::from("more than 32 functions"));
        }
        Ok(a)
    }

    /// Adds a number, which is neither infinite nor NaN.
    #[inline(always)]
    pub fn add_number(&self, acc: &mut Text, v: f64) {
        if acc.len() < FIXED {
            acc.clear();
            acc.put(&[0; FIXED]);
            set_float(&mut acc[16..], v);
            set_float(&mut acc[24..], v);
        }
        let b = &mut acc[..FIXED];
        set64(b, le64(b) + 1);
        let sum = float(&b[8..]) + v;
        set_float(&mut b[8..], sum);
        if v < float(&b[16..]) {
            set_float(&mut b[16..], v);
        }
        if v > float(&b[24..]) {
            set_float(&mut b[24..], v);
        }
        if self.sketch {
            sketch::add(acc, FIXED, v);
        }
    }

    /// How many numbers an accumulator has.
    pub fn count(&self, acc: &[u8]) -> u64 {
        if acc.len() < FIXED {
            return 0;
        }
        le64(acc)
    }

    /// Appends the results of an accumulator that is not empty as fields of a JSON object: "count":3,"mean":1.5.
    pub fn put_fields(&self, text: &mut Text, acc: &[u8]) {
        for (i, f) in self.functions.iter().enumerate() {
            if i > 0 {
                text.put_byte(b',');
            }
            text.put_byte(b'"');
            text.put(&f.name);
            text.put(b"\":");
            if f.kind == b'c' {
                text.put_int(self.count(acc) as i64);
            } else {
                text.put_fixed(self.result(f, acc), self.decimals);
            }
        }
    }

    fn result(&self, f: &Function, acc: &[u8]) -> f64 {
        let (low, high) = (float(&acc[16..]), float(&acc[24..]));
        match f.kind {
            b's' => float(&acc[8..]),
            b'a' => float(&acc[8..]) / self.count(acc) as f64,
            b'<' => low,
            b'>' => high,
            _ => {
                let v = sketch::quantile(&acc[FIXED..], f.q);
                if f.q == 0.0 || v < low {
                    low
                } else if f.q == 1.0 || v > high {
                    high
                } else {
                    v
                }
            }
        }
    }
}

impl Fold for Aggregate {
    #[inline(always)]
    fn add(&self, acc: &mut Text, r: &Record) -> bool {
        let v = if self.number { self.reading.of(r.value) } else { Some(0.0) };
        match v {
            Some(v) => self.add_number(acc, v),
            None => return false,
        }
        true
    }

    fn merge(&self, acc: &mut Text, other: &[u8]) {
        if other.len() < FIXED {
            return;
        }
        if acc.len() < FIXED {
            acc.clear();
            acc.put(other);
            return;
        }
        let b = &mut acc[..FIXED];
        set64(b, le64(b) + le64(other));
        let sum = float(&b[8..]) + float(&other[8..]);
        set_float(&mut b[8..], sum);
        if float(&other[16..]) < float(&b[16..]) {
            b[16..24].copy_from_slice(&other[16..24]);
        }
        if float(&other[24..]) > float(&b[24..]) {
            b[24..32].copy_from_slice(&other[24..32]);
        }
        if self.sketch {
            sketch::merge(acc, FIXED, &other[FIXED..]);
        }
    }
}

fn trim<'a>(mut b: &'a [u8], space: &[u8]) -> &'a [u8] {
    while let Some((c, rest)) = b.split_first() {
        if !space.contains(c) {
            break;
        }
        b = rest;
    }
    while let Some((c, rest)) = b.split_last() {
        if !space.contains(c) {
            break;
        }
        b = rest;
    }
    b
}

/// What a window has come to.
pub struct Fired<'a> {
    pub key: &'a [u8],
    /// The window has the times from start to before end.
    pub start: i64,
    pub end: i64,
    /// Accumulated by the window's [`Fold`].
    pub acc: &'a [u8],
    /// A result of this window has come out before, or could have: late records were added.
    pub update: bool,
}

/// The longest duration in milliseconds: about 100 years.
const MAX_DURATION: i64 = 36525 * 24 * 3600 * 1000;

/// Collects records in windows of event time per key: tumbling windows, or sliding ones if slide is less than size.
///
/// A window's result comes out when the watermark reaches its end. It is kept for lateness longer: a late record in that time
/// is added, and each window that has it and is past its end comes out again at once. A record that comes later
/// still is [`Outcome::Late`].
///
/// Records are added once, to panes: runs of time that windows share. State is an entry for each key and pane, with the
/// [`Fold`]'s accumulator. A new pane sets a timer for each window that it is in.
pub struct Window<F> {
    pub fold: F,
    pub store: Store,
    /// Tells blocks of one operator apart.
    pub tag: u8,
    size: i64,
    slide: i64,
    offset: i64,
    lateness: i64,
    pane: i64,
    now: Pane,
    slot: Text,
    timer: Text,
    acc: Text,
    other: Text,
}

/// The pane of the last record: most records are in the same one.
struct Pane {
    start: i64,
    end: i64,
    last: i64, // end of the last window that has the pane
}

impl<F: Fold> Window<F> {
    /// Windows of a size that begin at multiples of slide after an offset; slide 0 is size.
    pub fn new(fold: F, store: Store, size: i64, slide: i64, offset: i64, lateness: i64) -> weir::Result<Self> {
        let slide = if slide == 0 { size } else { slide };
        if size <= 0 || slide <= 0 || slide > size {
            return Err(weir::Failure::from("a window slides by more than 0 and at most its size"));
        }
        if lateness < 0 || size > MAX_DURATION || lateness > MAX_DURATION {
            return Err(weir::Failure::from("size and lateness of a window are at most 100 years"));
        }
        let (mut pane, mut rest) = (size, slide);
        while rest != 0 {
            let next = pane % rest;
            pane = rest;
            rest = next;
        }
        if size / pane > 10_000 {
            return Err(say(&[&"a window of ", &size, &" ms that slides by ", &slide, &" ms has more than 10000 parts"]));
        }
        needs_event_time("a window needs")?;
        Ok(Window {
            fold,
            store,
            tag: b'w',
            size,
            slide,
            offset,
            lateness,
            pane,
            now: Pane { start: 0, end: 0, last: 0 },
            slot: Text::new(),
            timer: Text::new(),
            acc: Text::new(),
            other: Text::new(),
        })
    }

    #[inline(always)]
    fn floor(&self, t: i64, step: i64) -> i64 {
        t - (t - self.offset).rem_euclid(step)
    }

    /// Adds a record to its windows. Results go to fire.
    pub fn add(&mut self, r: &Record, mut fire: impl FnMut(&F, &Fired) -> weir::Result) -> weir::Result<Outcome> {
        check_time(r.time)?;
        let watermark = weir::watermark();
        if r.time < self.now.start || r.time >= self.now.end {
            let start = self.floor(r.time, self.pane);
            let slide = if self.pane == self.slide { start } else { self.floor(start, self.slide) };
            self.now = Pane { start, end: start + self.pane, last: slide + self.size };
        }
        let (pane, last) = (self.now.start, self.now.last);
        if last + self.lateness <= watermark {
            return Ok(Outcome::Late);
        }
        slot_at(&mut self.slot, r.key, self.tag, pane)?;
        let place = self.store.find(&self.slot, &mut self.acc);
        let had = place.is_some();
        if !had {
            self.acc.clear();
        }
        if !self.fold.add(&mut self.acc, r) {
            return Ok(Outcome::Ignored);
        }
        self.store.put_back(&self.slot, place, &self.acc);
        if had && watermark <= pane {
            return Ok(Outcome::Taken); // no window that has the pane is past its end
        }
        self.taken(r, had, watermark, &mut fire)
    }

    /// What a record leads to that is the first of its pane, or late.
    #[inline(never)]
    fn taken(&mut self, r: &Record, had: bool, watermark: i64, fire: &mut impl FnMut(&F, &Fired) -> weir::Result) -> weir::Result<Outcome> {
        let (pane, last) = (self.now.start, self.now.last);
        let first = last - (last - pane - 1) / self.slide * self.slide; // end of the first window that has the pane
        if !had {
            timer_key(&mut self.timer, r.key, self.tag);
            let mut end = first;
            while end <= last {
                if end > watermark {
                    weir::set_timer(weir::TimerKind::EventTime, end, &self.timer);
                }
                end += self.slide;
            }
            if self.lateness > 0 {
                weir::set_timer(weir::TimerKind::EventTime, last + self.lateness, &self.timer);
            }
        }
        let mut end = first;
        while end <= last && end <= watermark {
            if end + self.lateness > watermark {
                self.fire(r.key, end, true, fire)?;
            }
            end += self.slide;
        }
        Ok(Outcome::Taken)
    }

    /// Takes the timers that the window has set; false if this is not one of them.
    pub fn on_timer(&mut self, t: &Timer, mut fire: impl FnMut(&F, &Fired) -> weir::Result) -> weir::Result<bool> {
        let key = match timer_of(t, self.tag) {
            Some(key) => key,
            None => return Ok(false),
        };
        let start = t.at - self.size;
        if self.floor(start, self.slide) == start {
            self.fire(key, t.at, false, &mut fire)?;
        }
        // Panes whose last window is over for good.
        let start = t.at - self.lateness - self.size;
        if self.floor(start, self.slide) != start {
            return Ok(true);
        }
        slot(&mut self.slot, key, self.tag)?;
        let len = self.slot.len();
        let mut pane = start;
        while pane < start + self.slide {
            at(&mut self.slot, len, pane);
            self.store.delete(&self.slot);
            pane += self.pane;
        }
        Ok(true)
    }

    fn fire(&mut self, key: &[u8], end: i64, update: bool, fire: &mut impl FnMut(&F, &Fired) -> weir::Result) -> weir::Result {
        slot(&mut self.slot, key, self.tag)?;
        let len = self.slot.len();
        let mut any = false;
        let mut pane = end - self.size;
        while pane < end {
            at(&mut self.slot, len, pane);
            if !any {
                any = self.store.get(&self.slot, &mut self.acc);
            } else if self.store.get(&self.slot, &mut self.other) {
                self.fold.merge(&mut self.acc, &self.other);
            }
            pane += self.pane;
        }
        if !any {
            return Ok(());
        }
        fire(&self.fold, &Fired { key, start: end - self.size, end, acc: &self.acc, update })
    }
}

/// Collects the records of a key in sessions: runs of event time without a gap of gap or more.
///
/// A session ends gap after its last record. Its result comes out when the watermark reaches that, and it is kept for
/// lateness longer: a late record in that time is added, and may join sessions. The new result is marked as an
/// update; it takes the place of all earlier ones that it overlaps with. A record that comes later still, and would be a
/// session of its own that is over, is [`Outcome::Late`].
///
/// State is an entry for each key with all of its sessions, and one timer for each session.
pub struct Session<F> {
    pub fold: F,
    pub store: Store,
    /// Tells blocks of one operator apart.
    pub tag: u8,
    times: SessionTimes,
    slot: Text,
    timer: Text,
    value: Text, // sessions as they are stored: first, last (8 each), flags (1), length (4), accumulator
    made: Text,
    acc: Text,
}

#[derive(Clone, Copy)]
struct SessionTimes {
    gap: i64,
    lateness: i64,
}

const SESSION_FIXED: usize = 21;
const SHOWN: u8 = 1; // its result has come out
const OVER: u8 = 2; // its end has passed

#[derive(Clone, Copy)]
struct OneSession<'a> {
    first: i64,
    last: i64,
    flags: u8,
    acc: &'a [u8],
}

impl<'a> OneSession<'a> {
    fn next(b: &'a [u8]) -> Option<(Self, &'a [u8])> {
        if b.len() < SESSION_FIXED {
            return None;
        }
        let n = SESSION_FIXED + le32(&b[17..]);
        Some((OneSession { first: le64(b) as i64, last: le64(&b[8..]) as i64, flags: b[16], acc: &b[SESSION_FIXED..n] }, &b[n..]))
    }

    fn put(&self, text: &mut Text) {
        text.put(&self.first.to_le_bytes());
        text.put(&self.last.to_le_bytes());
        text.put_byte(self.flags);
        put32(text, self.acc.len());
        text.put(self.acc);
    }
}

fn each_session<'a>(mut list: &'a [u8], mut visit: impl FnMut(OneSession<'a>)) {
    while let Some((one, rest)) = OneSession::next(list) {
        visit(one);
        list = rest;
    }
}

impl SessionTimes {
    /// Whether a record of that time belongs to the session.
    fn touches(&self, old: &OneSession, time: i64) -> bool {
        time < old.last + self.gap && old.first < time + self.gap
    }

    /// When the session's timer fires: at its end, then when it is over for good.
    fn due(&self, one: &OneSession) -> i64 {
        one.last + self.gap + if one.flags & OVER != 0 { self.lateness } else { 0 }
    }

    /// Whether a timer at that time is for a session of the list.
    fn is_due(&self, list: &[u8], at: i64) -> bool {
        let mut found = false;
        each_session(list, |one| found |= self.due(&one) == at);
        found
    }
}

impl<F: Fold> Session<F> {
    pub fn new(fold: F, store: Store, gap: i64, lateness: i64) -> weir::Result<Self> {
        if gap <= 0 || gap > MAX_DURATION {
            return Err(weir::Failure::from("the gap between sessions is more than 0 and at most 100 years"));
        }
        if lateness < 0 || lateness > MAX_DURATION {
            return Err(weir::Failure::from("lateness is at most 100 years"));
        }
        needs_event_time("a session needs")?;
        let times = SessionTimes { gap, lateness };
        let new = Text::new;
        Ok(Session { fold, store, tag: b's', times, slot: new(), timer: new(), value: new(), made: new(), acc: new() })
    }

    /// Keeps what has been made of the sessions.
    fn keep(&mut self) {
        if self.made.is_empty() {
            self.store.delete(&self.slot);
        } else {
            self.store.put(&self.slot, &self.made);
        }
    }

    /// Adds a record to its session. A result goes to fire.
    pub fn add(&mut self, r: &Record, mut fire: impl FnMut(&F, &Fired) -> weir::Result) -> weir::Result<Outcome> {
        check_time(r.time)?;
        slot(&mut self.slot, r.key, self.tag)?;
        self.store.get(&self.slot, &mut self.value);
        let (watermark, times) = (weir::watermark(), self.times);
        let (mut first, mut last, mut flags, mut joined) = (r.time, r.time, 0, 0);
        self.acc.clear();
        let (acc, fold) = (&mut self.acc, &self.fold);
        each_session(&self.value, |old| {
            if !times.touches(&old, r.time) {
                return;
            }
            first = first.min(old.first);
            last = last.max(old.last);
            flags |= old.flags & SHOWN;
            joined += 1;
            if joined == 1 {
                acc.put(old.acc);
            } else {
                fold.merge(acc, old.acc);
            }
        });
        let end = last + times.gap;
        if joined == 0 && end + times.lateness <= watermark {
            return Ok(Outcome::Late);
        }
        if !self.fold.add(&mut self.acc, r) {
            return Ok(Outcome::Ignored);
        }
        let over = end <= watermark;
        if over {
            flags |= OVER | SHOWN;
        }
        let one = OneSession { first, last, flags, acc: &self.acc };
        let (made, mut placed) = (&mut self.made, false);
        made.clear();
        each_session(&self.value, |old| {
            if times.touches(&old, r.time) {
                return;
            }
            if !placed && old.first > one.first {
                one.put(made);
                placed = true;
            }
            old.put(made);
        });
        if !placed {
            one.put(made);
        }
        timer_key(&mut self.timer, r.key, self.tag);
        let timer = &self.timer;
        each_session(&self.value, |old| {
            if times.touches(&old, r.time) && !times.is_due(made, times.due(&old)) {
                weir::clear_timer(weir::TimerKind::EventTime, times.due(&old), timer);
            }
        });
        if !times.is_due(&self.value, times.due(&one)) {
            weir::set_timer(weir::TimerKind::EventTime, times.due(&one), timer);
        }
        self.keep();
        if over {
            fire(&self.fold, &Fired { key: r.key, start: first, end, acc: &self.acc, update: true })?;
        }
        Ok(Outcome::Taken)
    }

    /// Takes the timers that the block has set; false if this is not one of them.
    pub fn on_timer(&mut self, t: &Timer, mut fire: impl FnMut(&F, &Fired) -> weir::Result) -> weir::Result<bool> {
        let key = match timer_of(t, self.tag) {
            Some(key) => key,
            None => return Ok(false),
        };
        slot(&mut self.slot, key, self.tag)?;
        self.store.get(&self.slot, &mut self.value);
        let (watermark, times) = (weir::watermark(), self.times);
        self.made.clear();
        let mut list = &self.value[..];
        while let Some((mut one, rest)) = OneSession::next(list) {
            list = rest;
            if times.due(&one) != t.at {
                one.put(&mut self.made);
                continue;
            }
            let end = one.last + times.gap;
            if one.flags & OVER == 0 {
                fire(&self.fold, &Fired { key, start: one.first, end, acc: one.acc, update: one.flags & SHOWN != 0 })?;
                one.flags |= OVER | SHOWN;
            }
            if end + times.lateness > watermark {
                weir::set_timer(weir::TimerKind::EventTime, end + times.lateness, t.key);
                one.put(&mut self.made);
            }
        }
        self.keep();
        Ok(true)
    }
}

/// Collects the records of a key in windows of size records: one after the other, or, if every is less than size, every
/// so many records the last size ones.
///
/// State is an entry for each key, with an accumulator for every every records of a window.
pub struct CountWindow<F> {
    pub fold: F,
    pub store: Store,
    /// Tells blocks of one operator apart.
    pub tag: u8,
    size: usize,
    every: usize,
    slot: Text,
    value: Text, // records in the last part (4), then, for each part, length (4) and accumulator
    acc: Text,
}

impl<F: Fold> CountWindow<F> {
    /// Every 0 is size.
    pub fn new(fold: F, store: Store, size: usize, every: usize) -> weir::Result<Self> {
        let every = if every == 0 { size } else { every };
        if size == 0 || size % every != 0 || size > 1 << 30 {
            return Err(weir::Failure::from("a window has a size of more than 0 records that is a multiple of every"));
        }
        if size / every > 1000 {
            return Err(say(&[&"a window of ", &size, &" records every ", &every, &" has more than 1000 parts"]));
        }
        Ok(CountWindow { fold, store, tag: b'c', size, every, slot: Text::new(), value: Text::new(), acc: Text::new() })
    }

    /// Adds a record. If that makes a window full, what it has accumulated goes to full.
    pub fn add(&mut self, r: &Record, full: impl FnOnce(&F, &[u8])) -> weir::Result<Outcome> {
        slot(&mut self.slot, r.key, self.tag)?;
        let value = &mut self.value;
        if !self.store.get(&self.slot, value) {
            value.put(&[0; 8]);
        }
        let (mut last, mut parts) = (4, 1);
        loop {
            let next = last + 4 + le32(&value[last..]);
            if next >= value.len() {
                break;
            }
            last = next;
            parts += 1;
        }
        self.acc.clear();
        self.acc.put(&value[last + 4..]);
        if !self.fold.add(&mut self.acc, r) {
            return Ok(Outcome::Ignored);
        }
        let n = le32(value) + 1;
        value.truncate(last);
        put32(value, self.acc.len());
        value.put(&self.acc);
        value[..4].copy_from_slice(&(n as u32).to_le_bytes());
        if n < self.every {
            self.store.put(&self.slot, value);
            return Ok(Outcome::Taken);
        }
        let whole = parts == self.size / self.every;
        let mut first = 0;
        if whole {
            self.acc.clear();
            let mut at = 4;
            while at < value.len() {
                let end = at + 4 + le32(&value[at..]);
                if at == 4 {
                    self.acc.put(&value[8..end]);
                    first = end - 4;
                } else {
                    self.fold.merge(&mut self.acc, &value[at + 4..end]);
                }
                at = end;
            }
        }
        // The next part begins; the oldest of a full window goes.
        value.put(&[0; 4]);
        value[first..first + 4].copy_from_slice(&[0; 4]);
        self.store.put(&self.slot, &value[first..]);
        if whole {
            full(&self.fold, &self.acc);
        }
        Ok(Outcome::Taken)
    }
}

/// Accumulates all records of a key, without end.
///
/// State is an entry for each key.
pub struct Running<F> {
    pub fold: F,
    pub store: Store,
    /// Tells blocks of one operator apart.
    pub tag: u8,
    slot: Text,
    acc: Text,
}

impl<F: Fold> Running<F> {
    pub fn new(fold: F, store: Store) -> Self {
        Running { fold, store, tag: b'a', slot: Text::new(), acc: Text::new() }
    }

    /// Adds a record to what its key has accumulated.
    pub fn add(&mut self, r: &Record) -> weir::Result<Outcome> {
        slot(&mut self.slot, r.key, self.tag)?;
        self.store.get(&self.slot, &mut self.acc);
        if !self.fold.add(&mut self.acc, r) {
            return Ok(Outcome::Ignored);
        }
        self.store.put(&self.slot, &self.acc);
        Ok(Outcome::Taken)
    }

    /// What the key of the last record that was added has accumulated.
    pub fn accumulated(&self) -> &[u8] {
        &self.acc
    }
}

/// A record of one side of a join.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    pub time: i64,
    /// None: there is none, or it is too old.
    pub value: Option<&'a [u8]>,
}

/// Joins records of two inputs that have the same key and times close to each other: one of the first input, left, at time t with
/// all of the second, right, from t+lower to t+upper, both included.
///
/// A pair comes out when the later of its records arrives. A record is kept as long as a partner may come; one that is more
/// than lateness behind the watermark is [`Outcome::Late`] and joins nothing.
///
/// State is an entry in keyed state for each key, input and time, with the values of that time. A value of 1 MiB bounds
/// the records of one key, input and millisecond. What is over is removed by timers, a few at a time for each key.
pub struct IntervalJoin {
    /// Tells blocks of one operator apart.
    pub tag: u8,
    lower: i64,
    upper: i64,
    lateness: i64,
    step: i64, // timers are at multiples of it
    own: Text,
    other: Text,
    timer: Text,
    value: Text,
}

impl IntervalJoin {
    pub fn new(lower: i64, upper: i64, lateness: i64) -> weir::Result<Self> {
        if lower > upper {
            return Err(weir::Failure::from("the lower bound of a join is above the upper one"));
        }
        if lower < -MAX_DURATION || upper > MAX_DURATION || lateness < 0 || lateness > MAX_DURATION {
            return Err(weir::Failure::from("bounds and lateness of a join are at most 100 years"));
        }
        needs_event_time("a join of records close in time needs")?;
        let step = 1 + (upper - lower + lateness) / 16;
        let new = Text::new;
        Ok(IntervalJoin { tag: b'i', lower, upper, lateness, step, own: new(), other: new(), timer: new(), value: new() })
    }

    /// Joins a record of input 0 or 1 with what is there of the other, and keeps it. Pairs go to pair: key, left, right.
    pub fn add(&mut self, r: &Record, mut pair: impl FnMut(&[u8], Side, Side)) -> weir::Result<Outcome> {
        if r.input > 1 {
            return Err(say(&[&"a join has two inputs: input ", &(r.input as usize), &" is one too many"]));
        }
        check_time(r.time)?;
        let watermark = weir::watermark();
        if r.time + self.lateness < watermark {
            return Ok(Outcome::Late);
        }
        slot(&mut self.own, r.key, self.tag)?;
        self.own.put_byte(r.input as u8);
        slot(&mut self.other, r.key, self.tag)?;
        self.other.put_byte(1 - r.input as u8);
        let (low, high) = match r.input {
            0 => (r.time + self.lower, r.time + self.upper),
            _ => (r.time - self.upper, r.time - self.lower),
        };
        let mine = Side { time: r.time, value: Some(r.value) };
        weir::state::scan(&self.other, |key, mut value| {
            let time = time_of(key);
            if time > high {
                return false;
            }
            while time >= low && !value.is_empty() {
                let n = 4 + le32(value);
                let theirs = Side { time, value: Some(&value[4..n]) };
                match r.input {
                    0 => pair(r.key, mine, theirs),
                    _ => pair(r.key, theirs, mine),
                }
                value = &value[n..];
            }
            true
        });
        let expiry = self.expiry(r.input, r.time);
        if expiry <= watermark {
            return Ok(Outcome::Taken); // no partner may come any more
        }
        let len = self.own.len();
        at(&mut self.own, len, r.time);
        self.value.clear();
        let had = weir::state::get(&self.own, &mut self.value);
        put32(&mut self.value, r.value.len());
        self.value.put(r.value);
        weir::state::put(&self.own, &self.value);
        if !had {
            timer_key(&mut self.timer, r.key, self.tag);
            let due = expiry + (-expiry).rem_euclid(self.step);
            weir::set_timer(weir::TimerKind::EventTime, due, &self.timer);
        }
        Ok(Outcome::Taken)
    }

    /// The watermark at which no partner of a record may come any more.
    fn expiry(&self, input: u32, time: i64) -> i64 {
        match input {
            0 => time + self.upper + self.lateness + 1,
            _ => time - self.lower + self.lateness + 1,
        }
    }

    /// Takes the timers that the block has set; false if this is not one of them.
    pub fn on_timer(&mut self, t: &Timer) -> weir::Result<bool> {
        let key = match timer_of(t, self.tag) {
            Some(key) => key,
            None => return Ok(false),
        };
        for side in 0..2 {
            slot(&mut self.own, key, self.tag)?;
            self.own.put_byte(side as u8);
            weir::state::scan(&self.own, |key, _| {
                if self.expiry(side, time_of(key)) > t.at {
                    return false;
                }
                weir::state::delete(key);
                true
            });
        }
        Ok(true)
    }
}

/// The time at the end of a state key.
fn time_of(key: &[u8]) -> i64 {
    let t = key[key.len() - 8..].iter().fold(0, |t, &c| t << 8 | c as u64);
    (t ^ 1 << 63) as i64
}

/// Joins the latest value of each of its inputs, per key. Latest is by event time; of equal times, the one that came
/// last. A record that is older than what its input has is [`Outcome::Late`].
///
/// State is an entry for each key with the values of all inputs, up to 1 MiB.
pub struct LatestJoin {
    pub store: Store,
    /// Tells blocks of one operator apart.
    pub tag: u8,
    inputs: usize,
    max_age: i64,
    slot: Text,
    value: Text, // per input that has one: input (1), time (8), length (4), value; in order of inputs
    made: Text,
}

impl LatestJoin {
    /// Values that are older than a record by more than max_age are not joined with it; 0: no limit.
    pub fn new(store: Store, inputs: usize, max_age: i64) -> weir::Result<Self> {
        if inputs < 2 || inputs > 64 {
            return Err(weir::Failure::from("a join has 2 to 64 inputs"));
        }
        Ok(LatestJoin { store, tag: b'l', inputs, max_age, slot: Text::new(), value: Text::new(), made: Text::new() })
    }

    /// Takes a record and gives the latest value of each input to joined.
    pub fn add(&mut self, r: &Record, joined: impl FnOnce(&[Side])) -> weir::Result<Outcome> {
        if r.input as usize >= self.inputs {
            return Err(say(&[&"input ", &(r.input as usize), &" of a join of ", &self.inputs]));
        }
        slot(&mut self.slot, r.key, self.tag)?;
        self.store.get(&self.slot, &mut self.value);
        let mut sides = [Side { time: 0, value: None }; 64];
        let mut value = &self.value[..];
        while value.len() >= 13 {
            let n = 13 + le32(&value[9..]);
            if (value[0] as usize) < self.inputs {
                sides[value[0] as usize] = Side { time: le64(&value[1..]) as i64, value: Some(&value[13..n]) };
            }
            value = &value[n..];
        }
        let mine = &mut sides[r.input as usize];
        if mine.value.is_some() && r.time < mine.time {
            return Ok(Outcome::Late);
        }
        *mine = Side { time: r.time, value: Some(r.value) };
        let sides = &mut sides[..self.inputs];
        self.made.clear();
        for (input, s) in sides.iter().enumerate() {
            if let Some(v) = s.value {
                self.made.put_byte(input as u8);
                self.made.put(&s.time.to_le_bytes());
                put32(&mut self.made, v.len());
                self.made.put(v);
            }
        }
        self.store.put(&self.slot, &self.made);
        for s in sides.iter_mut() {
            if self.max_age > 0 && r.time - s.time > self.max_age {
                s.value = None;
            }
        }
        joined(sides);
        Ok(Outcome::Taken)
    }
}

/// Appends a record's value as JSON: as it is if it is JSON, else as a string; None as null. Of objects and arrays only
/// the brackets are looked at.
pub fn put_json_value(text: &mut Text, value: Option<&[u8]>) {
    match value {
        None => text.put(b"null"),
        Some(v) => match json_value(v) {
            Some(raw) => text.put(raw),
            None => put_json_string(text, v),
        },
    }
}

/// Appends a JSON string. Bytes that are not UTF-8 become the replacement character.
fn put_json_string(text: &mut Text, mut v: &[u8]) {
    if core::str::from_utf8(v).is_ok() {
        return text.put_json(v);
    }
    let mut whole = Text::new();
    while let Err(e) = core::str::from_utf8(v) {
        whole.put(&v[..e.valid_up_to()]);
        whole.put("\u{fffd}".as_bytes());
        v = &v[e.valid_up_to() + 1..];
    }
    whole.put(v);
    text.put_json(&whole)
}

/// The one JSON value that a text is, without space around it; None if it is none.
fn json_value(text: &[u8]) -> Option<&[u8]> {
    let text = trim(text, b" \t\r\n");
    let raw = Path::default().find(text)?;
    let is = match raw[0] {
        _ if raw.len() != text.len() => false,
        b'{' | b'[' | b'"' => true,
        _ => raw == b"true" || raw == b"false" || raw == b"null" || weir::number(raw).is_some(),
    };
    is.then(|| raw)
}

/// How fast a number changes, per key: the difference to the number before it, divided by the event time between them.
///
/// State is an entry of 16 bytes for each key.
pub struct Rate {
    /// The unit of time in milliseconds.
    pub per: i64,
    /// The number only grows: if it is less than before, it has begun again at 0.
    pub counter: bool,
    pub store: Store,
    /// Tells blocks of one operator apart.
    pub tag: u8,
    slot: Text,
    value: Text,
}

impl Rate {
    pub fn new(store: Store, per: i64, counter: bool) -> weir::Result<Self> {
        if per <= 0 {
            return Err(weir::Failure::from("a rate is per more than 0 ms"));
        }
        Ok(Rate { per, counter, store, tag: b'r', slot: Text::new(), value: Text::new() })
    }

    /// Takes a number and returns the rate; None for the first of a key. One that is not newer than the last is
    /// [`Outcome::Late`].
    pub fn add(&mut self, key: &[u8], time: i64, v: f64) -> weir::Result<(Option<f64>, Outcome)> {
        slot(&mut self.slot, key, self.tag)?;
        let mut rate = None;
        if self.store.get(&self.slot, &mut self.value) {
            let (then, was) = (le64(&self.value) as i64, float(&self.value[8..]));
            if time <= then {
                return Ok((None, Outcome::Late));
            }
            let change = if self.counter && v < was { v } else { v - was };
            rate = Some(change * self.per as f64 / time.wrapping_sub(then) as f64);
        }
        remember(&mut self.value, time, v);
        self.store.put(&self.slot, &self.value);
        Ok((rate, Outcome::Taken))
    }
}

fn remember(value: &mut Text, time: i64, v: f64) {
    value.clear();
    value.put(&time.to_le_bytes());
    value.put(&v.to_bits().to_le_bytes());
}

/// Lets a number pass, per key, if it is more than a band away from the last that has passed.
///
/// State is an entry of 16 bytes for each key.
pub struct Deadband {
    /// In units of the number.
    pub band: f64,
    /// Of the last number that has passed; the wider of both counts.
    pub share: f64,
    /// A number passes in any case so many milliseconds after the last one, or more; 0: none does.
    pub max_silence: i64,
    pub store: Store,
    /// Tells blocks of one operator apart.
    pub tag: u8,
    slot: Text,
    value: Text,
}

impl Deadband {
    pub fn new(store: Store, band: f64, share: f64, max_silence: i64) -> weir::Result<Self> {
        if !(band >= 0.0) || !(share >= 0.0) || max_silence < 0 {
            return Err(weir::Failure::from("a dead-band has a width and a silence of 0 or more"));
        }
        Ok(Deadband { band, share, max_silence, store, tag: b'b', slot: Text::new(), value: Text::new() })
    }

    /// Takes a number and says whether it passes. The first of a key does.
    pub fn add(&mut self, key: &[u8], time: i64, v: f64) -> weir::Result<bool> {
        slot(&mut self.slot, key, self.tag)?;
        if self.store.get(&self.slot, &mut self.value) {
            let (then, last) = (le64(&self.value) as i64, float(&self.value[8..]));
            let wide = self.share * abs(last);
            let band = if wide > self.band { wide } else { self.band };
            if abs(v - last) <= band && (self.max_silence == 0 || time.wrapping_sub(then) < self.max_silence) {
                return Ok(false);
            }
        }
        remember(&mut self.value, time, v);
        self.store.put(&self.slot, &self.value);
        Ok(true)
    }
}

fn abs(v: f64) -> f64 {
    f64::from_bits(v.to_bits() & !(1 << 63))
}

/// Recognises records that come again, by an id, per key. It remembers either the last ids of a key, or all ids for some
/// time.
///
/// State, of the last ids: an entry for each key; each record is compared with all of them. With a time: an entry in keyed
/// state for each id, which expires when the watermark is so far past the record's time. It takes a watermark for that:
/// without one, every id is kept.
pub struct Dedup {
    /// Tells blocks of one operator apart.
    pub tag: u8,
    store: Store,
    last: usize,
    within: i64,
    slot: Text,
    value: Text, // per id, oldest first, length (2) and id; with a time: the time
}

impl Dedup {
    /// Remembers so many ids of each key, up to 4,096.
    pub fn last(store: Store, last: usize) -> weir::Result<Self> {
        if last == 0 || last > 4096 {
            return Err(weir::Failure::from("the last ids are remembered, up to 4,096"));
        }
        Ok(Dedup { tag: b'd', store, last, within: 0, slot: Text::new(), value: Text::new() })
    }

    /// Remembers all ids for a time, in keyed state.
    pub fn within(within: i64) -> weir::Result<Self> {
        if within <= 0 || within > MAX_DURATION {
            return Err(weir::Failure::from("ids are remembered for a time of up to 100 years"));
        }
        needs_event_time("to forget ids after a time needs")?;
        Ok(Dedup { tag: b'd', store: Store::Keyed, last: 0, within, slot: Text::new(), value: Text::new() })
    }

    /// Says whether the id has come before, and remembers it.
    pub fn seen(&mut self, key: &[u8], time: i64, id: &[u8]) -> weir::Result<bool> {
        if id.len() > 1024 {
            return Err(say(&[&"id of ", &id.len(), &" bytes, at most 1024"]));
        }
        slot(&mut self.slot, key, self.tag)?;
        if self.within > 0 {
            return self.seen_within(time, id);
        }
        let value = &mut self.value;
        self.store.get(&self.slot, value);
        let (mut at, mut n) = (0, 0);
        while at < value.len() {
            let end = at + 2 + id_len(&value[at..]);
            if &value[at + 2..end] == id {
                return Ok(true);
            }
            at = end;
            n += 1;
        }
        if n >= self.last {
            let (first, len) = (2 + id_len(value), value.len());
            value.copy_within(first.., 0);
            value.truncate(len - first);
        }
        value.put(&(id.len() as u16).to_le_bytes());
        value.put(id);
        self.store.put(&self.slot, value);
        Ok(false)
    }

    fn seen_within(&mut self, time: i64, id: &[u8]) -> weir::Result<bool> {
        if self.slot.len() + id.len() > 4096 {
            return Err(say(&[&"key and id of ", &(self.slot.len() + id.len()), &" bytes, at most 4,096"]));
        }
        check_time(time)?;
        self.slot.put(id);
        if weir::state::get(&self.slot, &mut self.value) {
            let then = le64(&self.value) as i64;
            if time - then < self.within && then - time < self.within {
                return Ok(true);
            }
            if then > time {
                return Ok(false); // an older one of the same id: the newer stays
            }
        }
        weir::state::put_until(&self.slot, &time.to_le_bytes(), time + self.within);
        Ok(false)
    }
}

fn id_len(b: &[u8]) -> usize {
    u16::from_le_bytes([b[0], b[1]]) as usize
}

/// An expression over a record, such as
///
/// ```text
/// temp > 80 && (status == "on" || motor.phases.0.current * 1.8 >= limit)
/// ```
///
/// The Go package's type `Expr` has its grammar and what it means.
pub struct Expr {
    code: List<Op>,
}

/// Kind of a [`Value`].
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Null,
    Bool,
    Number,
    Text,
    /// An object or array.
    Other,
}

/// What an expression comes to.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    pub kind: Kind,
    /// Of a Bool 0 or 1.
    pub number: f64,
    /// Of a Text, as it is written in JSON.
    pub text: &'a [u8],
    raw: &'a [u8], // the JSON that it comes from, empty if it comes from none
}

const NULL: Value = Value { kind: Kind::Null, number: 0.0, text: b"", raw: b"" };

/// A step of an expression: it takes its operands from the stack and leaves its result there.
enum Op {
    Number(f64),
    Bool(bool),
    Null,
    Text(Text),
    Path(Path),
    Whole,
    Key,
    Time,
    Topic,
    Unary(u8),  // ! n(egative) a(bs)
    Binary(u8), // an operator, m(in) M(ax)
}

const MAX_EXPR: usize = 256;
const MAX_DEPTH: usize = 32;

/// Turns the text into steps, each after its operands.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    code: List<Op>,
    wrong: Text,
}

impl Expr {
    /// Reads an expression. The failure says where it is wrong, in bytes from 0.
    pub fn parse(text: &[u8]) -> weir::Result<Expr> {
        let mut p = Parser::new(text);
        p.or(0);
        p.space();
        if p.at < text.len() {
            p.expected("an operator");
        }
        p.done()?;
        Ok(Expr { code: p.code })
    }

    /// Computes the expression for a record.
    pub fn eval<'a>(&'a self, r: &Record<'a>) -> Value<'a> {
        let mut s: List<Value<'a>> = List::new();
        for op in self.code.iter() {
            let v = match op {
                Op::Number(v) => Value { kind: Kind::Number, number: *v, ..NULL },
                Op::Bool(b) => truth(*b),
                Op::Null => NULL,
                Op::Text(t) => Value { kind: Kind::Text, text: t, ..NULL },
                Op::Path(p) => p.find(r.value).map_or(NULL, value_of_json),
                Op::Whole => match json_value(r.value) {
                    Some(raw) => value_of_json(raw),
                    None => Value { kind: Kind::Text, text: r.value, ..NULL },
                },
                Op::Key => Value { kind: Kind::Text, text: r.key, ..NULL },
                Op::Time => Value { kind: Kind::Number, number: r.time as f64, ..NULL },
                Op::Topic => r.header(b"topic").map_or(NULL, |text| Value { kind: Kind::Text, text, ..NULL }),
                Op::Unary(op) => unary(*op, s.pop().unwrap_or(NULL)),
                Op::Binary(op) => {
                    let b = s.pop().unwrap_or(NULL);
                    binary(*op, &s.pop().unwrap_or(NULL), &b)
                }
            };
            s.push(v);
        }
        s.pop().unwrap_or(NULL)
    }
}

impl<'a> Parser<'a> {
    fn new(text: &'a [u8]) -> Self {
        Parser { text, at: 0, code: List::new(), wrong: Text::new() }
    }

    fn done(&self) -> weir::Result {
        if self.wrong.is_empty() {
            return Ok(());
        }
        Err(say(&[&"at byte ", &self.at, &": ", &self.wrong]))
    }

    fn expected(&mut self, what: &str) {
        if self.wrong.is_empty() {
            self.wrong.put(b"expected ");
            self.wrong.put(what.as_bytes());
        }
    }

    fn stop(&mut self, why: &str) {
        if self.wrong.is_empty() {
            self.wrong.put(why.as_bytes());
        }
    }

    fn emit(&mut self, op: Op) {
        self.code.push(op);
        if self.code.len() > MAX_EXPR {
            self.stop("the expression is too long");
        }
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    /// Skips space and a token.
    fn take(&mut self, token: &str) -> bool {
        self.space();
        let there = self.wrong.is_empty() && self.text[self.at..].starts_with(token.as_bytes());
        if there {
            self.at += token.len();
        }
        there
    }

    fn or(&mut self, depth: usize) {
        if depth > MAX_DEPTH {
            return self.stop("too many nested parts");
        }
        self.and(depth);
        while self.take("||") {
            self.and(depth);
            self.emit(Op::Binary(b'|'));
        }
    }

    fn and(&mut self, depth: usize) {
        self.compare(depth);
        while self.take("&&") {
            self.compare(depth);
            self.emit(Op::Binary(b'&'));
        }
    }

    fn compare(&mut self, depth: usize) {
        self.sum(depth);
        for (token, op) in [("==", b'='), ("!=", b'#'), ("<=", b'{'), (">=", b'}'), ("<", b'<'), (">", b'>')] {
            if self.take(token) {
                self.sum(depth);
                return self.emit(Op::Binary(op));
            }
        }
    }

    fn sum(&mut self, depth: usize) {
        self.product(depth);
        loop {
            let op = if self.take("+") {
                b'+'
            } else if self.take("-") {
                b'-'
            } else {
                return;
            };
            self.product(depth);
            self.emit(Op::Binary(op));
        }
    }

    fn product(&mut self, depth: usize) {
        self.unary(depth);
        loop {
            let op = if self.take("*") {
                b'*'
            } else if self.take("/") {
                b'/'
            } else {
                return;
            };
            self.unary(depth);
            self.emit(Op::Binary(op));
        }
    }

    fn unary(&mut self, depth: usize) {
        if depth > MAX_DEPTH {
            self.stop("too many nested parts");
        } else if self.take("!") {
            self.unary(depth + 1);
            self.emit(Op::Unary(b'!'));
        } else if self.take("-") {
            self.unary(depth + 1);
            self.emit(Op::Unary(b'n'));
        } else if self.take("(") {
            self.or(depth + 1);
            self.want(")");
        } else {
            self.primary(depth);
        }
    }

    fn want(&mut self, token: &str) {
        if !self.take(token) {
            self.expected(token);
        }
    }

    fn primary(&mut self, depth: usize) {
        self.space();
        let start = self.at;
        match self.text.get(start) {
            Some(&c) if self.wrong.is_empty() => match c {
                b'"' | b'\'' | b'`' => self.quoted(c),
                b'0'..=b'9' => self.number(),
                _ if is_name(c) || c == b'$' => {
                    self.at += 1;
                    while self.text.get(self.at).map_or(false, |&c| is_name(c) || c == b'.') {
                        self.at += 1;
                    }
                    self.name(&self.text[start..self.at], depth);
                }
                _ => self.expected("a value"),
            },
            _ => self.expected("a value"),
        }
    }

    fn quoted(&mut self, quote: u8) {
        let mut text = Text::new();
        self.at += 1;
        while self.at < self.text.len() && self.text[self.at] != quote {
            if self.text[self.at] == b'\\' && self.at + 1 < self.text.len() {
                self.at += 1;
                if quote == b'`' {
                    text.put_byte(b'\\'); // paths know it themselves
                }
            }
            text.put_byte(self.text[self.at]);
            self.at += 1;
        }
        if self.at == self.text.len() {
            return self.expected(match quote {
                b'"' => "\"",
                b'\'' => "'",
                _ => "`",
            });
        }
        self.at += 1;
        if quote == b'`' {
            self.path(&text);
        } else {
            self.emit(Op::Text(text));
        }
    }

    fn number(&mut self) {
        let start = self.at;
        while let Some(&c) = self.text.get(self.at) {
            let sign = (c == b'+' || c == b'-') && self.at > start && self.text[self.at - 1] | 0x20 == b'e';
            if !(b'0'..=b'9').contains(&c) && c != b'.' && c | 0x20 != b'e' && !sign {
                break;
            }
            self.at += 1;
        }
        match weir::number(&self.text[start..self.at]) {
            Some(v) => self.emit(Op::Number(v)),
            None => {
                self.at = start;
                self.expected("a number");
            }
        }
    }

    fn name(&mut self, name: &[u8], depth: usize) {
        match name {
            b"true" => self.emit(Op::Bool(true)),
            b"false" => self.emit(Op::Bool(false)),
            b"null" => self.emit(Op::Null),
            b"$value" => self.emit(Op::Whole),
            b"$key" => self.emit(Op::Key),
            b"$time" => self.emit(Op::Time),
            b"$topic" => self.emit(Op::Topic),
            _ if name[0] == b'$' => {
                self.at -= name.len();
                self.expected("$value, $key, $time or $topic");
            }
            _ if self.take("(") => self.call(name, depth),
            _ => self.path(name),
        }
    }

    fn call(&mut self, name: &[u8], depth: usize) {
        let op = match name {
            b"abs" => Op::Unary(b'a'),
            b"min" => Op::Binary(b'm'),
            b"max" => Op::Binary(b'M'),
            _ => return self.expected("abs, min or max before a parenthesis"),
        };
        self.or(depth + 1);
        if let Op::Binary(_) = op {
            self.want(",");
            self.or(depth + 1);
        }
        self.want(")");
        self.emit(op);
    }

    fn path(&mut self, text: &[u8]) {
        match Path::parse(text) {
            Ok(path) if !path.is_empty() => self.emit(Op::Path(path)),
            _ => self.expected("a path such as v or motor.phases.0.current"),
        }
    }

    /// The name of a field.
    fn field(&mut self) -> Text {
        self.space();
        let (start, mut name) = (self.at, Text::new());
        if let Some(&quote) = self.text.get(start).filter(|&&c| c == b'"' || c == b'\'') {
            self.quoted(quote);
            if let Some(Op::Text(text)) = self.code.pop() {
                name = text;
            }
            return name;
        }
        while self.text.get(self.at).map_or(false, |&c| is_name(c)) {
            self.at += 1;
        }
        if self.at == start {
            self.expected("the name of a field");
        }
        name.put(&self.text[start..self.at]);
        name
    }
}

fn is_name(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80
}

fn truth<'a>(b: bool) -> Value<'a> {
    Value { kind: Kind::Bool, number: b as u8 as f64, ..NULL }
}

fn value_of_json(raw: &[u8]) -> Value {
    match raw {
        [b'"', .., _] => Value { kind: Kind::Text, text: &raw[1..raw.len() - 1], raw, ..NULL },
        [b'{' | b'[', ..] => Value { kind: Kind::Other, raw, ..NULL },
        b"true" => truth(true),
        b"false" => truth(false),
        _ => match weir::number(raw) {
            Some(number) => Value { kind: Kind::Number, number, raw, ..NULL },
            None => NULL,
        },
    }
}

fn finite<'a>(number: f64) -> Value<'a> {
    if number - number != 0.0 {
        return NULL; // infinite, or not a number
    }
    Value { kind: Kind::Number, number, ..NULL }
}

fn unary<'a>(op: u8, v: Value<'a>) -> Value<'a> {
    if op == b'!' {
        truth(!v.is_true())
    } else if v.kind != Kind::Number {
        NULL
    } else if op == b'n' || v.number < 0.0 {
        finite(-v.number)
    } else {
        finite(v.number)
    }
}

fn binary<'a>(op: u8, a: &Value<'a>, b: &Value<'a>) -> Value<'a> {
    let ordered = a.kind == Kind::Number || a.kind == Kind::Text;
    match op {
        b'|' => return truth(a.is_true() || b.is_true()),
        b'&' => return truth(a.is_true() && b.is_true()),
        b'=' => return truth(equal(a, b)),
        b'#' => return truth(!equal(a, b)),
        b'<' => return truth(less(a, b)),
        b'>' => return truth(less(b, a)),
        b'{' => return truth(less(a, b) || ordered && equal(a, b)),
        b'}' => return truth(less(b, a) || ordered && equal(a, b)),
        _ if a.kind != Kind::Number || b.kind != Kind::Number => return NULL,
        _ => {}
    }
    let (x, y) = (a.number, b.number);
    finite(match op {
        b'+' => x + y,
        b'-' => x - y,
        b'*' => x * y,
        b'/' => x / y,
        b'm' if y < x => y,
        b'M' if y > x => y,
        _ => x,
    })
}

fn equal(a: &Value, b: &Value) -> bool {
    a.kind == b.kind
        && match a.kind {
            Kind::Null => true,
            Kind::Bool | Kind::Number => a.number == b.number,
            Kind::Text => a.text == b.text,
            Kind::Other => a.raw == b.raw,
        }
}

fn less(a: &Value, b: &Value) -> bool {
    match (a.kind, b.kind) {
        (Kind::Number, Kind::Number) => a.number < b.number,
        (Kind::Text, Kind::Text) => a.text < b.text,
        _ => false,
    }
}

impl Value<'_> {
    pub fn is_true(&self) -> bool {
        self.kind == Kind::Bool && self.number == 1.0
    }

    /// Appends the value as JSON: as it was in the record if it comes from there, else a number with so many
    /// decimals (0 to 9).
    pub fn put_json(&self, text: &mut Text, decimals: usize) {
        match self.kind {
            _ if !self.raw.is_empty() => text.put(self.raw),
            Kind::Text => put_json_string(text, self.text),
            Kind::Number => text.put_fixed(self.number, decimals),
            Kind::Bool => text.put(if self.is_true() { b"true" } else { b"false" }),
            _ => text.put(b"null"),
        }
    }

    /// Appends the value as a text without quotes.
    pub fn put_text(&self, text: &mut Text, decimals: usize) {
        match self.kind {
            Kind::Text => text.put(self.text),
            _ => self.put_json(text, decimals),
        }
    }
}

/// Fields of a new object and the expressions that make them.
pub struct Assignments(List<(Text, Expr)>);

impl Assignments {
    /// Reads "name = expression; name = expression". A name may also be in quotes, as texts are.
    pub fn parse(text: &[u8]) -> weir::Result<Assignments> {
        let mut all = List::new();
        let mut p = Parser::new(text);
        loop {
            let name = p.field();
            p.want("=");
            p.or(0);
            all.push((name, Expr { code: core::mem::take(&mut p.code) }));
            if all.len() > 64 {
                p.stop("too many assignments");
            }
            if p.take(";") {
                p.space();
                if p.at < text.len() {
                    continue;
                }
            }
            if p.at < text.len() {
                p.expected("an operator or ;");
            }
            p.done()?;
            return Ok(Assignments(all));
        }
    }

    /// Appends a JSON object with the assignments. With keep, the fields of the record's value that are not assigned
    /// come first, if it is an object.
    pub fn put_object(&self, text: &mut Text, r: &Record, keep: bool, decimals: usize) {
        let mut separator = b'{';
        if keep {
            weir::json_fields(r.value, |name, raw| {
                if self.0.iter().any(|(n, _)| &n[..] == name) {
                    return;
                }
                text.put(&[separator, b'"']);
                text.put(name);
                text.put(b"\":");
                text.put(raw);
                separator = b',';
            });
        }
        for (name, expr) in self.0.iter() {
            text.put_byte(separator);
            put_json_string(text, name);
            text.put_byte(b':');
            expr.eval(r).put_json(text, decimals);
            separator = b',';
        }
        text.put_byte(b'}');
    }
}

/// Reads an operator's configuration. The first value that is wrong is kept as a failure that names the key and the
/// value; see [`Settings::done`].
pub struct Settings {
    config: weir::Config,
    asked: Text, // keys, each with a line feed behind it
    wrong: Option<weir::Failure>,
}

impl Settings {
    /// Begins to read a configuration.
    pub fn read(c: &weir::Config) -> Self {
        Settings { config: *c, asked: Text::new(), wrong: None }
    }

    /// The first mistake so far, if there is one.
    pub fn check(&mut self) -> weir::Result {
        self.wrong.take().map_or(Ok(()), Err)
    }

    /// The first mistake, once all keys have been asked for. A key that is set and was not asked for is one; it is told
    /// of beside another one if it looks like a key that was asked for.
    pub fn done(&mut self) -> weir::Result {
        let set = self.config.keys();
        if let Some(key) = set.split(|c| *c == b'\n').find(|k| !k.is_empty() && !self.knows(k)) {
            let (text, near) = self.unknown(key);
            match self.wrong.take() {
                None => return Err(weir::Failure::from(text)),
                Some(why) if near => {
                    let mut both = Text::new();
                    both.put(why.reason());
                    both.put(b"; ");
                    both.put(&text);
                    return Err(weir::Failure::from(both));
                }
                why => self.wrong = why,
            }
        }
        self.check()
    }

    fn knows(&self, key: &[u8]) -> bool {
        self.asked.split(|c| *c == b'\n').any(|k| k == key)
    }

    fn ask(&mut self, key: &str) {
        if !self.knows(key.as_bytes()) {
            self.asked.put(key.as_bytes());
            self.asked.put_byte(b'\n');
        }
    }

    /// Says that a key means nothing here, and which may have been meant; false if none is near.
    fn unknown(&self, key: &[u8]) -> (Text, bool) {
        let asked = || self.asked.split(|c| *c == b'\n').filter(|k| !k.is_empty());
        let mut text = Text::new();
        text.put(b"config ");
        text.put(key);
        text.put(b": there is no such key");
        let (mut best, mut least): (&[u8], usize) = (b"", 1 + core::cmp::max(core::cmp::min(2, key.len() - 1), key.len() / 3));
        for k in asked() {
            let d = distance(key, k);
            if d < least {
                (best, least) = (k, d);
            }
        }
        if !best.is_empty() {
            text.put(b", did you mean ");
            text.put(best);
            text.put_byte(b'?');
        }
        text.put(b" (what is used as it is configured: ");
        let mut last: &[u8] = b"";
        while let Some(next) = asked().filter(|k| *k > last).min() {
            if !last.is_empty() {
                text.put(b", ");
            }
            text.put(next);
            last = next;
        }
        text.put_byte(b')');
        (text, !best.is_empty())
    }

    /// Reports a mistake in the value of a key: what says what is wrong with it.
    pub fn wrong(&mut self, key: &str, what: impl AsRef<[u8]>) {
        if self.wrong.is_some() {
            return;
        }
        let mut text = Text::new();
        text.put(b"config ");
        text.put(key.as_bytes());
        match self.config.get(key) {
            Some(v) => {
                text.put(b": ");
                text.put_json(&v);
                text.put_byte(b' ');
            }
            None => text.put(b" is not set: it "),
        }
        text.put(what.as_ref());
        self.wrong = Some(weir::Failure::from(text));
    }

    /// What a block says to its settings, if that is a mistake in the value of a key.
    pub fn take<T>(&mut self, key: &str, before: &str, made: weir::Result<T>) -> Option<T> {
        match made {
            Ok(v) => Some(v),
            Err(why) => {
                let mut text = Text::new();
                text.put(before.as_bytes());
                text.put(why.reason());
                self.wrong(key, text);
                None
            }
        }
    }

    pub fn has(&mut self, key: &str) -> bool {
        self.ask(key);
        self.config.get(key).is_some()
    }

    /// The text of a key.
    pub fn text(&mut self, key: &str, fallback: &str) -> Text {
        self.ask(key);
        self.config.get(key).unwrap_or_else(|| {
            let mut text = Text::new();
            text.put(fallback.as_bytes());
            text
        })
    }

    /// The text of a key, which is one of those given, as its place; the first is the fallback.
    pub fn choice(&mut self, key: &str, choices: &[&str]) -> usize {
        let v = self.text(key, choices[0]);
        if let Some(i) = choices.iter().position(|c| c.as_bytes() == &v[..]) {
            return i;
        }
        let mut text = Text::new();
        text.put(b"is not one of ");
        for (i, c) in choices.iter().enumerate() {
            if i > 0 {
                text.put(b", ");
            }
            text.put(c.as_bytes());
        }
        self.wrong(key, text);
        0
    }

    /// True or false, and false if the key is not set.
    pub fn flag(&mut self, key: &str) -> bool {
        self.choice(key, &["false", "true"]) == 1
    }

    /// A whole number in a range.
    pub fn int(&mut self, key: &str, fallback: i64, low: i64, high: i64) -> i64 {
        let set = self.has(key);
        match self.config.int(key, fallback) {
            Ok(v) if !set || v >= low && v <= high => v,
            _ => {
                let mut text = Text::new();
                text.put(b"is not a whole number from ");
                text.put_int(low);
                text.put(b" to ");
                text.put_int(high);
                self.wrong(key, text);
                fallback
            }
        }
    }

    /// A number of 0 or more.
    pub fn float(&mut self, key: &str, fallback: f64) -> f64 {
        self.ask(key);
        match self.config.float(key, fallback) {
            Ok(v) if v >= 0.0 => v,
            _ => {
                self.wrong(key, "is not a number of 0 or more");
                fallback
            }
        }
    }

    /// Where in a value something is.
    pub fn path(&mut self, key: &str, fallback: &str) -> Path {
        match Path::parse(&self.text(key, fallback)) {
            Ok(path) => path,
            Err(_) => {
                self.wrong(key, "is not a path such as v or motor.phases.0.current");
                Path::default()
            }
        }
    }

    /// A duration in milliseconds, as [`parse_duration`] reads it.
    pub fn duration(&mut self, key: &str, fallback: i64) -> i64 {
        self.ask(key);
        match self.config.get(key) {
            Some(text) => self.parse(key, &text),
            None => fallback,
        }
    }

    /// A duration in milliseconds that may be negative: "-5s".
    pub fn span(&mut self, key: &str, fallback: i64) -> i64 {
        self.ask(key);
        match self.config.get(key) {
            Some(text) if text.first() == Some(&b'-') => -self.parse(key, &text[1..]),
            Some(text) => self.parse(key, &text),
            None => fallback,
        }
    }

    fn parse(&mut self, key: &str, text: &[u8]) -> i64 {
        parse_duration(text).unwrap_or_else(|| {
            self.wrong(key, "is not a duration such as 500ms, 10s, 1m30s, 2h or 1d");
            0
        })
    }

    /// Where state is kept: "keyed" or "memory".
    pub fn store(&mut self, key: &str) -> Store {
        match self.choice(key, &["keyed", "memory"]) {
            0 => Store::Keyed,
            _ => Store::memory(),
        }
    }

    /// The functions that are asked for ("functions"), where the number is ("field") and how results are rounded
    /// ("decimals").
    pub fn aggregate(&mut self) -> Option<Aggregate> {
        let reading = Reading { field: self.path("field", "v") };
        let decimals = self.int("decimals", 3, 0, 9) as usize;
        let made = Aggregate::new(&self.text("functions", "count,mean,min,max"), reading, decimals);
        self.take("functions", "has a mistake: ", made)
    }

    /// An expression, which must be set.
    pub fn expr(&mut self, key: &str) -> Option<Expr> {
        if !self.has(key) {
            self.wrong(key, "is needed");
            return None;
        }
        let made = Expr::parse(&self.text(key, ""));
        self.take(key, "is not an expression: ", made)
    }

    /// Fields of a new object.
    pub fn assignments(&mut self, key: &str) -> Option<Assignments> {
        let made = Assignments::parse(&self.text(key, ""));
        self.take(key, "is not a list of assignments: ", made)
    }
}

/// How many bytes must be put in, taken out or changed to make one text of the other; of long ones it is their
/// difference in length.
fn distance(a: &[u8], b: &[u8]) -> usize {
    const LONG: usize = 32;
    if a.len() > LONG || b.len() > LONG {
        return core::cmp::max(a.len().abs_diff(b.len()), 1);
    }
    let mut row = [0usize; LONG + 1];
    for (j, r) in row.iter_mut().enumerate() {
        *r = j;
    }
    for i in 1..=a.len() {
        let mut before = row[0];
        row[0] = i;
        for j in 1..=b.len() {
            let d = if a[i - 1] == b[j - 1] { before } else { 1 + before.min(row[j]).min(row[j - 1]) };
            before = row[j];
            row[j] = d;
        }
    }
    row[b.len()]
}

/// That a block cannot do its work in a job without event time: it would put out nothing, or keep everything, until
/// the input ends.
fn needs_event_time(what: &str) -> weir::Result {
    if weir::Config::default().event_time() {
        return Ok(());
    }
    let mut text = Text::new();
    text.put(what.as_bytes());
    text.put(b" event time, and no source of the job has it: give one a time, such as time: arrival");
    Err(weir::Failure::from(text))
}

/// Reads a duration as whole numbers with units: ms, s, m, h, d. At most 100 years. "0" needs no unit.
pub fn parse_duration(text: &[u8]) -> Option<i64> {
    if text == b"0" {
        return Some(0);
    }
    let (mut ms, mut at) = (0, 0);
    while at < text.len() {
        let (mut n, digits) = (0, at);
        while let Some(c @ b'0'..=b'9') = text.get(at) {
            n = n * 10 + (c - b'0') as i64;
            if n > MAX_DURATION {
                return None;
            }
            at += 1;
        }
        let unit = at;
        while let Some(b'a'..=b'z') = text.get(at) {
            at += 1;
        }
        let each = match &text[unit..at] {
            b"ms" => 1,
            b"s" => 1000,
            b"m" => 60_000,
            b"h" => 3_600_000,
            b"d" => 86_400_000,
            _ => return None,
        };
        if unit == digits || n > (MAX_DURATION - ms) / each {
            return None;
        }
        ms += n * each;
    }
    (!text.is_empty()).then(|| ms)
}

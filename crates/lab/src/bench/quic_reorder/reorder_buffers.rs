//! Data structures in which packets wait for earlier ones: the device's direct-mapped window
//! against a splay tree and a linear list, as in NiQUIC's figure 4, and against the binary heap in
//! which quinn-proto keeps the chunks of a stream.
//!
//! Each gets the same packet numbers, some of which are late (by less than the window) or missing
//! (until the window is full and skips them), and delivers them in order. A packet is a number
//! of 32 bits here: only the ordering data moves. Measured are cycles per packet, packets in order
//! included, and the memory of a full window.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hint::black_box;

use base::Prng;
use io::clock::cycles;
use io::heap::allocated_bytes;
use serde_json::json;
use splay_tree::SplayMap;
use structures::{ReorderWindow, WindowPosition};

use crate::bench::experiment::{BenchReport, Experiment, Fields, single_run};
use cli::Failure;

/// Packets that a window spans.
const SIZES: [u16; 4] = [8, 32, 128, 512];
/// Probabilities per packet, in percent.
const RATES: [u32; 3] = [0, 1, 5];
/// Packets of a round.
const PACKETS: u64 = 1 << 18;
const QUICK_PACKETS: u64 = 1 << 15;
/// Rounds; the median counts.
const ROUNDS: usize = 9;
/// Full windows over which memory is averaged.
const FULL_WINDOWS: usize = 256;

/// Fault of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReorderFault {
    Late,
    Lost,
}

/// A collection of waiting packets, sorted by number.
trait SortedQueue: Default {
    fn insert(&mut self, number: u64, value: u32);
    fn first(&mut self) -> Option<u64>;
    fn pop(&mut self) -> Option<u32>;
}

/// A reordering buffer.
trait ReorderBuffer {
    fn new(size: u16) -> Self;
    /// Takes in a packet and calls `out` with each packet that is delivered.
    fn take(&mut self, number: u64, value: u32, out: &mut impl FnMut(u32));
}

impl ReorderBuffer for ReorderWindow {
    fn new(size: u16) -> Self {
        Self::new(size, 0)
    }

    fn take(&mut self, number: u64, value: u32, out: &mut impl FnMut(u32)) {
        match self.position(number) {
            WindowPosition::Behind | WindowPosition::Taken => out(value),
            WindowPosition::Ahead => self.insert(number, value),
            WindowPosition::Next => {
                self.advance_past(number);
                out(value);
                while let Some(value) = self.pop_next() {
                    out(value);
                }
            }
            WindowPosition::Beyond => {
                let floor = self.floor_for(number);
                while let Some(value) = self.pop_below(floor).or_else(|| self.pop_next()) {
                    out(value);
                }
                self.take(number, value, out);
            }
        }
    }
}

/// Reordering buffer whose waiting packets are in another collection.
struct SortedReorderBuffer<S> {
    waiting: S,
    next: u64,
    size: u64,
}

impl<S: SortedQueue> ReorderBuffer for SortedReorderBuffer<S> {
    fn new(size: u16) -> Self {
        Self { waiting: S::default(), next: 0, size: size.into() }
    }

    fn take(&mut self, number: u64, value: u32, out: &mut impl FnMut(u32)) {
        if number < self.next {
            out(value);
        } else if number >= self.next + self.size {
            let floor = number + 1 - self.size;
            while self.waiting.first().is_some_and(|first| first < floor) {
                self.waiting.pop().into_iter().for_each(&mut *out);
            }
            self.next = floor;
            self.deliver_in_order(out);
            self.take(number, value, out);
        } else if number > self.next {
            self.waiting.insert(number, value);
        } else {
            out(value);
            self.next += 1;
            self.deliver_in_order(out);
        }
    }
}

impl<S: SortedQueue> SortedReorderBuffer<S> {
    /// Delivers the packets that follow without a gap.
    fn deliver_in_order(&mut self, out: &mut impl FnMut(u32)) {
        while self.waiting.first() == Some(self.next) {
            self.waiting.pop().into_iter().for_each(&mut *out);
            self.next += 1;
        }
    }
}

impl SortedQueue for SplayMap<u64, u32> {
    fn insert(&mut self, number: u64, value: u32) {
        Self::insert(self, number, value);
    }

    fn first(&mut self) -> Option<u64> {
        self.smallest().map(|(&number, _)| number)
    }

    fn pop(&mut self) -> Option<u32> {
        self.take_smallest().map(|(_, value)| value)
    }
}

/// List in ascending order, searched from the oldest packet.
#[derive(Default)]
struct LinearList(VecDeque<(u64, u32)>);

impl SortedQueue for LinearList {
    fn insert(&mut self, number: u64, value: u32) {
        let above = self.0.iter().position(|&(other, _)| other > number);
        self.0.insert(above.unwrap_or(self.0.len()), (number, value));
    }

    fn first(&mut self) -> Option<u64> {
        self.0.front().map(|&(number, _)| number)
    }

    fn pop(&mut self) -> Option<u32> {
        self.0.pop_front().map(|(_, value)| value)
    }
}

impl SortedQueue for BinaryHeap<Reverse<(u64, u32)>> {
    fn insert(&mut self, number: u64, value: u32) {
        self.push(Reverse((number, value)));
    }

    fn first(&mut self) -> Option<u64> {
        self.peek().map(|Reverse((number, _))| *number)
    }

    fn pop(&mut self) -> Option<u32> {
        Self::pop(self).map(|Reverse((_, value))| value)
    }
}

/// Returns packet numbers in order of arrival.
fn arrivals(packets: u64, size: u16, fault: ReorderFault, percent: u32) -> Vec<u64> {
    let mut prng = Prng::new(7);
    let p = f64::from(percent) / 100.0;
    let mut all = Vec::new();
    for number in 0..packets {
        let hit = prng.chance(p);
        let by = prng.range(1, u64::from(size) - 1);
        match fault {
            ReorderFault::Lost if hit => {}
            // Just after the packets that have overtaken it.
            ReorderFault::Late if hit => all.push((2 * (number + by) + 1, number)),
            _ => all.push((2 * number, number)),
        }
    }
    all.sort_unstable();
    all.into_iter().map(|(_, number)| number).collect()
}

/// Returns cycles per packet, and bytes of memory of a full window.
fn measure<O: ReorderBuffer>(
    size: u16,
    arrivals: &[u64],
    rounds: usize,
) -> Result<(f64, usize), Failure> {
    let mut all = Vec::new();
    for _ in 0..rounds {
        let mut order = O::new(size);
        let (mut delivered, mut last, mut ascending) = (0_usize, None, true);
        let from = cycles();
        for &number in arrivals {
            order.take(number, u32::try_from(number).unwrap_or(0), &mut |value| {
                ascending &= last < Some(value);
                last = Some(value);
                delivered += 1;
            });
        }
        all.push(cycles() - from);
        // The last packets may wait for one that was lost.
        if !ascending || delivered + usize::from(size) <= arrivals.len() {
            return Err(Failure::System(format!(
                "{delivered} packets delivered, in order: {ascending}"
            )));
        }
    }
    all.sort_unstable();
    let median = all.get(all.len() / 2).copied().unwrap_or_default();
    Ok((median as f64 / arrivals.len() as f64, full_bytes::<O>(size)))
}

/// Returns the bytes of a window in which all packets wait for the first, heap included.
fn full_bytes<O: ReorderBuffer>(size: u16) -> usize {
    let before = allocated_bytes();
    let full = || {
        let mut order = O::new(size);
        (1..size).for_each(|at| order.take(at.into(), at.into(), &mut |_| {}));
        order
    };
    let mut all: Vec<O> = Vec::with_capacity(FULL_WINDOWS);
    let room = allocated_bytes() - before;
    all.extend((0..FULL_WINDOWS).map(|_| full()));
    let bytes = allocated_bytes().saturating_sub(before + room) / FULL_WINDOWS;
    black_box(&all);
    bytes + size_of::<O>()
}

type Measure = fn(u16, &[u64], usize) -> Result<(f64, usize), Failure>;

const STRUCTURES: [(&str, Measure); 4] = [
    ("window", measure::<ReorderWindow>),
    ("splay tree", measure::<SortedReorderBuffer<SplayMap<u64, u32>>>),
    ("linear list", measure::<SortedReorderBuffer<LinearList>>),
    ("binary heap", measure::<SortedReorderBuffer<BinaryHeap<Reverse<(u64, u32)>>>>),
];

#[derive(Clone, Copy, Debug)]
struct ReorderBufferSetting {
    size: u16,
    fault: ReorderFault,
    percent: u32,
}

/// Measures all structures with the same arrivals.
///
/// # Errors
/// Reports a structure that did not deliver packets in order.
pub(super) fn run(report: &mut BenchReport, quick: bool) -> Result<(), Failure> {
    let (packets, rounds) = if quick { (QUICK_PACKETS, 3) } else { (PACKETS, ROUNDS) };
    let experiment = Experiment {
        groups: groups(if quick { &SIZES[1..3] } else { &SIZES }),
        repeats: 1,
        measure: &mut |ReorderBufferSetting { size, fault, percent }| {
            let arrivals = arrivals(packets, size, fault, percent);
            let figures = STRUCTURES.iter().map(|(_, measure)| measure(size, &arrivals, rounds));
            figures.collect::<Result<Vec<_>, _>>()
        },
        // The order is checked during the measurement.
        took_path: &|_, _| true,
        combine: &single_run,
        fields: &|row, _| {
            let ReorderBufferSetting { size, fault, percent } = row.setting;
            let start = Fields::new()
                .show("size", "size", size)
                .show("fault", "fault", format!("{fault:?}"))
                .show("%", "percent", percent);
            STRUCTURES.iter().zip(&row.figures).fold(
                start,
                |fields, ((name, _), &(cycles, bytes))| {
                    fields
                        .column(name, cycles)
                        .column("bytes", bytes)
                        .field(name, json!({ "cycles_per_packet": cycles, "bytes": bytes }))
                },
            )
        },
    };
    report.measure("orders", experiment).map(drop)
}

fn groups(sizes: &[u16]) -> Vec<Vec<ReorderBufferSetting>> {
    let mut groups = Vec::new();
    for &size in sizes {
        for fault in [ReorderFault::Late, ReorderFault::Lost] {
            let percents = RATES.into_iter().filter(|&p| p > 0 || fault == ReorderFault::Late);
            groups.extend(
                percents.map(|percent| vec![ReorderBufferSetting { size, fault, percent }]),
            );
        }
    }
    groups
}

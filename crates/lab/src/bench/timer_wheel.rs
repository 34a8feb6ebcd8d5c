//! `outboard-lab bench timer-wheel`: the timer bitmap wheel (AccelTCP section 4.2, figure 6)
//! against the device's timing wheel of lists and a hashed timing wheel, in the same run.
//!
//! Each of 64 K or 256 K flows sets a timer, cancels it, sets it again and lets it expire, in an
//! order that is unrelated to flow numbers. Two threads share the flows like those of a NIC without
//! affinity: any thread may handle any flow, so both modify the same words of the bitmaps.
//!
//! The wheel of lists belongs to one thread, too, with timers for all flows in each thread.
//!
//! The hashed wheel is the one of `hierarchical_hash_wheel_timer`. Its cancellable wheel is built
//! of `Rc`s and cannot be shared, so with two threads each has its own, which requires the affinity
//! that the bitmaps do without: its best case. For sharing between threads there is the crate's
//! simpler wheel behind a mutex; canceling increments the flow's generation, and a timer of an
//! older generation is ignored when it expires.

use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Duration as StdDuration;

use base::{Duration, Prng};
use clap::Args;
use hierarchical_hash_wheel_timer::wheels::cancellable::{
    CancellableTimerEntry, QuadWheelWithOverflow as OwnWheel,
};
use hierarchical_hash_wheel_timer::wheels::quad_wheel::{
    QuadWheelWithOverflow as PlainWheel, no_prune,
};
use io::clock::{MonotonicClock, cycles};
use io::heap::allocated_bytes;
use serde_json::{Value, json};
use structures::{TimerBitmapWheel, TimerListWheel};

use super::experiment::{BenchReport, Benchmark, Experiment, Fields, ResultRow, median_by};
use cli::Failure;

/// Slots of the bitmap wheel, with a bitmap each.
const SLOTS: u16 = 256;
/// Timeouts in ticks: 200 ms to 4 s at 16 ms per tick.
const TICKS: (u64, u64) = (13, 250);
/// Concurrent timers.
const FLOWS: [u32; 2] = [64 << 10, 256 << 10];
/// Runs. The median counts for each operation: in the fastest run with two threads, the machine may
/// have run them one after the other.
const ROUNDS: usize = 7;
/// Measured operations, in nanoseconds and in cycles.
const WHEEL_OPERATIONS: [&str; 3] = ["insert", "cancel", "expire"];

/// Arguments of `outboard-lab bench timer-wheel`.
#[derive(Debug, Args)]
pub(crate) struct TimerWheelArgs {
    /// Run one round with 64 K flows only
    #[arg(long)]
    quick: bool,
}

impl Benchmark for TimerWheelArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let experiment = Experiment {
            groups: groups(if self.quick { &FLOWS[..1] } else { &FLOWS }),
            repeats: if self.quick { 1 } else { ROUNDS },
            measure: &mut measure,
            // The measurement checks that every timer expires once.
            took_path: &|_, _| true,
            combine: &|runs: Vec<TimerWheelFigures>| {
                // The median of each operation by itself.
                let step = |nth: usize| {
                    let of = runs.iter().map(|run| run.steps[nth]).collect();
                    median_by(of, |&(ns, _): &(f64, f64)| ns)
                };
                TimerWheelFigures { steps: [step(0), step(1), step(2)], ..runs[0] }
            },
            fields: &|row, _| fields(row),
        };
        let rows = report.measure("rows", experiment)?;
        report.set("headline", headline(&rows));
        Ok(())
    }
}

/// Returns the time of each operation of the device's lists, relative to the paper's bitmaps, for
/// the least number of flows on one thread.
fn headline(rows: &[ResultRow<TimerWheelSetting, TimerWheelFigures>]) -> Value {
    let times = |kind: WheelKind| {
        let row = rows.iter().find(|row| row.setting.kind == kind)?;
        Some(row.figures.steps.map(|(ns, _)| ns))
    };
    let Some((lists, bitmaps)) = times(WheelKind::Lists).zip(times(WheelKind::Bitmaps)) else {
        return Value::Null;
    };
    let ratios = WHEEL_OPERATIONS.iter().zip(lists).zip(bitmaps);
    let named = |((name, list), bitmap): ((&&str, f64), f64)| {
        (format!("{name}_lists_to_bitmaps"), Value::from(list / bitmap))
    };
    Value::Object(ratios.map(named).collect())
}

fn groups(counts: &[u32]) -> Vec<Vec<TimerWheelSetting>> {
    let both = counts.iter().flat_map(|&flows| [1, 2].map(|threads| (flows, threads)));
    let group = |(flows, threads)| {
        let setting = |kind| TimerWheelSetting { kind, flows, threads };
        [WheelKind::Bitmaps, WheelKind::Lists, WheelKind::Own, WheelKind::Locked]
            .map(setting)
            .into()
    };
    both.map(group).collect()
}

fn fields(row: &ResultRow<TimerWheelSetting, TimerWheelFigures>) -> Fields {
    let TimerWheelSetting { kind, flows, threads } = row.setting;
    // With several threads, only the heap of one is known.
    let per_flow = (threads == 1).then(|| row.figures.memory as f64 / f64::from(flows));
    let start = Fields::new()
        .show("wheel", "wheel", kind.name())
        .show("flows", "flows", flows)
        .show("threads", "threads", threads)
        .show("bytes/flow", "bytes_per_flow", per_flow);
    WHEEL_OPERATIONS.iter().zip(row.figures.steps).fold(start, |fields, (step, (ns, cycles))| {
        let figures = json!({ "ns": ns, "cycles": cycles });
        fields.column(step, ns).column("cycles", cycles).field(step, figures)
    })
}

/// Timer wheels under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WheelKind {
    Bitmaps,
    Lists,
    Own,
    Locked,
}

impl WheelKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Bitmaps => "bitmap wheel, shared",
            Self::Lists => "list wheel, one per thread",
            Self::Own => "hash wheel, one per thread",
            Self::Locked => "hash wheel, behind a mutex",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct TimerWheelSetting {
    kind: WheelKind,
    flows: u32,
    threads: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct TimerWheelFigures {
    /// Nanoseconds and cycles per operation.
    steps: [(f64, f64); 3],
    /// Bytes of heap with all timers set.
    memory: usize,
}

/// A thread's access to a wheel.
trait WheelWorker {
    fn insert(&mut self, flow: u32, ticks: u32);
    fn cancel(&mut self, flow: u32);
    /// Lets all timeouts pass; returns the number of timers that expired.
    fn expire(&mut self) -> usize;
}

fn measure(setting: TimerWheelSetting) -> Result<TimerWheelFigures, Failure> {
    let TimerWheelSetting { kind, flows, threads } = setting;
    let order = shuffled(flows);
    let before = allocated_bytes();
    match kind {
        WheelKind::Bitmaps => {
            let wheel = TimerBitmapWheel::new(flows, SLOTS);
            let share = flows / u32::try_from(threads).unwrap_or(1);
            let worker = |nth: u32| BitmapWheelWorker {
                wheel: &wheel,
                slots: vec![0; flows as usize],
                region: nth * share..(nth + 1) * share,
            };
            let memory = wheel.memory_bytes();
            run_workers(&order, threads, worker)
                .map(|f| TimerWheelFigures { memory: before + memory, ..f })
        }
        WheelKind::Lists => run_workers(&order, threads, |_| ListWheelWorker::default()),
        WheelKind::Own => run_workers(&order, threads, |_| PrivateHashWheel(OwnWheel::new())),
        WheelKind::Locked => {
            let shared = MutexHashWheel {
                wheel: Mutex::new(PlainWheel::new(no_prune)),
                generations: (0..flows).map(|_| AtomicU32::new(0)).collect(),
            };
            run_workers(&order, threads, |_| &shared)
        }
    }
    .map(|figures| TimerWheelFigures { memory: figures.memory.saturating_sub(before), ..figures })
}

/// Returns flows with their timeouts, in random order.
fn shuffled(flows: u32) -> Vec<(u32, u32)> {
    let mut prng = Prng::new(5);
    let mut ticks = || u32::try_from(prng.range(TICKS.0, TICKS.1)).unwrap_or(1);
    let mut all: Vec<(u32, u32)> = (0..flows).map(|flow| (flow, ticks())).collect();
    for at in (1..all.len()).rev() {
        let other = usize::try_from(prng.below(at as u64 + 1)).unwrap_or(0);
        all.swap(at, other);
    }
    all
}

/// Makes `threads` workers do each operation on their shares of the flows, all at the same time.
fn run_workers<W: WheelWorker>(
    order: &[(u32, u32)],
    threads: usize,
    make: impl Fn(u32) -> W + Sync,
) -> Result<TimerWheelFigures, Failure> {
    let (clock, barrier, make) = (MonotonicClock::new(), Barrier::new(threads), &make);
    let barrier = &barrier;
    let run = |nth: u32, share: &[(u32, u32)]| {
        let mut worker = make(nth);
        let mut took = [(Duration::ZERO, 0_u64); 3];
        let mut timed = |step: usize, work: &mut dyn FnMut()| {
            barrier.wait();
            let (from, begun) = (clock.now(), cycles());
            work();
            took[step] = (clock.now().since(from), cycles() - begun);
            barrier.wait();
        };
        timed(0, &mut || share.iter().for_each(|&(flow, ticks)| worker.insert(flow, ticks)));
        timed(1, &mut || share.iter().rev().for_each(|&(flow, _)| worker.cancel(flow)));
        share.iter().for_each(|&(flow, ticks)| worker.insert(flow, ticks));
        barrier.wait();
        let memory = allocated_bytes();
        let mut expired = 0;
        timed(2, &mut || expired = black_box(worker.expire()));
        (took, expired, memory)
    };
    let shares = order.chunks(order.len().div_ceil(threads));
    let all: Vec<_> = std::thread::scope(|scope| {
        // The first share runs on this thread, because the allocator reports only this thread's
        // heap.
        let mut shares = (0..).zip(shares);
        let first = shares.next();
        let others: Vec<_> =
            shares.map(|(nth, share)| scope.spawn(move || run(nth, share))).collect();
        let first = first.map(|(nth, share)| run(nth, share));
        let others = others.into_iter().filter_map(|worker| worker.join().ok());
        first.into_iter().chain(others).collect()
    });
    let expired: usize = all.iter().map(|(_, expired, _)| expired).sum();
    if expired != order.len() {
        return Err(Failure::System(format!("{expired} of {} timers expired", order.len())));
    }
    let mut figures =
        TimerWheelFigures { memory: all.first().map_or(0, |first| first.2), ..<_>::default() };
    for (step, figure) in figures.steps.iter_mut().enumerate() {
        let nanos: u64 = all.iter().map(|(took, ..)| took[step].0.as_nanos()).sum();
        let cycles: u64 = all.iter().map(|(took, ..)| took[step].1).sum();
        *figure = (nanos as f64 / order.len() as f64, cycles as f64 / order.len() as f64);
    }
    Ok(figures)
}

struct BitmapWheelWorker<'a> {
    wheel: &'a TimerBitmapWheel,
    /// State of the flows: the slots of their timers.
    slots: Vec<u32>,
    region: Range<u32>,
}

impl WheelWorker for BitmapWheelWorker<'_> {
    fn insert(&mut self, flow: u32, ticks: u32) {
        self.slots[flow as usize] = self.wheel.insert(flow, ticks);
    }

    fn cancel(&mut self, flow: u32) {
        black_box(self.wheel.cancel(flow, self.slots[flow as usize]));
    }

    /// Scans this worker's region of each bitmap. Rotating the wheel would add one atomic increment
    /// per tick.
    fn expire(&mut self) -> usize {
        let mut expired = 0;
        for slot in 0..u32::from(SLOTS) {
            self.wheel.expire(slot, self.region.clone(), |flow| {
                black_box(flow);
                expired += 1;
            });
        }
        expired
    }
}

#[derive(Default)]
struct ListWheelWorker {
    wheel: TimerListWheel,
    expired: Vec<u32>,
}

impl WheelWorker for ListWheelWorker {
    fn insert(&mut self, flow: u32, ticks: u32) {
        self.wheel.set(flow, 0, ticks.into());
    }

    fn cancel(&mut self, flow: u32) {
        self.wheel.cancel(flow);
    }

    fn expire(&mut self) -> usize {
        (0..u64::from(SLOTS))
            .map(|tick| {
                self.wheel.advance(tick, &mut self.expired);
                self.expired.drain(..).map(black_box).count()
            })
            .sum()
    }
}

#[derive(Debug)]
struct WheelTimer(u32);

impl CancellableTimerEntry for WheelTimer {
    type Id = u32;

    fn id(&self) -> &u32 {
        &self.0
    }
}

struct PrivateHashWheel(OwnWheel<WheelTimer>);

/// Converts ticks to the crate's milliseconds.
fn delay(ticks: u32) -> StdDuration {
    StdDuration::from_millis(ticks.into())
}

impl WheelWorker for PrivateHashWheel {
    fn insert(&mut self, flow: u32, ticks: u32) {
        let _refused = self.0.insert_ref_with_delay(WheelTimer(flow).into(), delay(ticks));
    }

    fn cancel(&mut self, flow: u32) {
        let _unknown = self.0.cancel(&flow);
    }

    fn expire(&mut self) -> usize {
        (0..SLOTS).map(|_| self.0.tick().len()).sum()
    }
}

struct MutexHashWheel {
    wheel: Mutex<PlainWheel<(u32, u32)>>,
    generations: Vec<AtomicU32>,
}

impl WheelWorker for &MutexHashWheel {
    fn insert(&mut self, flow: u32, ticks: u32) {
        let generation = self.generations[flow as usize].load(Ordering::Acquire);
        let mut wheel = self.wheel.lock().unwrap_or_else(PoisonError::into_inner);
        let _refused = wheel.insert_with_delay((flow, generation), delay(ticks));
    }

    fn cancel(&mut self, flow: u32) {
        self.generations[flow as usize].fetch_add(1, Ordering::AcqRel);
    }

    /// Counts the timers that expire in the ticks which this worker takes.
    fn expire(&mut self) -> usize {
        let live = |&(flow, generation): &(u32, u32)| {
            self.generations[flow as usize].load(Ordering::Acquire) == generation
        };
        let mut expired = 0;
        for _ in 0..SLOTS {
            let up = self.wheel.lock().unwrap_or_else(PoisonError::into_inner).tick();
            expired += up.iter().filter(|entry| live(entry)).count();
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn turn(wheel: &TimerBitmapWheel) -> usize {
        let (slot, mut expired) = (wheel.rotate(), 0);
        wheel.expire(slot, 0..64, |_| expired += 1);
        expired
    }

    /// Two workers set and cancel timers of neighboring flows while a third thread rotates the
    /// wheel: every timer that was set is either canceled or expires, once, and never a revolution
    /// late.
    #[test]
    fn workers_share_words() {
        const ROUNDS: usize = 20_000;
        let wheel = TimerBitmapWheel::new(64, 1 << 15);
        let (fired, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let stopped: usize = std::thread::scope(|scope| {
            let worker = |parity: u32| {
                let (wheel, done) = (&wheel, &done);
                move || {
                    let mut stopped = 0;
                    for round in 0..ROUNDS {
                        let flow = u32::try_from(round).unwrap() % 32 * 2 + parity;
                        // Each timer in a slot of its own: setting a bit twice makes one timer.
                        let slot = wheel.insert(flow, 1 + u32::try_from(round).unwrap() / 32 % 8);
                        stopped += usize::from(wheel.cancel(flow, slot));
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                    stopped
                }
            };
            let workers = [scope.spawn(worker(0)), scope.spawn(worker(1))];
            while done.load(Ordering::SeqCst) < 2 {
                fired.fetch_add(turn(&wheel), Ordering::SeqCst);
            }
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        for _ in 0..16 {
            fired.fetch_add(turn(&wheel), Ordering::SeqCst);
        }
        assert_eq!(stopped + fired.load(Ordering::SeqCst), 2 * ROUNDS);
        for slot in 0..1 << 15 {
            wheel.expire(slot, 0..64, |flow| panic!("{flow} never came up"));
        }
    }
}

//! Balance between queues: moves entries of the flow steering from a queue whose threads are busy
//! to the one with the most idle time, so that new connections go there, and open ones follow if
//! they can ([`host::Application::give_up`]).
//!
//! A thread of its own, started by [`crate::Builder`] if there are several queues. The load of a
//! queue is the CPU time of its busiest thread, as the kernel counts it, so no other thread does
//! anything for it. A queue gives up the share of its entries that would make both loads equal if
//! every entry had the same load ([`abi::steering`]). UDP is not balanced.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use abi::steering::FlowSteering;
use cli::Failure;
use io::thread_stat::thread_cpu_times;

use crate::options::QueueBalance;
use crate::threads::{MessageSender, QUEUE_THREADS};

/// Interval in which hosts look for entries to release.
const TICK: Duration = Duration::from_millis(100);
/// Ticks of a measurement of the load.
const TICKS_PER_MEASUREMENT: u32 = 10;
/// Measurements that must agree before entries are moved, so that no single burst moves any.
const AGREEING: u32 = 3;
/// Measurements after a move before the next one: time for connections to end and new ones to come.
const SETTLING: u32 = 5;
/// Ends the thread when it is dropped.
pub(crate) struct BalanceThread {
    _end: Sender<()>,
}

/// Starts the thread, if there are several queues. `hosts` have one sender for each queue.
///
/// # Errors
/// Fails if no thread can be started.
pub(crate) fn start<M: Send + 'static>(
    balance: QueueBalance,
    steering: Arc<FlowSteering>,
    hosts: Vec<MessageSender<M>>,
) -> Result<Option<BalanceThread>, Failure> {
    let queues = steering.queues();
    let (QueueBalance::Above(percent), 2..) = (balance, queues) else { return Ok(None) };
    let (end, ended) = channel();
    let run = move || {
        let mut balancer = Balancer::new(f64::from(percent) / 100.0, queues);
        let mut times = QueueTimes::default();
        for tick in 1_u32.. {
            if ended.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            if has_moved_entries(&steering) {
                hosts.iter().for_each(MessageSender::release_moved_entries);
            }
            if tick % TICKS_PER_MEASUREMENT == 0 {
                let loads = times.loads(queues, TICK * TICKS_PER_MEASUREMENT);
                if let Some(entries_move) = balancer.measure(&loads, &steering) {
                    eprintln!("outboard: {entries_move}");
                }
            }
        }
    };
    crate::spawn("balance".to_owned(), run)?;
    Ok(Some(BalanceThread { _end: end }))
}

fn has_moved_entries(steering: &FlowSteering) -> bool {
    (0..steering.entries()).any(|entry| steering.owners_of_entry(entry).former.is_some())
}

/// CPU times of the queues' threads at the last measurement.
#[derive(Default)]
struct QueueTimes(BTreeMap<String, f64>);

impl QueueTimes {
    /// Returns the load of each queue since the last call: the busy share of its busiest thread.
    fn loads(&mut self, queues: usize, interval: Duration) -> Vec<f64> {
        let now: BTreeMap<String, f64> = thread_cpu_times().into_iter().collect();
        let busy = |name: String| {
            let spent = now.get(&name)? - self.0.get(&name)?;
            Some(spent / interval.as_secs_f64())
        };
        let load = |queue| {
            let threads = QUEUE_THREADS.iter().filter_map(|name| busy(format!("{name}{queue}")));
            threads.fold(0.0, f64::max)
        };
        let loads = (0..queues).map(load).collect();
        self.0 = now;
        loads
    }
}

/// Decides which entries to move.
struct Balancer {
    /// Load above which a queue gives up entries.
    full: f64,
    /// The full queue of the last measurements, and how many of them agree.
    seen: (usize, u32),
    /// Measurements to wait for.
    wait: u32,
}

/// Entries that were moved.
#[derive(Debug, PartialEq)]
struct EntriesMove {
    from: (usize, f64),
    to: (usize, f64),
    moved: usize,
}

impl fmt::Display for EntriesMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from: (from, full), to: (to, idle), moved } = self;
        let (full, idle) = (full * 100.0, idle * 100.0);
        write!(
            f,
            "moved {moved} steering entries from queue {from} ({full:.0} % busy) to queue {to} \
             ({idle:.0} % busy)"
        )
    }
}

impl Balancer {
    fn new(full: f64, queues: usize) -> Self {
        Self { full, seen: (queues, 0), wait: 0 }
    }

    /// Handles a measurement; moves entries if it is one of several that agree.
    fn measure(&mut self, loads: &[f64], steering: &FlowSteering) -> Option<EntriesMove> {
        self.wait = self.wait.saturating_sub(1);
        let by_load = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
        let numbered = || loads.iter().copied().enumerate();
        let (from, to) = (numbered().max_by(by_load)?, numbered().min_by(by_load)?);
        if from.1 < self.full || to.1 > from.1 * 0.75 {
            self.seen = (loads.len(), 0);
            return None;
        }
        let agreeing = if self.seen.0 == from.0 { self.seen.1 + 1 } else { 1 };
        self.seen = (from.0, agreeing);
        if agreeing < AGREEING || self.wait > 0 {
            return None;
        }
        (self.seen, self.wait) = ((loads.len(), 0), SETTLING);
        let moved = move_share((from.1 - to.1) / 2.0 / from.1, (from.0, to.0), steering);
        (moved > 0).then_some(EntriesMove { from, to, moved })
    }
}

/// Moves a share of a queue's entries, evenly chosen, but not its last one. Returns their number.
fn move_share(share: f64, (from, to): (usize, usize), steering: &FlowSteering) -> usize {
    let owned =
        (0..steering.entries()).filter(|&entry| steering.owners_of_entry(entry).current == from);
    let mut owed = 0.0;
    let (mut moved, mut kept) = (0, 0);
    for entry in owned {
        owed += share;
        if owed >= 1.0 && kept > 0 && steering.move_entry(entry, to) {
            (owed, moved) = (owed - 1.0, moved + 1);
        } else {
            kept += 1;
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries_of(steering: &FlowSteering, queue: usize) -> usize {
        let owners = |&entry: &usize| steering.owners_of_entry(entry).current == queue;
        (0..steering.entries()).filter(owners).count()
    }

    #[test]
    fn a_queue_that_stays_full_gives_up_the_surplus() {
        let steering = FlowSteering::new(1, 4);
        let mut balancer = Balancer::new(0.9, 4);
        let loads = [0.5, 1.0, 0.2, 0.6];
        assert!((1..AGREEING).all(|_| balancer.measure(&loads, &steering).is_none()));
        let moved = balancer.measure(&loads, &steering).expect("the third measurement");
        // (1.0 - 0.2) / 2 of 1.0, of 128 entries.
        assert_eq!(moved, EntriesMove { from: (1, 1.0), to: (2, 0.2), moved: 51 });
        assert_eq!([1, 2].map(|queue| entries_of(&steering, queue)), [77, 179]);
        let text = "moved 51 steering entries from queue 1 (100 % busy) to queue 2 (20 % busy)";
        assert_eq!(moved.to_string(), text);
        // The entries that queue 2 was given do not move on before they are released.
        assert!((0..SETTLING - 1).all(|_| balancer.measure(&loads, &steering).is_none()));
        let again = balancer.measure(&[0.1, 0.2, 1.0, 0.1], &steering);
        assert!(again.is_none(), "another queue: count anew");
        balancer.measure(&[0.1, 0.2, 1.0, 0.1], &steering);
        let again = balancer.measure(&[0.1, 0.2, 1.0, 0.1], &steering).expect("enough of them");
        assert_eq!((again.from.0, again.to.0), (2, 0));
        assert!(again.moved <= 128);
    }

    #[test]
    fn nothing_moves_without_reason() {
        let steering = FlowSteering::new(1, 2);
        let mut balancer = Balancer::new(0.9, 2);
        for loads in [[0.89, 0.0], [1.0, 0.8], [1.0, 1.0], [0.0, 0.0]] {
            assert!((0..10).all(|_| balancer.measure(&loads, &steering).is_none()), "{loads:?}");
        }
        // A burst.
        for loads in [[1.0, 0.0], [1.0, 0.0], [0.5, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]] {
            assert!(balancer.measure(&loads, &steering).is_none());
        }
        assert_eq!(entries_of(&steering, 0), 256);
    }

    #[test]
    fn a_queue_keeps_an_entry() {
        let steering = FlowSteering::new(1, 2);
        assert_eq!(move_share(0.5, (0, 1), &steering), 128);
        assert_eq!(move_share(1.0, (0, 1), &steering), 127);
        assert_eq!(move_share(1.0, (0, 1), &steering), 0);
    }
}

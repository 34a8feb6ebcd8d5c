//! Transitions of BBR's states, tested without packets: a sender on a simulated bottleneck.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::*;

/// Step of the time. A transmit may be late by as much, which does not make the next one later.
const TICK: Duration = Duration::from_micros(100);
const MSS: u64 = 1000;
/// 10 Mbit/s; with the round trip below, 50 packets are the bandwidth-delay product.
const RATE: u64 = 1_250_000;
const RTT: Duration = Duration::from_millis(40);
const BDP: u64 = 50 * MSS;
const MS: Duration = Duration::from_millis(1);

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
struct TestPacket {
    tag: u32,
    /// Arrival of its acknowledgment; or, for a lost packet, of the one that shows the loss.
    due: Instant,
    sent_at: Instant,
    lost: bool,
}

/// A BBR sender with unlimited data on a bottleneck.
struct TestSender {
    bbr: Bbr,
    now: Instant,
    cwnd: u64,
    next_tag: u32,
    flight: VecDeque<TestPacket>,
    /// Time until which the bottleneck is busy, and the packets that its queue holds.
    busy_until: Instant,
    queue_max: u64,
    rate: u64,
    /// Every n-th packet is lost.
    lose_every: Option<u32>,
    pace_at: Instant,
    /// The application has nothing to send.
    idle: bool,
    /// The window ended the last run.
    cwnd_limited: bool,
    recovery_end: Option<u32>,
    /// States in the order in which they were entered, with the time.
    states: Vec<(u64, BbrState)>,
    delivered: u64,
}

impl TestSender {
    fn new(queue_max: u64) -> Self {
        let now = Instant::from_millis(1000);
        let mut sender = Self {
            bbr: Bbr::new(7, 10 * MSS, now),
            now,
            cwnd: 10 * MSS,
            next_tag: 0,
            flight: VecDeque::new(),
            busy_until: now,
            queue_max,
            rate: RATE,
            lose_every: None,
            pace_at: now,
            idle: false,
            cwnd_limited: false,
            recovery_end: None,
            states: Vec::new(),
            delivered: 0,
        };
        sender.note_state();
        sender
    }

    fn inputs(&self) -> BbrInputs {
        let inflight = self.flight.len() as u64 * MSS;
        BbrInputs {
            now: self.now,
            mss: MSS,
            cwnd: self.cwnd,
            inflight,
            cwnd_limited: self.cwnd_limited,
            recovering: self.recovery_end.is_some(),
            sack: true,
            srtt: if self.delivered > 0 { RTT } else { Duration::ZERO },
        }
    }

    fn note_state(&mut self) {
        let state = self.bbr.state();
        if self.states.last().is_none_or(|(_, last)| *last != state) {
            self.states.push((self.now.as_millis() - 1000, state));
        }
    }

    fn send(&mut self) {
        while self.flight.len() as u64 * MSS + MSS <= self.cwnd && self.pace_at <= self.now {
            let tag = self.next_tag;
            self.next_tag += 1;
            let time = Duration::from_nanos(MSS * 1_000_000_000 / self.rate);
            let queued = self.busy_until.since(self.now).as_nanos() / time.as_nanos();
            let random = self.lose_every.is_some_and(|n| tag % n == n - 1);
            let lost = queued >= self.queue_max || random;
            if queued < self.queue_max {
                self.busy_until = self.busy_until.max(self.now) + time;
            }
            let due = self.busy_until.max(self.now) + RTT;
            let alone = self.flight.is_empty();
            self.flight.push_back(TestPacket { tag, due, sent_at: self.now, lost });
            let in_network = self.flight.len() as u64 * MSS;
            self.bbr.on_handed_over(tag);
            self.bbr.on_departed(DepartingTransmit { tag, at: self.now, in_network, alone });
            let gap = MSS * 1_000_000_000 / self.bbr.pacing_rate();
            self.pace_at = self.pace_at.max(self.now - TICK) + Duration::from_nanos(gap);
        }
        self.cwnd_limited = self.flight.len() as u64 * MSS + MSS > self.cwnd;
    }

    fn acknowledge(&mut self) {
        while let Some(packet) = self.flight.front().copied().filter(|p| p.due <= self.now) {
            self.flight.pop_front();
            if self.recovery_end.is_some_and(|end| packet.tag >= end) {
                self.recovery_end = None;
                self.cwnd = self.bbr.on_recovery_end(self.inputs());
            }
            if packet.lost {
                let start = u64::from(packet.tag) * MSS;
                let range = LostRange { tag: packet.tag, start, end: start + MSS };
                self.bbr.on_lost(self.inputs(), range);
                if self.recovery_end.is_none() {
                    self.bbr.on_recovery_start(self.inputs());
                    self.recovery_end = Some(self.next_tag);
                }
                continue;
            }
            self.delivered += MSS;
            self.bbr.note_delivered(packet.tag);
            let rtt = Some(self.now.since(packet.sent_at));
            let acked = AckedBytes { bytes: MSS, rtt, min_rtt: RTT };
            self.bbr.begin_ack(self.inputs(), acked);
            self.cwnd = self.bbr.finish_ack(self.inputs());
            self.bbr.drop_old(self.flight.len(), self.flight.iter().map(|p| p.tag));
            self.note_state();
        }
    }

    /// Runs for a time, in steps of a tenth of a millisecond.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            self.acknowledge();
            if !self.idle {
                self.send();
            }
        }
    }

    /// Runs until a state is entered.
    fn run_until(&mut self, state: BbrState) {
        let mut time = Duration::ZERO;
        while self.bbr.state() != state {
            self.run(Duration::from_micros(100));
            time += Duration::from_micros(100);
            assert!(time < Duration::from_secs(20), "{state:?} in {:?}", self.states);
        }
    }

    fn states(&self) -> Vec<BbrState> {
        self.states.iter().map(|(_, state)| *state).collect()
    }
}

fn bw(phase: ProbeBwPhase) -> BbrState {
    BbrState::ProbeBw(phase)
}

/// Returns a sender that has just drained the queue: the first phase of the steady state ends with
/// the acknowledgment that begins it.
fn steady(queue_max: u64) -> TestSender {
    let mut sender = TestSender::new(queue_max);
    sender.run_until(bw(Cruise));
    sender
}

/// Sections 5.3.1 to 5.3.3: a plateau ends Startup, an empty queue ends Drain, and the phases
/// follow each other.
#[test]
fn states_follow_each_other() {
    let mut sender = TestSender::new(1000);
    sender.run(Duration::from_secs(4));
    let expected =
        [BbrState::Startup, BbrState::Drain, bw(Cruise), bw(Refill), bw(Up), bw(Down), bw(Cruise)];
    assert_eq!(sender.states()[..7], expected, "{:?}", sender.states);
    let rate = sender.bbr.max_bw();
    assert!(rate.abs_diff(RATE) < RATE / 20, "{rate}");
    assert_eq!(sender.bbr.rtt.min.map(|rtt| rtt.as_millis()), Some(40));
}

/// Section 5.3.1.2: an exponential search, then three rounds without growth.
#[test]
fn startup_doubles_each_round() {
    let mut sender = TestSender::new(1000);
    sender.run_until(BbrState::Drain);
    let rounds = sender.bbr.round.count;
    assert!((4..=10).contains(&rounds), "{rounds} rounds");
    assert!(sender.bbr.full_pipe.now && sender.bbr.full_pipe.reached);
    assert_eq!(sender.bbr.long.inflight, UNBOUNDED, "nothing was lost");
}

/// Section 5.3.1.3: losses of more than 2 % and at least six ranges end Startup.
#[test]
fn startup_ends_by_losses() {
    let mut sender = TestSender::new(1000);
    sender.rate = 100 * RATE;
    sender.lose_every = Some(8);
    sender.run_until(BbrState::Drain);
    assert_eq!(sender.bbr.undo.state_for_tests(), Some(BbrState::Startup));
    assert!(sender.bbr.long.inflight < UNBOUNDED);
    assert!(!sender.bbr.full_pipe.now, "the bandwidth was still growing");
}

/// Section 5.3.1.3: fewer losses do not.
#[test]
fn startup_tolerates_few_losses() {
    let mut sender = TestSender::new(1000);
    sender.lose_every = Some(100);
    sender.run_until(BbrState::Drain);
    assert!(sender.bbr.full_pipe.now);
}

/// Section 5.3.2: Drain ends when the queue is empty.
#[test]
fn drain_empties_the_queue() {
    let mut sender = TestSender::new(1000);
    sender.run_until(BbrState::Drain);
    assert!(sender.flight.len() as u64 * MSS > BDP * 5 / 4);
    sender.run_until(bw(Cruise));
    assert!(sender.flight.len() as u64 * MSS <= BDP + 4 * MSS);
}

/// Section 5.6.1: the gains of each state.
#[test]
fn rates_follow_the_gains() {
    let mut sender = steady(1000);
    for (state, gain) in
        [(bw(Cruise), 100), (bw(Refill), 100), (bw(Up), 125), (bw(Down), 90), (bw(Cruise), 100)]
    {
        sender.run_until(state);
        let expected = sender.bbr.bw * gain * 99 / 10_000;
        assert!(sender.bbr.pacing_rate().abs_diff(expected) <= 2, "{state:?}");
    }
}

/// Section 5.3.3.8: probes are two to three seconds apart, or 63 rounds, or as many as there are
/// packets in the product of bandwidth and delay.
#[test]
fn probes_are_a_random_time_apart() {
    let mut sender = steady(1000);
    sender.run(Duration::from_secs(30));
    let ups: Vec<u64> =
        sender.states.iter().filter(|(_, state)| *state == bw(Up)).map(|(at, _)| *at).collect();
    let gaps: Vec<u64> = ups.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| (1900..4000).contains(gap)), "{gaps:?}");
    assert!(gaps.iter().any(|gap| gap.abs_diff(gaps[0]) > 20), "{gaps:?}");
}

/// Section 5.5.10.2: losses in a probe bound the volume in flight and end the probe; the next probe
/// is a precaution that ends at the bound, and the one after that follows at once.
#[test]
fn losses_in_a_probe_bound_the_volume() {
    let mut sender = steady(1000);
    sender.run_until(bw(Up));
    sender.lose_every = Some(10);
    sender.run_until(bw(Down));
    let bound = sender.bbr.long.inflight;
    assert!(sender.bbr.cycle.prev_too_high && bound < UNBOUNDED);
    assert!(bound >= BDP * 7 / 10, "{bound}");
    sender.lose_every = None;
    sender.run_until(bw(Cruise));
    // Samples of the probe that came back later without losses may have raised the bound.
    let bound = sender.bbr.long.inflight;
    let bounded = (bound - bound * 15 / 100).max(4 * MSS);
    assert!(sender.cwnd <= bounded + MSS, "{} > {bounded}, {:?}", sender.cwnd, sender.states);
    sender.run_until(bw(Up));
    sender.run_until(bw(Down));
    assert!(sender.bbr.cycle.prev_precautionary);
    let down = sender.now;
    sender.run_until(bw(Refill));
    assert!(sender.now.since(down) < MS * 300, "{:?}", sender.states);
}

/// Section 5.3.3.5: a bound that is in the way is raised faster and faster.
#[test]
fn a_bound_in_the_way_is_raised() {
    let mut sender = steady(1000);
    sender.bbr.long.inflight = BDP;
    sender.run_until(bw(Up));
    sender.rate = 4 * RATE;
    let before = sender.bbr.long.inflight;
    sender.run(MS * 400);
    let after = sender.bbr.long.inflight;
    assert!(after > before + 20 * MSS, "{after}, window {}, {:?}", sender.cwnd, sender.states);
}

/// Section 5.5.10.3: losses in cruise reduce the short-term model, by at most 30 % per round, and
/// the next refill forgets it.
#[test]
fn losses_in_cruise_count_until_the_next_probe() {
    let mut sender = steady(1000);
    sender.run_until(bw(Cruise));
    assert_eq!(sender.bbr.short.bw, UNBOUNDED);
    sender.lose_every = Some(20);
    sender.run(MS * 200);
    let short = sender.bbr.short;
    assert!(short.bw < RATE && short.bw > RATE * 7 / 10, "{short:?}");
    assert!(short.inflight < UNBOUNDED);
    assert_eq!(sender.bbr.bw, short.bw.min(sender.bbr.max_bw()));
    sender.run_until(bw(Refill));
    assert_eq!((sender.bbr.short.bw, sender.bbr.short.inflight), (UNBOUNDED, UNBOUNDED));
}

/// Section 5.3.4: after five seconds without a lower round-trip time, half of the
/// bandwidth-delay product is in flight for 200 ms.
#[test]
fn the_round_trip_is_probed() {
    let mut sender = steady(1000);
    // A standing queue of another connection.
    sender.bbr.rtt.min = Some(MS * 39);
    sender.bbr.rtt.schedule_probe(sender.now);
    let before = sender.cwnd;
    sender.run_until(BbrState::ProbeRtt);
    let entered = sender.now;
    sender.run(MS * 100);
    assert!(sender.cwnd <= BDP / 2 + 4 * MSS, "{}", sender.cwnd);
    sender.run_until(bw(Cruise));
    let stay = sender.now.since(entered).as_millis();
    assert!((200..320).contains(&stay), "{stay} ms");
    assert!(sender.cwnd > BDP && before > BDP, "the window is restored");
    assert_eq!(sender.bbr.short.bw, UNBOUNDED);
}

/// Section 5.4.1: after an idle time the window stays, the rate is that of the path, and there is
/// no ProbeRTT.
#[test]
fn an_idle_connection_paces_at_the_bandwidth() {
    let mut sender = steady(1000);
    sender.run_until(bw(Cruise));
    sender.bbr.mark_app_limited(sender.flight.len() as u64 * MSS);
    sender.idle = true;
    sender.run(MS * 500);
    let window = sender.cwnd;
    assert!(sender.flight.is_empty());
    sender.bbr.mark_app_limited(0);
    sender.now += Duration::from_secs(6);
    sender.idle = false;
    assert_eq!(sender.bbr.before_transmit(sender.inputs()), window);
    assert!(sender.bbr.idle_restart);
    assert_eq!(sender.bbr.pacing_rate(), sender.bbr.bw * 99 / 100);
    sender.run(MS * 300);
    assert!(!sender.states().contains(&BbrState::ProbeRtt));
}

/// Section 5.5.11: a spurious loss recovery is undone, the state included.
#[test]
fn a_spurious_recovery_is_undone() {
    let mut sender = steady(1000);
    sender.run_until(bw(Up));
    sender.run(MS * 50);
    let window = sender.cwnd;
    sender.lose_every = Some(5);
    sender.run_until(bw(Down));
    assert!(sender.bbr.long.inflight < UNBOUNDED);
    sender.lose_every = None;
    sender.cwnd = sender.bbr.on_spurious_recovery(sender.inputs());
    assert_eq!(sender.bbr.state(), bw(Refill));
    assert_eq!(sender.bbr.long.inflight, UNBOUNDED);
    assert!(sender.cwnd >= window * 9 / 10, "{} of {window}", sender.cwnd);
}

/// Section 5.6.4.4: the window before a time-out returns when the losses are repaired.
#[test]
fn the_window_returns_after_recovery() {
    let mut sender = steady(1000);
    sender.run_until(bw(Cruise));
    sender.run(MS * 100);
    let window = sender.cwnd;
    sender.bbr.on_recovery_start(sender.inputs());
    sender.cwnd = MSS;
    sender.recovery_end = Some(sender.next_tag);
    sender.cwnd = sender.bbr.on_recovery_end(sender.inputs());
    assert_eq!(sender.cwnd, window);
}

/// Section 3.7 demands a response to ECN marks.
#[test]
fn a_mark_counts_as_too_much_in_flight() {
    let mut sender = TestSender::new(1000);
    sender.run(MS * 100);
    sender.bbr.on_ecn_mark(sender.inputs());
    sender.run_until(BbrState::Drain);
    assert!(sender.bbr.long.inflight < UNBOUNDED);
    let mut sender = steady(1000);
    sender.run_until(bw(Up));
    sender.run(MS * 60);
    assert!(sender.bbr.cycle.is_sample);
    sender.bbr.on_ecn_mark(sender.inputs());
    assert_eq!(sender.bbr.state(), bw(Down));
    assert!(sender.bbr.long.inflight < UNBOUNDED);
}

/// Section 5.6.3.
#[test]
fn runs_are_a_millisecond_long() {
    let mut bbr = Bbr::new(1, 10 * MSS, Instant::ZERO);
    for (rate, bytes) in [(100_000, 2 * MSS), (10_000_000, 10_000), (1 << 40, 65_536)] {
        bbr.pacing_rate = rate;
        assert_eq!(bbr.send_quantum(MSS), bytes);
    }
}

/// Section 5.6.2: the first round-trip time sets the pacing rate.
#[test]
fn the_first_round_trip_sets_the_rate() {
    let mut bbr = Bbr::new(1, 10 * MSS, Instant::ZERO);
    assert_eq!(bbr.pacing_rate(), 10 * MSS * 1000 * 277 / 100);
    bbr.before_transmit(BbrInputs { srtt: RTT, ..BbrInputs::default() });
    assert_eq!(bbr.pacing_rate(), 10 * MSS * 25 * 277 / 100);
}

/// Two cycles: an old maximum is forgotten at the second cycle's end.
#[test]
fn a_slower_path_is_noticed_after_two_cycles() {
    let mut sender = steady(1000);
    sender.rate = RATE / 2;
    sender.run(Duration::from_secs(12));
    let rate = sender.bbr.max_bw();
    assert!(rate < RATE * 6 / 10, "{rate}");
    sender.rate = RATE;
    sender.run(Duration::from_secs(8));
    assert!(sender.bbr.max_bw() > RATE * 9 / 10, "{}", sender.bbr.max_bw());
}

/// Where losses crossed the threshold inside a run: section 5.5.10.2.
#[test]
fn a_run_is_lost_from_the_threshold_on() {
    let mut sender = steady(1000);
    sender.bbr.cycle.is_sample = true;
    sender.bbr.state = bw(Up);
    let tag = sender.next_tag;
    sender.bbr.on_handed_over(tag);
    let at = sender.now;
    sender.bbr.on_departed(DepartingTransmit { tag, at, in_network: 100 * MSS, alone: false });
    let range = LostRange { tag, start: 0, end: 10 * MSS };
    sender.bbr.on_lost(sender.inputs(), range);
    // 90 packets before the run allow 1.8 lost ones; x / (90 + x) = 2 % at 1.84.
    assert_eq!(sender.bbr.long.inflight, 90 * MSS + 1800 * 100 / 98);
}

//! Responses of the window to losses and late packets, tested without packets.

use super::*;

const MTU: u16 = 1200;
const RTT: Duration = Duration::from_millis(10);

/// A sender whose packets are acknowledged a round trip after they were sent.
struct CongestionTestSender {
    control: PathCongestionState,
    now: Instant,
    next: u64,
    lost: u64,
}

impl CongestionTestSender {
    fn new() -> Self {
        let mut control = PathCongestionState::new(MTU);
        (control.srtt, control.min_rtt) = (RTT, RTT);
        Self { control, now: Instant::ZERO + RTT * 10, next: 0, lost: 0 }
    }

    /// Acknowledges numbers that were sent a round trip ago.
    fn acked(&mut self, numbers: Range<u64>) {
        self.acked_after(RTT, numbers);
    }

    fn acked_after(&mut self, rtt: Duration, numbers: Range<u64>) {
        let sent = Instant::from_nanos(self.now.as_nanos() - rtt.as_nanos());
        for _ in numbers.clone() {
            self.control.on_ack(self.now, sent, MTU.into(), false);
        }
        self.next = self.next.max(numbers.end);
        let mut news = PacketNumberNews { acked: vec![numbers], ..PacketNumberNews::default() };
        self.control.process(self.now, &mut news, self.lost);
    }

    /// Skips the next number, whose loss the three after it reveal, and returns it.
    fn lose(&mut self) -> u64 {
        let number = self.next;
        let sent = Instant::from_nanos(self.now.as_nanos() - RTT.as_nanos());
        self.lost += 1;
        self.control.signals.push(CongestionSignal { at: self.now, sent, what: SignalKind::Lost });
        self.acked(number + 1..number + 4);
        number
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.control.process(self.now, &mut PacketNumberNews::default(), self.lost);
    }

    fn cwnd(&self) -> u32 {
        self.control.congestion.cwnd
    }
}

#[test]
fn a_loss_reduces_the_window_once_per_round_trip() {
    let mut s = CongestionTestSender::new();
    s.acked(0..20);
    let before = s.cwnd();
    assert_eq!(before, (INITIAL_WINDOW + 20) * u32::from(MTU));
    s.lose();
    let reduced = s.cwnd();
    // Three packets were acknowledged with the loss.
    assert_eq!(reduced, (before + 3 * u32::from(MTU)) / 10 * 7);
    s.wait(RTT / 2);
    s.lose();
    assert_eq!(s.cwnd(), reduced, "it was sent before the reduction");
    s.wait(RTT);
    s.lose();
    assert!(s.cwnd() < reduced * 3 / 4);
    s.wait(RTT * 9);
    assert!(s.control.losses.is_empty() && s.control.undo.is_none(), "nothing is kept");
    assert_eq!(s.control.counts, LossCounts { reductions: 2, ..LossCounts::default() });
}

#[test]
fn a_late_packet_undoes_its_reduction() {
    let mut s = CongestionTestSender::new();
    s.acked(0..20);
    let (before, threshold) = (s.cwnd(), s.control.congestion.ssthresh);
    let late = s.lose();
    let (window, slow_start) = (s.cwnd(), s.control.congestion.in_slow_start());
    assert!(window < before && !slow_start);
    s.wait(RTT / 2);
    s.acked(late..late + 1);
    assert!(s.cwnd() >= before, "{} of {before}", s.cwnd());
    assert_eq!(s.control.congestion.ssthresh, threshold);
    assert_eq!(s.control.recovery_start, None);
    assert_eq!(s.control.counts, LossCounts { reductions: 1, spurious: 1, spared: 0, undone: 1 });
}

#[test]
fn a_reduction_with_a_real_loss_stays() {
    let mut s = CongestionTestSender::new();
    s.acked(0..20);
    s.lose();
    let reduced = s.cwnd();
    let late = s.lose();
    s.wait(RTT / 4);
    s.acked(late..late + 1);
    assert_eq!(s.cwnd(), reduced);
    assert_eq!(s.control.counts.undone, 0);
}

#[test]
fn lateness_is_learned_and_forgotten() {
    let mut s = CongestionTestSender::new();
    s.acked(0..20);
    let first = s.lose();
    s.wait(RTT / 2);
    s.acked(first..first + 1);
    // Later packets that are as late cause no reduction.
    let before = s.cwnd();
    for _ in 0..20 {
        let late = s.lose();
        s.wait(RTT / 2);
        s.acked(late..late + 1);
    }
    assert!(s.cwnd() > before);
    assert_eq!(s.control.counts, LossCounts { reductions: 1, spurious: 21, spared: 20, undone: 1 });
    // A real loss does, when it has been missing for longer; at the latest after a round trip.
    let before = s.cwnd();
    s.lose();
    assert!(s.cwnd() >= before);
    s.wait(RTT / 2);
    assert!(s.cwnd() >= before);
    s.wait(RTT / 2);
    assert!(s.cwnd() < before);
    // After many real losses the lateness is forgotten.
    for _ in 0..RECOVERIES_MAX {
        s.wait(RTT * 2);
        s.lose();
        s.wait(RTT);
    }
    assert_eq!(s.control.reordering_window(), Duration::ZERO);
}

#[test]
fn marks_and_persistent_congestion_are_answered_at_once() {
    let mut s = CongestionTestSender::new();
    s.acked(0..20);
    let late = s.lose();
    s.wait(RTT / 2);
    s.acked(late..late + 1);
    s.wait(RTT * 2);
    let before = s.cwnd();
    let (at, sent) = (s.now, s.now);
    s.control.signals.push(CongestionSignal { at, sent, what: SignalKind::EcnCe });
    s.wait(Duration::ZERO);
    assert!(s.cwnd() < before * 3 / 4);
    s.control.signals.push(CongestionSignal { at, sent, what: SignalKind::PersistentCongestion });
    s.wait(Duration::ZERO);
    assert_eq!(s.cwnd(), 2 * u32::from(MTU));
}

#[test]
fn a_whole_window_may_be_in_flight() {
    // quinn-proto does not let the bytes in flight reach the window.
    let (mut control, packet) = (PathCongestionState::new(MTU), u64::from(MTU));
    assert!(9 * packet + packet < control.window());
    assert!(10 * packet + packet >= control.window());
    control.congestion.cwnd += 1;
    assert!(10 * packet + packet < control.window());
    assert!(11 * packet + packet >= control.window());
}

#[test]
fn late_packet_does_not_undo_ecn_reduction() {
    // The marked packet was sent before the reduction, so the mark needs no reduction of its own.
    let mut s = CongestionTestSender::new();
    s.acked(0..20);
    let late = s.lose();
    let reduced = s.cwnd();
    let sent = Instant::from_nanos(s.now.as_nanos() - RTT.as_nanos());
    s.control.signals.push(CongestionSignal { at: s.now, sent, what: SignalKind::EcnCe });
    s.wait(RTT / 2);
    s.acked(late..late + 1);
    assert_eq!(s.cwnd(), reduced);
    assert_eq!(s.control.counts, LossCounts { reductions: 1, spurious: 1, spared: 0, undone: 0 });
}

/// Returns a sender in slow start that has learned that packets are half a round trip late, and the
/// number of another packet that is missing.
fn deferring() -> (CongestionTestSender, u64) {
    let mut s = CongestionTestSender::new();
    s.acked(0..20);
    let first = s.lose();
    s.wait(RTT / 2);
    s.acked(first..first + 1);
    let missing = s.lose();
    assert!(s.control.congestion.in_slow_start());
    (s, missing)
}

#[test]
fn slow_start_waits_while_a_packet_may_be_lost() {
    let (mut s, _) = deferring();
    let before = s.cwnd();
    s.acked(s.next..s.next + 50);
    assert_eq!(s.cwnd(), before, "it does not grow");
    s.wait(RTT);
    assert!(s.cwnd() <= before / 10 * 7, "nor by what was acknowledged meanwhile");
}

#[test]
fn slow_start_resumes_after_late_packet() {
    let (mut s, missing) = deferring();
    let before = s.cwnd();
    s.acked(s.next..s.next + 50);
    // When it arrives another one is missing, as is normal on such a path.
    s.lose();
    s.wait(RTT / 2);
    s.acked(missing..missing + 1);
    assert!(s.cwnd() >= before + 50 * u32::from(MTU), "{before} {}", s.cwnd());
    assert_eq!(s.control.counts.spared, 1);
}

#[test]
fn nothing_is_counted_again_after_a_change_of_path() {
    let epoch = io::clock::std_epoch();
    let controller = Arc::new(QuinnControllerFactory { epoch }).build(epoch, MTU);
    let shared = controller.into_any().downcast::<QuinnController>().expect("it is ours").0;
    let counted = LossCounts { reductions: 3, spurious: 2, spared: 1, undone: 1 };
    shared.with(|control| control.counts = counted);
    let link = PathCongestion::of(Some(shared), 7);
    assert_eq!(link.counts, counted);
}

/// With a queue, in which others may wait, RFC 9438 section 4.3 applies; without one the window
/// grows as Reno's.
#[test]
fn the_window_grows_faster_without_a_queue() {
    for (queue_ms, grown) in [(0, 20), (3, 20), (5, 10)] {
        let mut s = CongestionTestSender::new();
        s.acked(0..70);
        s.lose();
        s.wait(RTT * 2);
        let queue = Duration::from_millis(queue_ms);
        let before = s.cwnd();
        for _ in 0..20 {
            s.wait(RTT + queue);
            s.acked_after(RTT + queue, s.next..s.next + u64::from(s.cwnd() / u32::from(MTU)));
        }
        let packets = (s.cwnd() - before).div_ceil(MTU.into());
        assert!(packets.abs_diff(grown) <= 1, "{packets} with {queue_ms} ms of a queue");
    }
}

/// RFC 9438 section 4.8, for persistent congestion, QUIC's counterpart of a timeout: slow start
/// ends at the threshold, and the window does not hurry from there to the former plateau.
#[test]
fn persistent_congestion_forgets_the_plateau() {
    let (mut s, rtt) = (CongestionTestSender::new(), Duration::from_millis(100));
    (s.control.srtt, s.control.min_rtt) = (rtt, rtt);
    s.control.congestion.cwnd = 1000 * u32::from(MTU);
    let (at, sent, what) = (s.now, s.now, SignalKind::PersistentCongestion);
    s.control.signals.push(CongestionSignal { at, sent, what });
    s.wait(Duration::ZERO);
    // Nine rounds of slow start, and four seconds.
    for _ in 0..49 {
        s.wait(rtt);
        s.acked_after(rtt, s.next..s.next + u64::from(s.cwnd() / u32::from(MTU)));
    }
    let packets = s.cwnd() / u32::from(MTU);
    assert!((700..750).contains(&packets), "{packets}");
}

//! Congestion control of QUIC connections: the host's CUBIC ([`host::Congestion`]) for quinn-proto,
//! with three changes that RFC 9002 permits, for paths that reorder packets.
//!
//! quinn-proto declares a packet lost when three later ones were acknowledged or after 9/8 of a
//! round trip; these thresholds are fixed. A spurious retransmission costs little, but a spurious
//! reduction of the window costs much throughput. Therefore:
//!
//! - A reduction is undone, including all state before it, when all packets that caused it were
//!   acknowledged after all (RFC 9438 section 4.9.2; as in Linux).
//! - The lateness of such packets is learned. From then on a loss counts only if the packets have
//!   been missing for longer: the adaptive reordering window of RFC 8985 section 6.2, at most a
//!   round trip, and given up, as there, after [`RECOVERIES_MAX`] reductions without a late packet.
//! - If packets are lost although round-trip times show no queue, the losses do not indicate a full
//!   shared path. In the Reno-friendly region the window then grows by one datagram per round trip,
//!   as in Reno and quic-go, instead of the 0.53 of RFC 9438 section 4.3. With a queue, in which
//!   other connections may wait, the RFC's rule holds.
//!
//! quinn-proto calls [`QuinnController`]. The driver passes what it learns from the packets
//! ([`crate::protection`]) to [`PathCongestionState::process`], after each event and before it
//! sends.

mod gaps;
mod path_queue;

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant as StdInstant;

use base::{Duration, Instant};
use host::{Congestion, CongestionAlgorithm, CongestionSnapshot, RenoGrowth, TcpConfig};
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{self, ControllerFactory, ControllerMetrics};
use smallvec::SmallVec;

use gaps::PacketNumberGaps;
use path_queue::PathQueueDetector;

/// RFC 9002 section 6.1.1; quinn-proto's default.
const PACKET_THRESHOLD: u64 = 3;
/// Initial window in datagrams (RFC 9002 section 7.2).
const INITIAL_WINDOW: u32 = 10;
/// Reductions without a late packet after which the learned lateness is forgotten (RFC 8985 section
/// 6.2, step 4).
const RECOVERIES_MAX: u32 = 16;
/// Round trips for which an acknowledgment of a lost packet is awaited.
const EXPIRY_ROUND_TRIPS: u64 = 4;
/// Maximum losses that are tracked at a time.
const LOSSES_MAX: usize = 128;

/// A congestion signal from quinn-proto, kept until [`PathCongestionState::process`].
#[derive(Clone, Copy, Debug)]
struct CongestionSignal {
    at: Instant,
    /// Time at which the newest of the affected packets was sent.
    sent: Instant,
    what: SignalKind,
}

/// Kind of a congestion signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalKind {
    /// ECN-CE marks (RFC 9002 section 7.1).
    EcnCe,
    /// Lost packets (RFC 9002 section 6.1).
    Lost,
    /// Persistent congestion (RFC 9002 section 7.6).
    PersistentCongestion,
}

/// Effect of a loss on the window so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossResponse {
    /// None: the packets may only be late.
    Deferred,
    /// The window was reduced for this loss, or for an earlier one in the same round trip.
    Answered,
}

/// Packets that were declared lost at the same time.
#[derive(Clone, Debug)]
struct LossEvent {
    numbers: Range<u64>,
    at: Instant,
    sent: Instant,
    response: LossResponse,
    /// Bytes acknowledged in slow start while this loss was the newest one and deferred. The window
    /// grows by them only if the packets were late.
    withheld_bytes: u64,
}

/// State before a reduction.
#[derive(Clone, Debug)]
struct ReductionUndo {
    congestion: CongestionSnapshot,
    recovery: Option<Instant>,
    /// Lowest packet number that caused the reduction.
    first: u64,
}

/// Results of loss detection, counted per connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LossCounts {
    /// Reductions of the window.
    pub(crate) reductions: u64,
    /// ACK ranges with packets that had been declared lost.
    pub(crate) spurious: u64,
    /// Losses that caused no reduction because all their packets were only late.
    pub(crate) spared: u64,
    /// Reductions that were undone.
    pub(crate) undone: u64,
}

impl core::ops::AddAssign for LossCounts {
    fn add_assign(&mut self, more: Self) {
        self.reductions += more.reductions;
        self.spurious += more.spurious;
        self.spared += more.spared;
        self.undone += more.undone;
    }
}

/// Packet numbers that the driver saw since the last [`PathCongestionState::process`].
#[derive(Debug, Default)]
pub(crate) struct PacketNumberNews {
    /// Ranges of ACK frames; those of one frame ascend.
    pub(crate) acked: Vec<Range<u64>>,
    /// Packet numbers that were never sent.
    pub(crate) skipped: SmallVec<[u64; 2]>,
}

/// Congestion control state of a path.
#[derive(Debug)]
pub(crate) struct PathCongestionState {
    congestion: Congestion,
    initial: u32,
    mtu: u32,
    srtt: Duration,
    min_rtt: Duration,
    queue: PathQueueDetector,
    /// Round-trip time of the last packet acknowledged.
    rtt: Duration,
    /// Bytes acknowledged so far.
    acked: u64,
    /// Largest acknowledged packet number.
    largest_acked: Option<u64>,
    /// Start of the last recovery period (RFC 9002 section 7.3.2).
    recovery_start: Option<Instant>,
    signals: SmallVec<[CongestionSignal; 2]>,
    gaps: PacketNumberGaps,
    /// Losses that are tracked, ascending by packet number.
    losses: VecDeque<LossEvent>,
    undo: Option<ReductionUndo>,
    /// Longest time from the declaration of a loss to the packet's acknowledgment.
    lateness_max: Duration,
    /// Reductions since the last late packet.
    reductions_since_late: u32,
    /// quinn-proto's count of lost packets at the last call.
    lost_packets: u64,
    counts: LossCounts,
}

impl PathCongestionState {
    fn new(mtu: u16) -> Self {
        let (algorithm, initial_window) = (CongestionAlgorithm::Cubic, INITIAL_WINDOW);
        // HyStart++ is off: it mistakes the scheduling jitter of a busy machine for a queue.
        let config =
            TcpConfig { algorithm, initial_window, hystart: false, ..TcpConfig::default() };
        Self {
            congestion: Congestion::new(&config, mtu.into(), 0, Instant::ZERO),
            initial: INITIAL_WINDOW * u32::from(mtu),
            acked: 0,
            largest_acked: None,
            rtt: Duration::ZERO,
            mtu: u32::from(mtu),
            srtt: Duration::ZERO,
            min_rtt: Duration::ZERO,
            queue: PathQueueDetector::default(),
            recovery_start: None,
            signals: SmallVec::new(),
            gaps: PacketNumberGaps::default(),
            losses: VecDeque::new(),
            undo: None,
            lateness_max: Duration::ZERO,
            reductions_since_late: 0,
            lost_packets: 0,
            counts: LossCounts::default(),
        }
    }

    /// Returns the window, rounded up to whole packets, as TCP counts it: quinn-proto sends only
    /// full ones, so a fraction would be unused. One is added because quinn-proto keeps the bytes
    /// in flight below the window, whereas RFC 9002 section 7 lets them reach it.
    fn window(&self) -> u64 {
        let packet = u64::from(self.mtu);
        u64::from(self.congestion.cwnd).div_ceil(packet) * packet + 1
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool) {
        self.acked += bytes;
        self.rtt = now.since(sent);
        self.queue.on_sample(now, self.rtt, self.srtt);
        if app_limited || self.in_recovery(sent) {
            return;
        }
        // The response to a real loss may be deferred by up to a round trip; slow start must not
        // double the window meanwhile. If any loss is deferred, the newest one is.
        let newest = self.losses.back_mut().filter(|loss| loss.response == LossResponse::Deferred);
        match newest.filter(|_| self.congestion.in_slow_start()) {
            Some(loss) => loss.withheld_bytes += bytes,
            None => self.grow(now, bytes),
        }
    }

    fn grow(&mut self, now: Instant, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let growth = match self.queue.has_queue(self.min_rtt) {
            true => RenoGrowth::EqualWindow,
            false => RenoGrowth::Segment,
        };
        self.congestion.set_reno_growth(growth);
        self.congestion.on_ack(now, bytes, self.mtu, self.srtt);
    }

    /// Handles the end of an ACK frame, whose packets were passed to `on_ack`. `largest_acked` is
    /// the largest number acknowledged so far. The round-trip time is a sample only if
    /// `largest_acked` has grown (RFC 9002 section 5.1).
    fn on_end_acks(&mut self, in_flight: u64, newest: Option<u64>) {
        let (acked, sent) = (self.acked, self.acked + in_flight);
        let sample = (newest > self.largest_acked).then_some(self.rtt);
        self.largest_acked = newest;
        self.congestion.on_ack_for_hystart(acked, sent, sample);
    }

    fn in_recovery(&self, sent: Instant) -> bool {
        self.recovery_start.is_some_and(|since| sent <= since)
    }

    /// Returns whether [`Self::process`] has nothing to do without new packet numbers.
    fn is_idle(&self) -> bool {
        self.signals.is_empty() && self.losses.is_empty()
    }

    /// Processes acknowledgments and quinn-proto's signals. `lost_packets` is quinn-proto's total
    /// count of lost packets.
    pub(crate) fn process(&mut self, now: Instant, news: &mut PacketNumberNews, lost_packets: u64) {
        for number in news.skipped.drain(..) {
            self.gaps.on_skipped(number);
        }
        let mut late = 0;
        for range in news.acked.drain(..) {
            late += u64::from(self.gaps.on_acked(range));
        }
        self.counts.spurious += late;
        if late > 0 {
            self.learn_lateness(now);
        }
        let lost = lost_packets.saturating_sub(self.lost_packets);
        self.lost_packets = lost_packets;
        let numbers = if lost > 0 { self.gaps.on_lost(lost, PACKET_THRESHOLD) } else { 0..0 };
        for CongestionSignal { at, sent, what } in core::mem::take(&mut self.signals) {
            match what {
                SignalKind::Lost if !numbers.is_empty() => {
                    let (numbers, response) = (numbers.clone(), LossResponse::Deferred);
                    self.add_loss(LossEvent { numbers, at, sent, response, withheld_bytes: 0 });
                }
                // Packets lost in the handshake are in other number spaces.
                SignalKind::Lost | SignalKind::EcnCe => self.reduce(at, sent, None),
                SignalKind::PersistentCongestion => self.on_persistent_congestion(),
            }
        }
        self.resolve_losses(now);
    }

    fn add_loss(&mut self, loss: LossEvent) {
        if self.losses.len() == LOSSES_MAX {
            self.losses.pop_front();
            self.undo = None;
        }
        self.losses.push_back(loss);
    }

    /// Learns the lateness of the oldest loss that the late packets just acknowledged resolve.
    fn learn_lateness(&mut self, now: Instant) {
        self.reductions_since_late = 0;
        let gaps = &self.gaps;
        let came = self.losses.iter().filter(|loss| gaps.are_acked(&loss.numbers));
        if let Some(longest) = came.map(|loss| now.since(loss.at)).max() {
            self.lateness_max = self.lateness_max.max(longest);
        }
    }

    /// Returns how long packets must be missing after they were declared lost to count as lost.
    fn reordering_window(&self) -> Duration {
        (self.lateness_max * 5 / 4).min(self.srtt)
    }

    /// Drops the losses that were spurious, and responds to the others when their time has come.
    fn resolve_losses(&mut self, now: Instant) {
        let (patience, expiry) = (self.reordering_window(), self.srtt * EXPIRY_ROUND_TRIPS);
        let mut losses = core::mem::take(&mut self.losses);
        let mut withheld = 0;
        losses.retain_mut(|loss| {
            let (missing, made) = (now.since(loss.at), loss.response == LossResponse::Answered);
            if self.gaps.are_acked(&loss.numbers) {
                self.counts.spared += u64::from(!made);
                withheld += if made { 0 } else { loss.withheld_bytes };
                return false;
            }
            if !made && missing >= patience {
                loss.response = LossResponse::Answered;
                self.reduce(now, loss.sent, Some(loss.numbers.start));
            }
            if missing <= expiry {
                return true;
            }
            self.gaps.forget(loss.numbers.end);
            // It was a real loss, so its reduction must stay.
            if self.undo.as_ref().is_some_and(|undo| loss.numbers.start >= undo.first) {
                self.undo = None;
            }
            false
        });
        self.losses = losses;
        if withheld > 0 && self.congestion.in_slow_start() {
            self.grow(now, withheld);
        }
        let is_made = |loss: &LossEvent, undo: &ReductionUndo| {
            loss.response == LossResponse::Answered && loss.numbers.start >= undo.first
        };
        let undo = self.undo.take_if(|undo| !self.losses.iter().any(|loss| is_made(loss, undo)));
        if let Some(ReductionUndo { congestion, recovery, .. }) = undo {
            self.congestion.undo(congestion);
            self.recovery_start = recovery;
            self.counts.undone += 1;
        }
    }

    /// Reduces the window, unless the packets were sent before the last reduction. `first` is the
    /// lowest packet number that causes it; `None` if it must not be undone.
    fn reduce(&mut self, now: Instant, sent: Instant, first: Option<u64>) {
        if self.in_recovery(sent) {
            // The last reduction also answers this signal, which late packets do not revoke.
            if first.is_none() {
                self.undo = None;
            }
            return;
        }
        let (congestion, recovery) = (self.congestion.snapshot(), self.recovery_start);
        self.undo = first.map(|first| ReductionUndo { congestion, recovery, first });
        self.congestion.on_congestion(self.mtu);
        self.congestion.cwnd = self.congestion.ssthresh;
        self.recovery_start = Some(now);
        self.reductions_since_late += 1;
        self.counts.reductions += 1;
        if self.reductions_since_late > RECOVERIES_MAX {
            self.lateness_max = Duration::ZERO;
        }
    }

    /// Persistent congestion (RFC 9002 section 7.6.2).
    fn on_persistent_congestion(&mut self) {
        self.counts.reductions += 1;
        self.congestion.on_congestion(self.mtu);
        self.congestion.on_timeout();
        self.congestion.cwnd = 2 * self.mtu;
        self.recovery_start = None;
        self.undo = None;
        self.losses.clear();
    }
}

/// A path's congestion control, shared by quinn-proto and the driver, which run on one thread.
pub(crate) struct SharedPathCongestion {
    control: Mutex<PathCongestionState>,
    /// Copy of [`PathCongestionState::window`], which is read several times per packet.
    window: AtomicU64,
    epoch: StdInstant,
}

impl SharedPathCongestion {
    /// Runs `work` on the state and updates the copy of the window.
    fn with<T>(&self, work: impl FnOnce(&mut PathCongestionState) -> T) -> T {
        // Nothing under the lock panics.
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut control);
        self.window.store(control.window(), Ordering::Relaxed);
        result
    }

    fn time(&self, at: StdInstant) -> Instant {
        let since = at.saturating_duration_since(self.epoch).as_nanos();
        Instant::from_nanos(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

/// The controller that quinn-proto holds.
pub(crate) struct QuinnController(Arc<SharedPathCongestion>);

impl QuinnController {
    /// Returns the state of the controller that a connection uses now; `None` if it is not ours.
    pub(crate) fn of(connection: &quinn_proto::Connection) -> Option<Arc<SharedPathCongestion>> {
        let controller = connection.congestion_state().clone_box().into_any();
        controller.downcast::<Self>().ok().map(|controller| controller.0)
    }
}

impl congestion::Controller for QuinnController {
    fn on_ack(
        &mut self,
        now: StdInstant,
        sent: StdInstant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        let (now, sent) = (self.0.time(now), self.0.time(sent));
        let [srtt, min_rtt] = [rtt.get(), rtt.min()]
            .map(|rtt| Duration::from_nanos(u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX)));
        self.0.with(|control| {
            (control.srtt, control.min_rtt) = (srtt, min_rtt);
            control.on_ack(now, sent, bytes, app_limited);
        });
    }

    fn on_end_acks(&mut self, _: StdInstant, in_flight: u64, _: bool, newest: Option<u64>) {
        self.0.with(|control| control.on_end_acks(in_flight, newest));
    }

    fn on_congestion_event(
        &mut self,
        now: StdInstant,
        sent: StdInstant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        let what = match (is_persistent_congestion, lost_bytes) {
            (true, _) => SignalKind::PersistentCongestion,
            (false, 0) => SignalKind::EcnCe,
            (false, _) => SignalKind::Lost,
        };
        let noticed = CongestionSignal { at: self.0.time(now), sent: self.0.time(sent), what };
        self.0.with(|control| control.signals.push(noticed));
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.with(|control| {
            control.mtu = u32::from(new_mtu);
            control.congestion.cwnd = control.congestion.cwnd.max(2 * control.mtu);
        });
    }

    fn window(&self) -> u64 {
        self.0.window.load(Ordering::Relaxed)
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        self.0.with(|control| {
            metrics.congestion_window = control.congestion.cwnd.into();
            metrics.ssthresh = Some(control.congestion.ssthresh.into());
        });
        metrics
    }

    /// Shares the state: quinn-proto clones the controller when only the peer's port changes, and
    /// returns to the original if the peer does not answer there.
    fn clone_box(&self) -> Box<dyn congestion::Controller> {
        Box::new(Self(Arc::clone(&self.0)))
    }

    fn initial_window(&self) -> u64 {
        self.0.with(|control| control.initial.into())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Creates controllers.
pub(crate) struct QuinnControllerFactory {
    /// Instant of quinn-proto's time at [`base::Instant::ZERO`]:
    /// [`crate::QuicEndpointConfig::epoch`].
    pub(crate) epoch: StdInstant,
}

impl ControllerFactory for QuinnControllerFactory {
    fn build(self: Arc<Self>, _: StdInstant, mtu: u16) -> Box<dyn congestion::Controller> {
        let control = PathCongestionState::new(mtu);
        let window = AtomicU64::new(control.window());
        let shared =
            SharedPathCongestion { control: Mutex::new(control), window, epoch: self.epoch };
        Box::new(QuinnController(Arc::new(shared)))
    }
}

/// A connection's access to the congestion control of its path.
pub(crate) struct PathCongestion {
    shared: Option<Arc<SharedPathCongestion>>,
    news: PacketNumberNews,
    counts: LossCounts,
}

impl PathCongestion {
    /// Follows the controller that the connection uses now.
    pub(crate) fn new(connection: &quinn_proto::Connection) -> Self {
        Self::of(QuinnController::of(connection), connection.stats().path.lost_packets)
    }

    /// Counts from the current values: the state may have been followed before.
    fn of(shared: Option<Arc<SharedPathCongestion>>, lost_packets: u64) -> Self {
        let begin = |control: &mut PathCongestionState| {
            control.lost_packets = lost_packets;
            control.counts
        };
        let counts = shared.as_ref().map(|shared| shared.with(begin)).unwrap_or_default();
        Self { shared, news: PacketNumberNews::default(), counts }
    }

    /// Follows a change of the connection's path. It has another state, unless only the peer's port
    /// has changed.
    pub(crate) fn update_path(&mut self, connection: &quinn_proto::Connection) {
        let shared = QuinnController::of(connection);
        if shared.as_ref().map(Arc::as_ptr) != self.shared.as_ref().map(Arc::as_ptr) {
            *self = Self::of(shared, connection.stats().path.lost_packets);
        }
    }

    /// Processes what happened on a connection. Returns the counts since the last call.
    pub(crate) fn poll_counts(
        &mut self,
        now: Instant,
        connection: &quinn_proto::Connection,
        news: Option<&mut PacketNumberNews>,
    ) -> LossCounts {
        let Some(shared) = &self.shared else { return LossCounts::default() };
        if let Some(news) = news {
            core::mem::swap(&mut self.news, news);
        }
        let news = &mut self.news;
        let nothing = news.acked.is_empty() && news.skipped.is_empty();
        let counts = shared.with(|control| {
            if !(nothing && control.is_idle()) {
                let lost = match control.signals.is_empty() {
                    true => control.lost_packets,
                    false => connection.stats().path.lost_packets,
                };
                control.process(now, news, lost);
            }
            control.counts
        });
        let before = core::mem::replace(&mut self.counts, counts);
        LossCounts {
            reductions: counts.reductions - before.reductions,
            spurious: counts.spurious - before.spurious,
            spared: counts.spared - before.spared,
            undone: counts.undone - before.undone,
        }
    }
}

#[cfg(test)]
mod tests;

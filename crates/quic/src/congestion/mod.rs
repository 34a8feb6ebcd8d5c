//! Congestion control of QUIC connections: the host's CUBIC ([`host::Congestion`])
//! for quinn-proto, with what RFC 9002 leaves open for paths that reorder packets.
//!
//! quinn-proto counts a packet as lost when three later ones were acknowledged, or after 9/8 of a
//! round trip, and these thresholds are fixed. Its repetition of a packet that is only late costs
//! little; a window that is reduced each time costs nearly everything. So:
//!
//! - A reduction is undone when all packets were acknowledged for which it was made, with all of
//!   the state before (RFC 9438, section 4.9.2; as Linux).
//! - How late such packets were is learned, and from then on losses count only when they have been
//!   missing for longer: the adaptive reordering window of RFC 8985, section 6.2, at most a round
//!   trip, and as there given up after [`RECOVERIES_MAX`] reductions without a late packet.
//!
//! - If packets are lost although round trips show no queue, the losses are not the sign of a full
//!   path that is shared. In the Reno-friendly region the window then grows by a datagram in each
//!   round trip, as Reno's and quic-go's do, and not by the 0.53 of RFC 9438,
//!   section 4.3. With a queue, in which others may wait, the RFC's rule holds.
//!
//! [`Controller`] is what quinn-proto calls. The driver tells the rest ([`Control::follow`]), which
//! it has from the packets ([`crate::protection`]), after each event and before it sends.

mod gaps;
mod queue;

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant as StdInstant;

use base::{Duration, Instant};
use host::{Algorithm, Congestion, RenoGrowth, TcpConfig};
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{self, ControllerFactory, ControllerMetrics};
use smallvec::SmallVec;

use gaps::Gaps;
use queue::Queue;

/// RFC 9002, section 6.1.1; quinn-proto's default.
const PACKET_THRESHOLD: u64 = 3;
/// RFC 9002, section 7.2: the initial window in datagrams.
const INITIAL_WINDOW: u32 = 10;
/// Reductions without a late packet after which the learned lateness is forgotten: RFC 8985,
/// section 6.2, step 4.
const RECOVERIES_MAX: u32 = 16;
/// Round trips after which a lost packet's acknowledgment is waited for no longer.
const EXPIRY_ROUND_TRIPS: u64 = 4;
/// Losses that are waited for at one time.
const LOSSES_MAX: usize = 128;

/// Something that quinn-proto noticed since [`Control::follow`].
#[derive(Clone, Copy, Debug)]
struct Noticed {
    at: Instant,
    /// When the newest packet that is concerned was sent.
    sent: Instant,
    what: Signal,
}

/// A sign of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// RFC 9002, section 7.1.
    Marked,
    /// Section 6.1.
    Lost,
    /// Section 7.6.
    Persistent,
}

/// The effect of a loss on the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Response {
    /// Nothing yet: the packets may be late.
    Deferred,
    /// It belongs to the current reduction or an earlier one.
    Made,
}

/// Packets that were counted as lost at one time.
#[derive(Clone, Debug)]
struct Loss {
    numbers: Range<u64>,
    at: Instant,
    sent: Instant,
    response: Response,
    /// Bytes acknowledged in slow start while it was deferred and the newest loss: the window grows
    /// by them only if the packets were late.
    withheld: u64,
}

/// The state before a reduction.
#[derive(Clone, Debug)]
struct Undo {
    congestion: Congestion,
    recovery: Option<Instant>,
    /// The first number that it was made for.
    first: u64,
}

/// The counts of a connection's losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Reductions of the window.
    pub(crate) reductions: u64,
    /// Acknowledgments of packets that had been counted as lost, by ranges.
    pub(crate) spurious: u64,
    /// Losses that reduced no window since all packets were only late.
    pub(crate) spared: u64,
    /// Reductions that were undone.
    pub(crate) undone: u64,
}

impl core::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.reductions += more.reductions;
        self.spurious += more.spurious;
        self.spared += more.spared;
        self.undone += more.undone;
    }
}

/// The events of quinn-proto and its packets since the last time.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Ranges of ACK frames, those of each frame ascending.
    pub(crate) acked: Vec<Range<u64>>,
    /// Numbers that were not sent.
    pub(crate) skipped: SmallVec<[u64; 2]>,
}

/// The state of a path's congestion control.
#[derive(Debug)]
pub(crate) struct Control {
    congestion: Congestion,
    initial: u32,
    mtu: u32,
    srtt: Duration,
    min_rtt: Duration,
    queue: Queue,
    /// Round trip of the packet that was acknowledged last.
    rtt: Duration,
    /// Bytes acknowledged so far.
    acked: u64,
    /// The largest packet number that is acknowledged.
    newest: Option<u64>,
    /// When the last reduction was made: RFC 9002, section 7.3.2.
    recovery: Option<Instant>,
    noticed: SmallVec<[Noticed; 2]>,
    gaps: Gaps,
    /// Ascending.
    losses: VecDeque<Loss>,
    undo: Option<Undo>,
    /// The longest time from the loss of a packet to its acknowledgment.
    lateness: Duration,
    /// Reductions since the last late packet.
    recoveries: u32,
    /// Packets lost so far, as quinn-proto counts them.
    lost_packets: u64,
    counts: Counts,
}

impl Control {
    fn new(mtu: u16) -> Self {
        let (algorithm, initial_window) = (Algorithm::Cubic, INITIAL_WINDOW);
        // HyStart++ takes the jitter of a busy machine for a queue, on a path without one.
        let config =
            TcpConfig { algorithm, initial_window, hystart: false, ..TcpConfig::default() };
        Self {
            congestion: Congestion::new(&config, mtu.into()),
            initial: INITIAL_WINDOW * u32::from(mtu),
            acked: 0,
            newest: None,
            rtt: Duration::ZERO,
            mtu: u32::from(mtu),
            srtt: Duration::ZERO,
            min_rtt: Duration::ZERO,
            queue: Queue::default(),
            recovery: None,
            noticed: SmallVec::new(),
            gaps: Gaps::default(),
            losses: VecDeque::new(),
            undo: None,
            lateness: Duration::ZERO,
            recoveries: 0,
            lost_packets: 0,
            counts: Counts::default(),
        }
    }

    /// The window in whole packets, as TCP counts it: quinn-proto sends no others, and the rest of
    /// a packet would be lost. It sends what makes the bytes in flight less than the window, RFC
    /// 9002, section 7, has what makes them no more.
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
        // A real loss is answered up to a round trip late: slow start must not double the window
        // meanwhile. If any loss is deferred, the newest one is.
        let newest = self.losses.back_mut().filter(|loss| loss.response == Response::Deferred);
        match newest.filter(|_| self.congestion.in_slow_start()) {
            Some(loss) => loss.withheld += bytes,
            None => self.grow(now, bytes),
        }
    }

    fn grow(&mut self, now: Instant, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let growth = match self.queue.is_seen(self.min_rtt) {
            true => RenoGrowth::EqualWindow,
            false => RenoGrowth::Segment,
        };
        self.congestion.set_reno_growth(growth);
        self.congestion.on_ack(now, bytes, self.mtu, self.srtt);
    }

    /// Notes that all packets of an ACK frame were told, of which `newest` is the largest so far.
    /// HyStart++ judges its round trip if it is new (RFC 9002, section 5.1): others came late.
    fn on_end_acks(&mut self, in_flight: u64, newest: Option<u64>) {
        let (acked, sent) = (self.acked, self.acked + in_flight);
        let sample = (newest > self.newest).then_some(self.rtt);
        self.newest = newest;
        self.congestion.watch_round_trips(acked, sent, sample);
    }

    fn in_recovery(&self, sent: Instant) -> bool {
        self.recovery.is_some_and(|since| sent <= since)
    }

    /// Returns whether [`Self::follow`] has nothing to do without news.
    fn is_calm(&self) -> bool {
        self.noticed.is_empty() && self.losses.is_empty()
    }

    /// Acts on what quinn-proto noticed. `lost_packets` is its count of all lost packets.
    pub(crate) fn follow(&mut self, now: Instant, news: &mut News, lost_packets: u64) {
        for number in news.skipped.drain(..) {
            self.gaps.on_skipped(number);
        }
        let mut late = 0;
        for range in news.acked.drain(..) {
            late += u64::from(self.gaps.on_acked(range));
        }
        self.counts.spurious += late;
        if late > 0 {
            self.learn(now);
        }
        let lost = lost_packets.saturating_sub(self.lost_packets);
        self.lost_packets = lost_packets;
        let numbers = if lost > 0 { self.gaps.on_lost(lost, PACKET_THRESHOLD) } else { 0..0 };
        for Noticed { at, sent, what } in core::mem::take(&mut self.noticed) {
            match what {
                Signal::Lost if !numbers.is_empty() => {
                    let (numbers, response) = (numbers.clone(), Response::Deferred);
                    self.add(Loss { numbers, at, sent, response, withheld: 0 });
                }
                // Losses of the handshake have other numbers.
                Signal::Lost | Signal::Marked => self.reduce(at, sent, None),
                Signal::Persistent => self.collapse(),
            }
        }
        self.settle(now);
    }

    fn add(&mut self, loss: Loss) {
        if self.losses.len() == LOSSES_MAX {
            self.losses.pop_front();
            self.undo = None;
        }
        self.losses.push_back(loss);
    }

    /// Packets came late: notes how late the oldest of them were.
    fn learn(&mut self, now: Instant) {
        self.recoveries = 0;
        let gaps = &self.gaps;
        let came = self.losses.iter().filter(|loss| gaps.are_acked(&loss.numbers));
        if let Some(longest) = came.map(|loss| now.since(loss.at)).max() {
            self.lateness = self.lateness.max(longest);
        }
    }

    /// The time for which a packet has to be missing after it was counted as lost.
    fn patience(&self) -> Duration {
        (self.lateness * 5 / 4).min(self.srtt)
    }

    /// Drops the losses that were none, and responds to the others when their time has come.
    fn settle(&mut self, now: Instant) {
        let (patience, expiry) = (self.patience(), self.srtt * EXPIRY_ROUND_TRIPS);
        let mut losses = core::mem::take(&mut self.losses);
        let mut withheld = 0;
        losses.retain_mut(|loss| {
            let (missing, made) = (now.since(loss.at), loss.response == Response::Made);
            if self.gaps.are_acked(&loss.numbers) {
                self.counts.spared += u64::from(!made);
                withheld += if made { 0 } else { loss.withheld };
                return false;
            }
            if !made && missing >= patience {
                loss.response = Response::Made;
                self.reduce(now, loss.sent, Some(loss.numbers.start));
            }
            if missing <= expiry {
                return true;
            }
            self.gaps.forget(loss.numbers.end);
            // It was lost indeed.
            if self.undo.as_ref().is_some_and(|undo| loss.numbers.start >= undo.first) {
                self.undo = None;
            }
            false
        });
        self.losses = losses;
        if withheld > 0 && self.congestion.in_slow_start() {
            self.grow(now, withheld);
        }
        let is_made = |loss: &Loss, undo: &Undo| {
            loss.response == Response::Made && loss.numbers.start >= undo.first
        };
        let undo = self.undo.take_if(|undo| !self.losses.iter().any(|loss| is_made(loss, undo)));
        if let Some(Undo { congestion, recovery, .. }) = undo {
            self.congestion.undo(congestion);
            self.recovery = recovery;
            self.counts.undone += 1;
        }
    }

    /// Reduces the window, unless the packets were sent before that was done last. `first` is the
    /// first number for which it is done, if it may be undone.
    fn reduce(&mut self, now: Instant, sent: Instant, first: Option<u64>) {
        if self.in_recovery(sent) {
            // The reduction answers this too, which no late packet takes back.
            if first.is_none() {
                self.undo = None;
            }
            return;
        }
        let (congestion, recovery) = (self.congestion, self.recovery);
        self.undo = first.map(|first| Undo { congestion, recovery, first });
        self.congestion.on_congestion(self.mtu);
        self.congestion.cwnd = self.congestion.ssthresh;
        self.recovery = Some(now);
        self.recoveries += 1;
        self.counts.reductions += 1;
        if self.recoveries > RECOVERIES_MAX {
            self.lateness = Duration::ZERO;
        }
    }

    /// RFC 9002, section 7.6.2.
    fn collapse(&mut self) {
        self.counts.reductions += 1;
        self.congestion.on_congestion(self.mtu);
        self.congestion.on_timeout();
        self.congestion.cwnd = 2 * self.mtu;
        self.recovery = None;
        self.undo = None;
        self.losses.clear();
    }
}

/// A path's congestion control, shared by quinn-proto and the driver; they run on one thread.
pub(crate) struct Shared {
    control: Mutex<Control>,
    /// [`Control::window`], which is asked for several times with each packet.
    window: AtomicU64,
    epoch: StdInstant,
}

impl Shared {
    /// Works on the state.
    fn with<T>(&self, work: impl FnOnce(&mut Control) -> T) -> T {
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

/// The part of a path's congestion control that quinn-proto holds.
pub(crate) struct Controller(Arc<Shared>);

impl Controller {
    /// Returns the state behind the controller that a connection uses now; none where it is not
    /// ours.
    pub(crate) fn of(connection: &quinn_proto::Connection) -> Option<Arc<Shared>> {
        let controller = connection.congestion_state().clone_box().into_any();
        controller.downcast::<Self>().ok().map(|controller| controller.0)
    }
}

impl congestion::Controller for Controller {
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
            (true, _) => Signal::Persistent,
            (false, 0) => Signal::Marked,
            (false, _) => Signal::Lost,
        };
        let noticed = Noticed { at: self.0.time(now), sent: self.0.time(sent), what };
        self.0.with(|control| control.noticed.push(noticed));
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

    /// The same state: quinn-proto copies a controller for another port of the same peer, and goes
    /// back to the first where the peer is not found there.
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

/// Makes controllers.
pub(crate) struct Factory {
    /// [`crate::Config::epoch`].
    pub(crate) epoch: StdInstant,
}

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, _: StdInstant, mtu: u16) -> Box<dyn congestion::Controller> {
        let control = Control::new(mtu);
        let window = AtomicU64::new(control.window());
        let shared = Shared { control: Mutex::new(control), window, epoch: self.epoch };
        Box::new(Controller(Arc::new(shared)))
    }
}

/// A connection's end of its path's congestion control.
pub(crate) struct Link {
    shared: Option<Arc<Shared>>,
    news: News,
    counts: Counts,
}

impl Link {
    /// The one of a connection as it is now.
    pub(crate) fn new(connection: &quinn_proto::Connection) -> Self {
        Self::of(Controller::of(connection), connection.stats().path.lost_packets)
    }

    /// Counts only what the state counts from now on: it may have been followed before.
    fn of(shared: Option<Arc<Shared>>, lost_packets: u64) -> Self {
        let begin = |control: &mut Control| {
            control.lost_packets = lost_packets;
            control.counts
        };
        let counts = shared.as_ref().map(|shared| shared.with(begin)).unwrap_or_default();
        Self { shared, news: News::default(), counts }
    }

    /// The connection has another path, which has another state unless only the peer's port is
    /// another.
    pub(crate) fn follow_path(&mut self, connection: &quinn_proto::Connection) {
        let shared = Controller::of(connection);
        if shared.as_ref().map(Arc::as_ptr) != self.shared.as_ref().map(Arc::as_ptr) {
            *self = Self::of(shared, connection.stats().path.lost_packets);
        }
    }

    /// Follows what happened on a connection; returns what is to be counted.
    pub(crate) fn follow(
        &mut self,
        now: Instant,
        connection: &quinn_proto::Connection,
        news: Option<&mut News>,
    ) -> Counts {
        let Some(shared) = &self.shared else { return Counts::default() };
        if let Some(news) = news {
            core::mem::swap(&mut self.news, news);
        }
        let news = &mut self.news;
        let nothing = news.acked.is_empty() && news.skipped.is_empty();
        let counts = shared.with(|control| {
            if !(nothing && control.is_calm()) {
                let lost = match control.noticed.is_empty() {
                    true => control.lost_packets,
                    false => connection.stats().path.lost_packets,
                };
                control.follow(now, news, lost);
            }
            control.counts
        });
        let before = core::mem::replace(&mut self.counts, counts);
        Counts {
            reductions: counts.reductions - before.reductions,
            spurious: counts.spurious - before.spurious,
            spared: counts.spared - before.spared,
            undone: counts.undone - before.undone,
        }
    }
}

#[cfg(test)]
mod tests;

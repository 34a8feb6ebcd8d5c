//! What the device does for a connection: when it is asked, what it is told, and the way back.
//!
//! Both directions are asked for once a connection has proved that it is no mouse. The device
//! answers only where it will not, so packets are given to it at once; those that it drops are
//! losses to the connection. Where it has no room it is asked again, after twice as many bytes each
//! time. The way back is always open: the host keeps all keys.

use std::collections::BTreeMap;

use abi::quic::{
    ConnectionId, Direction, QuicAdd, QuicId, QuicKeys, QuicRekey, QuicRoute, Reorder, Route,
};
use abi::{FlowId, Refusal};
use base::Duration;
use host::Host;

use crate::config::Config;
use crate::counters::Counters;
use crate::protection::{Shared, State};

/// Our connection IDs that lead to a connection, by their sequence numbers.
pub(crate) type Cids = BTreeMap<u64, ConnectionId>;

/// Packets wait for those before them for this time at least, however near the peer is: below it
/// is what queues and batches on the way amount to.
const REORDER_TIME_MIN: Duration = Duration::from_micros(100);

/// A connection's dealings with the device.
#[derive(Debug)]
pub(crate) struct Offload {
    /// Bytes of the connection from which on the device is asked; none where it is not.
    ask_at: Option<u64>,
    tx: Option<QuicId>,
    rx: Option<QuicId>,
    /// The newest generations that the device was given.
    tx_generation: u64,
    rx_generation: u64,
    /// Why it does not, or no longer.
    refused: Option<Refusal>,
}

/// What is needed of the endpoint to talk to the device.
pub(crate) struct Device<'a> {
    pub(crate) host: &'a mut Host,
    pub(crate) counters: &'a mut Counters,
    pub(crate) config: &'a Config,
}

impl Default for Offload {
    fn default() -> Self {
        let (ask_at, tx, rx, refused) = (Some(0), None, None, None);
        Self { ask_at, tx, rx, tx_generation: 0, rx_generation: 0, refused }
    }
}

/// Bounds for a peer so far away. A quarter of a round-trip time is how late a packet may be that
/// TCP does not take for lost (RFC 8985, section 6.2, `RACK_reo_wnd`); to wait for longer would
/// let the peer find out about real losses later than it has to.
fn for_round_trip(bounds: Reorder, min_rtt: Duration) -> Reorder {
    let quarter = Duration::from_nanos(min_rtt.as_nanos() / 4);
    Reorder { time: quarter.max(REORDER_TIME_MIN).min(bounds.time), ..bounds }
}

/// What the device has to know of a connection, beside its keys.
pub(crate) struct About<'a> {
    pub(crate) flow: FlowId,
    pub(crate) cids: &'a Cids,
    /// The shortest round trip that was seen.
    pub(crate) min_rtt: Duration,
}

/// Which generations a device is given that has `had` and needs `to`. Packets of those between may
/// have been the host's, and the one before `to` is kept as long as it is. The device knows
/// generations by their key phase, which alternates: where both have the same, that one goes first.
fn missing(had: u64, to: u64) -> core::ops::RangeInclusive<u64> {
    if (to - had) % 2 == 0 { to - 1..=to } else { to..=to }
}

impl Device<'_> {
    fn rekey(&mut self, quic: QuicId, keys: QuicKeys) {
        self.host.quic_rekey(Box::new(QuicRekey { quic, keys }));
        self.counters.quic_rekeys += 1;
    }
}

impl Offload {
    /// The name under which the device seals.
    pub(crate) const fn tx(&self) -> Option<QuicId> {
        self.tx
    }

    /// The name under which the device opens.
    pub(crate) const fn rx(&self) -> Option<QuicId> {
        self.rx
    }

    /// Both names.
    pub(crate) fn names(&self) -> impl Iterator<Item = QuicId> + use<> {
        [self.tx, self.rx].into_iter().flatten()
    }

    /// The names under which the device seals and opens, or why it does not.
    pub(crate) fn directions(&self) -> [Result<Option<QuicId>, Refusal>; 2] {
        [self.tx, self.rx].map(|name| match (name, self.refused) {
            (None, Some(why)) => Err(why),
            _ => Ok(name),
        })
    }

    /// Whether the device does something, or why not.
    pub(crate) fn state(&self) -> Result<(), Refusal> {
        match self.refused {
            Some(why) if self.names().next().is_none() => Err(why),
            _ => Ok(()),
        }
    }

    /// Whether the device is to be asked, now that the connection has carried so many bytes.
    pub(crate) fn is_due(&self, bytes: u64) -> bool {
        self.ask_at.is_some_and(|at| at <= bytes)
    }

    /// Asks the device for the directions that it has not. Says whether it was asked.
    pub(crate) fn ask(
        &mut self,
        device: &mut Device<'_>,
        shared: &Shared,
        about: &About<'_>,
    ) -> bool {
        self.ask_at = None;
        if let Err(why) = device.host.quic_offload() {
            self.refused = Some(why);
            device.counters.count_refusal(why);
            return false;
        }
        let state = shared.lock();
        let added = self.add(device, &state, about).is_some();
        drop(state);
        if !added {
            // rustls made the keys: a cipher that we do not know.
            self.refused = Some(Refusal::UnknownProtocol);
            device.counters.count_refusal(Refusal::UnknownProtocol);
        }
        added
    }

    fn add(
        &mut self,
        device: &mut Device<'_>,
        state: &State,
        &About { flow, cids, min_rtt }: &About<'_>,
    ) -> Option<()> {
        let (suite, ours, theirs) =
            (state.suite?, state.tx_header.clone()?, state.rx_header.clone()?);
        let tx_keys = state.generation(state.tx_generation)?.tx.for_device(state.tx_generation);
        let rx_keys = state.generation(state.rx_generation)?.rx.for_device(state.rx_generation);
        if self.tx.is_none() {
            let quic = device.host.new_quic_id();
            device.host.quic_add(Box::new(QuicAdd {
                quic,
                flow,
                direction: Direction::Transmit,
                suite,
                header_key: ours.for_device(),
                keys: tx_keys,
                next_packet_number: state.tx_next,
            }));
            (self.tx, self.tx_generation) = (Some(quic), state.tx_generation);
        }
        if self.rx.is_none() {
            let quic = device.host.new_quic_id();
            let port = device.config.port;
            let reorder = device.config.reorder.map(|bounds| for_round_trip(bounds, min_rtt));
            let routes = cids.values().map(|&id| Route::Id { port, id }).collect();
            device.host.quic_add(Box::new(QuicAdd {
                quic,
                flow,
                direction: Direction::Receive { routes, reorder },
                suite,
                header_key: theirs.for_device(),
                keys: rx_keys,
                next_packet_number: state.rx_next,
            }));
            (self.rx, self.rx_generation) = (Some(quic), state.rx_generation);
            // The next generation, so that the peer's update finds it there (RFC 9001, section
            // 6.3).
            self.rekey_rx(device, state, state.rx_generation + 1);
        }
        device.counters.quic_offloaded += 1;
        Some(())
    }

    /// The peer may have moved to another generation of keys: the device gets the one behind it.
    pub(crate) fn follow_rx(&mut self, device: &mut Device<'_>, state: &State) {
        if self.rx.is_some() && state.rx_generation >= self.rx_generation {
            self.rekey_rx(device, state, state.rx_generation + 1);
        }
    }

    fn rekey_rx(&mut self, device: &mut Device<'_>, state: &State, to: u64) {
        let Some(quic) = self.rx else { return };
        for number in missing(self.rx_generation, to) {
            let Some(generation) = state.generation(number) else { return };
            device.rekey(quic, generation.rx.for_device(number));
            self.rx_generation = number;
        }
    }

    /// A batch is to be sealed with keys of that generation: the device has to have it before.
    pub(crate) fn follow_tx(&mut self, device: &mut Device<'_>, shared: &Shared, to: u64) {
        let Some(quic) = self.tx.filter(|_| to > self.tx_generation) else { return };
        let state = shared.lock();
        for number in missing(self.tx_generation, to) {
            let Some(generation) = state.generation(number) else { return };
            device.rekey(quic, generation.tx.for_device(number));
            self.tx_generation = number;
        }
    }

    /// Another connection ID leads to the connection, or one less.
    pub(crate) fn route(&self, device: &mut Device<'_>, id: ConnectionId, on: bool) {
        let Some(quic) = self.rx else { return };
        let route = Route::Id { port: device.config.port, id };
        device.host.quic_route(Box::new(QuicRoute { quic, route, on }));
        device.counters.quic_route_changes += 1;
    }

    /// The device will not do it. Where it has no room it is asked again when the connection, which
    /// has carried `bytes`, has carried as many once more.
    pub(crate) fn refuse(
        &mut self,
        device: &mut Device<'_>,
        quic: QuicId,
        why: Refusal,
        bytes: u64,
    ) {
        device.counters.count_refusal(why);
        // It may have the entry, and have refused keys or a route: what it opens under a name that
        // we do not know would be lost.
        device.host.quic_remove(quic);
        self.refused = Some(why);
        self.forget(quic);
        if why == Refusal::TableFull {
            self.ask_at = Some(bytes.saturating_mul(2));
        }
    }

    /// The device did not seal a transmit: what comes is sealed here, and it need not try again.
    pub(crate) fn not_sealed(&mut self, device: &mut Device<'_>, quic: QuicId) {
        device.counters.quic_not_sealed += 1;
        device.host.quic_remove(quic);
        self.refused = Some(Refusal::DoesNotFit);
        self.forget(quic);
    }

    fn forget(&mut self, quic: QuicId) {
        self.tx = self.tx.filter(|name| *name != quic);
        self.rx = self.rx.filter(|name| *name != quic);
    }

    /// The device lost everything: it may be asked again.
    pub(crate) fn reset(&mut self) {
        *self = Self { refused: Some(Refusal::DeviceReset), ..Self::default() };
    }

    /// The connection has ended.
    pub(crate) fn remove(&mut self, host: &mut Host) {
        self.names().for_each(|quic| host.quic_remove(quic));
        (self.tx, self.rx) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_wait_for_a_quarter_of_a_round_trip() {
        let bounds = Config::REORDER;
        let time = |rtt| for_round_trip(bounds, rtt).time;
        assert_eq!(time(Duration::from_millis(10)), Duration::from_micros(2500));
        assert_eq!(time(Duration::from_micros(50)), Duration::from_micros(100));
        assert_eq!(time(Duration::from_secs(3)), bounds.time);
        let short = Reorder { time: Duration::from_micros(10), ..bounds };
        assert_eq!(for_round_trip(short, Duration::from_millis(10)), short, "what was asked for");
    }
}

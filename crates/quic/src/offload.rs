//! Offload of a connection's packet protection to the device: the time of the request, the
//! operations, and the return to software.
//!
//! Both directions are requested once the connection has carried enough bytes. The device answers
//! only if it refuses, so transmits for it are sent at once; those that it drops count as packet
//! losses. After a refusal for lack of room the request is repeated each time the bytes carried
//! have doubled. The host can take over at any time, since it keeps all keys.

use std::collections::BTreeMap;

use abi::quic::{
    QuicAdd, QuicConnectionId, QuicDirection, QuicId, QuicKeys, QuicRekey, QuicReorderBounds,
    QuicRouteChange, QuicRouteKey,
};
use abi::{FlowId, Refusal};
use base::Duration;
use host::Host;

use crate::config::QuicEndpointConfig;
use crate::counters::QuicEndpointCounters;
use crate::protection::{OneRttShared, OneRttState};

/// Our connection IDs in use, by sequence number.
pub(crate) type CidMap = BTreeMap<u64, QuicConnectionId>;

/// Minimum time that the device holds a packet for the ones before it: less is within the jitter of
/// queues and batching on the path.
const REORDER_TIME_MIN: Duration = Duration::from_micros(100);

/// Offload state of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionOffload {
    /// Number of carried bytes at which the device is asked; `None` if it is not to be asked.
    request_at_bytes: Option<u64>,
    tx: Option<QuicId>,
    rx: Option<QuicId>,
    /// Newest key generations that the device was given.
    tx_generation: u64,
    rx_generation: u64,
    /// Reason for which the device does not protect the packets, or no longer does.
    refused: Option<Refusal>,
}

/// Parts of the endpoint that operations of the device need.
pub(crate) struct OffloadEnv<'a> {
    pub(crate) host: &'a mut Host,
    pub(crate) counters: &'a mut QuicEndpointCounters,
    pub(crate) config: &'a QuicEndpointConfig,
}

impl Default for ConnectionOffload {
    fn default() -> Self {
        let (ask_at, tx, rx, refused) = (Some(0), None, None, None);
        Self { request_at_bytes: ask_at, tx, rx, tx_generation: 0, rx_generation: 0, refused }
    }
}

/// Returns the reordering bounds for a round-trip time. A quarter of it is the delay that TCP's
/// RACK tolerates before it declares a loss (RFC 8985 section 6.2, `RACK_reo_wnd`). A longer wait
/// would delay the peer's detection of real losses.
fn reorder_bounds_for_rtt(bounds: QuicReorderBounds, min_rtt: Duration) -> QuicReorderBounds {
    let quarter = Duration::from_nanos(min_rtt.as_nanos() / 4);
    QuicReorderBounds { time: quarter.max(REORDER_TIME_MIN).min(bounds.time), ..bounds }
}

/// Properties of a connection that the device needs besides its keys.
pub(crate) struct OffloadParams<'a> {
    pub(crate) flow: FlowId,
    pub(crate) cids: &'a CidMap,
    /// Minimum round-trip time seen.
    pub(crate) min_rtt: Duration,
}

/// Returns the key generations to give to a device that has `had` and needs `to`. The ones between
/// are skipped: their packets may have been the host's. The generation before `to` is kept as long
/// as `to`. The device tells generations apart by the key phase bit, so if `had` and `to` have the
/// same phase, the generation before `to` is given first.
fn generations_to_send(had: u64, to: u64) -> core::ops::RangeInclusive<u64> {
    if (to - had) % 2 == 0 { to - 1..=to } else { to..=to }
}

impl OffloadEnv<'_> {
    fn rekey(&mut self, quic: QuicId, keys: QuicKeys) {
        self.host.quic_rekey(Box::new(QuicRekey { quic, keys }));
        self.counters.quic_rekeys += 1;
    }
}

impl ConnectionOffload {
    /// Returns the transmit context, if any.
    pub(crate) const fn tx(&self) -> Option<QuicId> {
        self.tx
    }

    /// Returns the receive context, if any.
    pub(crate) const fn rx(&self) -> Option<QuicId> {
        self.rx
    }

    /// Returns both contexts.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = QuicId> + use<> {
        [self.tx, self.rx].into_iter().flatten()
    }

    /// Returns the transmit and receive contexts, or the reason for which there is none.
    pub(crate) fn directions(&self) -> [Result<Option<QuicId>, Refusal>; 2] {
        [self.tx, self.rx].map(|name| match (name, self.refused) {
            (None, Some(why)) => Err(why),
            _ => Ok(name),
        })
    }

    /// Returns the reason of the refusal if neither direction is offloaded because of one.
    pub(crate) fn state(&self) -> Result<(), Refusal> {
        match self.refused {
            Some(why) if self.contexts().next().is_none() => Err(why),
            _ => Ok(()),
        }
    }

    /// Returns whether the device is to be asked, given the bytes that the connection has carried.
    pub(crate) fn is_request_due(&self, bytes: u64) -> bool {
        self.request_at_bytes.is_some_and(|at| at <= bytes)
    }

    /// Requests an offload of the directions that have none. Returns whether a request was made.
    pub(crate) fn request(
        &mut self,
        device: &mut OffloadEnv<'_>,
        shared: &OneRttShared,
        about: &OffloadParams<'_>,
    ) -> bool {
        self.request_at_bytes = None;
        if let Err(why) = device.host.quic_offload() {
            self.refused = Some(why);
            device.counters.count_refusal(why);
            return false;
        }
        let added = self.add(device, shared, about).is_some();
        if !added {
            // rustls made the keys itself: the cipher is not one of ours.
            self.refused = Some(Refusal::UnknownProtocol);
            device.counters.count_refusal(Refusal::UnknownProtocol);
        }
        added
    }

    fn add(
        &mut self,
        device: &mut OffloadEnv<'_>,
        shared: &OneRttShared,
        &OffloadParams { flow, cids, min_rtt }: &OffloadParams<'_>,
    ) -> Option<()> {
        let (tx_generation, rx_generation) = (shared.tx_generation(), shared.rx_generation());
        let state = shared.lock();
        let (suite, ours, theirs) =
            (state.suite?, state.tx_header.clone()?, state.rx_header.clone()?);
        let tx_keys = state.generation(tx_generation)?.tx.for_device(tx_generation);
        let rx_keys = state.generation(rx_generation)?.rx.for_device(rx_generation);
        if self.tx.is_none() {
            let quic = device.host.new_quic_id();
            device.host.quic_add(Box::new(QuicAdd {
                quic,
                flow,
                direction: QuicDirection::Transmit,
                suite,
                header_key: ours.for_device(),
                keys: tx_keys,
                next_packet_number: shared.tx_next(),
            }));
            (self.tx, self.tx_generation) = (Some(quic), tx_generation);
        }
        if self.rx.is_none() {
            let quic = device.host.new_quic_id();
            let port = device.config.port;
            let reorder =
                device.config.reorder.map(|bounds| reorder_bounds_for_rtt(bounds, min_rtt));
            let routes = cids.values().map(|&id| QuicRouteKey::Id { port, id }).collect();
            device.host.quic_add(Box::new(QuicAdd {
                quic,
                flow,
                direction: QuicDirection::Receive { routes, reorder },
                suite,
                header_key: theirs.for_device(),
                keys: rx_keys,
                next_packet_number: shared.rx_next(),
            }));
            (self.rx, self.rx_generation) = (Some(quic), rx_generation);
            // The device needs the next generation before the peer's key update (RFC 9001 section
            // 6.3).
            self.rekey_rx(device, &state, rx_generation + 1);
        }
        device.counters.quic_offloaded += 1;
        Some(())
    }

    /// Ensures that the device has the generation after the peer's newest one.
    pub(crate) fn ensure_rx_keys(&mut self, device: &mut OffloadEnv<'_>, shared: &OneRttShared) {
        let newest = shared.rx_generation();
        if self.rx.is_some() && newest >= self.rx_generation {
            self.rekey_rx(device, &shared.lock(), newest + 1);
        }
    }

    fn rekey_rx(&mut self, device: &mut OffloadEnv<'_>, state: &OneRttState, to: u64) {
        let Some(quic) = self.rx else { return };
        for number in generations_to_send(self.rx_generation, to) {
            let Some(generation) = state.generation(number) else { return };
            device.rekey(quic, generation.rx.for_device(number));
            self.rx_generation = number;
        }
    }

    /// Ensures that the device has the keys of generation `to` before it encrypts a batch with
    /// them.
    pub(crate) fn ensure_tx_keys(
        &mut self,
        device: &mut OffloadEnv<'_>,
        shared: &OneRttShared,
        to: u64,
    ) {
        let Some(quic) = self.tx.filter(|_| to > self.tx_generation) else { return };
        let state = shared.lock();
        for number in generations_to_send(self.tx_generation, to) {
            let Some(generation) = state.generation(number) else { return };
            device.rekey(quic, generation.tx.for_device(number));
            self.tx_generation = number;
        }
    }

    /// Adds (`add`) or removes a connection ID that leads to the connection.
    pub(crate) fn route(&self, device: &mut OffloadEnv<'_>, id: QuicConnectionId, on: bool) {
        let Some(quic) = self.rx else { return };
        let route = QuicRouteKey::Id { port: device.config.port, id };
        device.host.quic_route(Box::new(QuicRouteChange { quic, route, add: on }));
        device.counters.quic_route_changes += 1;
    }

    /// Handles a refusal by the device. If its table was full, it is asked again when the
    /// connection has carried twice its present `bytes`.
    pub(crate) fn handle_refusal(
        &mut self,
        device: &mut OffloadEnv<'_>,
        quic: QuicId,
        why: Refusal,
        bytes: u64,
    ) {
        device.counters.count_refusal(why);
        // The device may have the context and have refused only keys or a route. Remove it: packets
        // decrypted under a name that is unknown here would be lost.
        device.host.quic_remove(quic);
        self.refused = Some(why);
        self.remove_context(quic);
        self.request_at_bytes = why.next_request_at(bytes).or(self.request_at_bytes);
    }

    /// Handles a transmit that the device did not encrypt: the host encrypts from now on.
    pub(crate) fn handle_not_encrypted(&mut self, device: &mut OffloadEnv<'_>, quic: QuicId) {
        device.counters.quic_not_sealed += 1;
        device.host.quic_remove(quic);
        self.refused = Some(Refusal::DoesNotFit);
        self.remove_context(quic);
    }

    fn remove_context(&mut self, quic: QuicId) {
        self.tx = self.tx.filter(|name| *name != quic);
        self.rx = self.rx.filter(|name| *name != quic);
    }

    /// Forgets everything after a device reset; the device may be asked again.
    pub(crate) fn reset(&mut self) {
        *self = Self { refused: Some(Refusal::DeviceReset), ..Self::default() };
    }

    /// Removes the contexts of a connection that has ended.
    pub(crate) fn remove(&mut self, host: &mut Host) {
        self.contexts().for_each(|quic| host.quic_remove(quic));
        (self.tx, self.rx) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_wait_for_a_quarter_of_a_round_trip() {
        let bounds = QuicEndpointConfig::REORDER;
        let time = |rtt| reorder_bounds_for_rtt(bounds, rtt).time;
        assert_eq!(time(Duration::from_millis(10)), Duration::from_micros(2500));
        assert_eq!(time(Duration::from_micros(50)), Duration::from_micros(100));
        assert_eq!(time(Duration::from_secs(3)), bounds.time);
        let short = QuicReorderBounds { time: Duration::from_micros(10), ..bounds };
        assert_eq!(
            reorder_bounds_for_rtt(short, Duration::from_millis(10)),
            short,
            "what was asked for"
        );
    }
}

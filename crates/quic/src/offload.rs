//! What the device does for a connection: when it is asked, what it is told, and the way back.
//!
//! Both directions are asked for once a connection has proved that it is no mouse. The device
//! answers only where it will not, so packets are given to it at once; those that it drops are
//! losses to the connection. The way back is always open: the host keeps all keys.

use std::collections::BTreeMap;

use abi::quic::{ConnectionId, Direction, QuicAdd, QuicId, QuicRekey, QuicRoute, Route};
use abi::{FlowId, Refusal};
use host::Host;

use crate::config::Config;
use crate::counters::Counters;
use crate::protection::{Shared, State};

/// Our connection IDs that lead to a connection, by their sequence numbers.
pub(crate) type Cids = BTreeMap<u64, ConnectionId>;

/// A connection's dealings with the device.
#[derive(Debug, Default)]
pub(crate) struct Offload {
    asked: bool,
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

    /// Whether the device does something, or why not.
    pub(crate) fn state(&self) -> Result<(), Refusal> {
        match self.refused {
            Some(why) if self.names().next().is_none() => Err(why),
            _ => Ok(()),
        }
    }

    /// Asks the device, if it is worth it and was not asked before. Says whether it was.
    pub(crate) fn consider(
        &mut self,
        device: &mut Device<'_>,
        flow: FlowId,
        shared: &Shared,
        cids: &Cids,
    ) -> bool {
        if self.asked {
            return false;
        }
        self.asked = true;
        if let Err(why) = device.host.quic_offload() {
            self.refused = Some(why);
            device.counters.count_refusal(why);
            return false;
        }
        let mut state = shared.lock();
        let added = self.add(device, flow, &mut state, cids).is_some();
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
        flow: FlowId,
        state: &mut State,
        cids: &Cids,
    ) -> Option<()> {
        let (suite, ours, theirs) =
            (state.suite?, state.tx_header.clone()?, state.rx_header.clone()?);
        let tx_keys = state.generation(state.tx_generation)?.tx.for_device(state.tx_generation);
        let rx_keys = state.generation(state.rx_generation)?.rx.for_device(state.rx_generation);
        let (tx, rx) = (device.host.new_quic_id(), device.host.new_quic_id());
        let port = device.config.port;
        let routes = cids.values().map(|&id| Route::Id { port, id }).collect();
        device.host.quic_add(Box::new(QuicAdd {
            quic: tx,
            flow,
            direction: Direction::Transmit,
            suite,
            header_key: ours.for_device(),
            keys: tx_keys,
            next_packet_number: state.tx_next,
        }));
        device.host.quic_add(Box::new(QuicAdd {
            quic: rx,
            flow,
            direction: Direction::Receive { routes, reorder: device.config.reorder },
            suite,
            header_key: theirs.for_device(),
            keys: rx_keys,
            next_packet_number: state.rx_next,
        }));
        (self.tx, self.rx) = (Some(tx), Some(rx));
        (self.tx_generation, self.rx_generation) = (state.tx_generation, state.rx_generation);
        state.watch = true;
        device.counters.quic_offloaded += 1;
        // The next generation, so that the peer's update finds it there (RFC 9001, section 6.3).
        self.rekey_rx(device, state, state.rx_generation + 1);
        Some(())
    }

    /// The peer may have moved to another generation of keys: the device gets the one behind it.
    pub(crate) fn follow_rx(&mut self, device: &mut Device<'_>, state: &State) {
        if self.rx.is_some() && state.rx_generation >= self.rx_generation {
            self.rekey_rx(device, state, state.rx_generation + 1);
            device.counters.quic_rekeys += 1;
        }
    }

    /// A batch is to be sealed with keys of that generation: the device has to have it before.
    pub(crate) fn follow_tx(&mut self, device: &mut Device<'_>, shared: &Shared, generation: u64) {
        let Some(quic) = self.tx.filter(|_| generation > self.tx_generation) else { return };
        let state = shared.lock();
        let Some(keys) = state.generation(generation) else { return };
        let keys = keys.tx.for_device(generation);
        device.host.quic_rekey(Box::new(QuicRekey { quic, keys }));
        device.counters.quic_rekeys += 1;
        self.tx_generation = generation;
    }

    fn rekey_rx(&mut self, device: &mut Device<'_>, state: &State, generation: u64) {
        let Some((quic, keys)) = self.rx.zip(state.generation(generation)) else { return };
        let keys = keys.rx.for_device(generation);
        device.host.quic_rekey(Box::new(QuicRekey { quic, keys }));
        self.rx_generation = generation;
    }

    /// Another connection ID leads to the connection, or one less.
    pub(crate) fn route(&self, device: &mut Device<'_>, id: ConnectionId, on: bool) {
        let Some(quic) = self.rx else { return };
        let route = Route::Id { port: device.config.port, id };
        device.host.quic_route(Box::new(QuicRoute { quic, route, on }));
        device.counters.quic_routes += 1;
    }

    /// The device will not do it.
    pub(crate) fn refuse(&mut self, counters: &mut Counters, quic: QuicId, why: Refusal) {
        counters.count_refusal(why);
        self.refused = Some(why);
        self.forget(quic);
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

//! Received datagrams: routed to their connection, to a new connection, or answered without one.
//! Called for the host's notices. Claims of the device about decrypted packets are accepted only if
//! they name the receive context of the connection that gets the packet.

use core::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};

use abi::quic::{QuicConnectionId, QuicId};
use abi::{FlowId, TransmitPart};
use base::Instant;
use bytes::{Bytes, BytesMut};
use host::{Host, UdpReceived, UdpSend};
use quinn_proto::{
    ConnectionEvent, ConnectionHandle, DatagramEvent, EcnCodepoint, Incoming, ServerConfig, Side,
};

use super::{QuicEndpoint, QuicHandle, handshake_data};
use crate::connection::QuicConnection;
use crate::frames::has_retry;
use crate::protection::OneRttShared;
use crate::transmit::unprotected_send;
use crate::version::{self, VersionCheck};

/// Batches of at least this length are copied to reused memory.
const BATCH_BYTES_MIN: usize = 8192;

impl QuicEndpoint {
    pub(super) fn handle_received(&mut self, now: Instant, host: &mut Host, received: UdpReceived) {
        let UdpReceived { tuple, ecn, packet, payload, segment_size, decrypted: opened } = received;
        let mut left = self.copy_batch(packet.as_slice().get(payload).unwrap_or_default());
        host.recycle(packet);
        let remote = SocketAddr::new(tuple.remote.addr, tuple.remote.port);
        let size = if segment_size == 0 { usize::MAX } else { usize::from(segment_size) };
        let mut settled = None;
        let mut numbers = opened.iter().flat_map(|opened| opened.numbers.iter().copied());
        let name = opened.as_ref().map(|opened| opened.quic);
        while !left.is_empty() {
            let datagram = left.split_to(size.min(left.len()));
            let opened = name.zip(numbers.next());
            self.counters.quic_in_datagrams += 1;
            let way = (remote, tuple.local.addr, EcnCodepoint::from_bits(ecn));
            if name.is_some() && opened.is_none() {
                self.counters.quic_in_disagreed += 1;
                continue;
            }
            let index = self.handle_datagram(now, host, way, datagram, opened);
            if settled != index {
                self.settle_if_some(now, host, settled);
                settled = index;
            }
        }
        self.settle_if_some(now, host, settled);
    }

    /// Copies a batch once; quinn-proto takes ownership of the datagrams, which are split off
    /// without further copies. Large batches go to a buffer that is reused as soon as none of their
    /// datagrams is held, as is usual. Short ones get an allocation of their own length, so that
    /// holding them does not pin a large buffer.
    fn copy_batch(&mut self, bytes: &[u8]) -> BytesMut {
        if bytes.len() < BATCH_BYTES_MIN {
            return BytesMut::from(bytes);
        }
        self.batch.reserve(bytes.len());
        self.batch.extend_from_slice(bytes);
        self.batch.split()
    }

    /// Settles the connection whose consecutive datagrams of a batch were handled.
    fn settle_if_some(&mut self, now: Instant, host: &mut Host, index: Option<usize>) {
        if let Some(index) = index {
            self.settle(now, host, index);
        }
    }

    /// Handles a datagram. Returns the index of the connection that took it, which must be settled.
    fn handle_datagram(
        &mut self,
        now: Instant,
        host: &mut Host,
        (remote, local, ecn): (SocketAddr, IpAddr, Option<EcnCodepoint>),
        datagram: BytesMut,
        opened: Option<(QuicId, u64)>,
    ) -> Option<usize> {
        match version::check_version(&datagram) {
            VersionCheck::PassOn => {}
            VersionCheck::Answer(answer) if self.config.tls.is_some() => {
                self.send_version_negotiation(now, host, (remote, local), answer);
                return None;
            }
            VersionCheck::Answer(_) | VersionCheck::Drop => {
                self.counters.quic_in_versions_dropped += 1;
                return None;
            }
        }
        // quinn-proto aborts a handshake for a Retry, which a server cannot authenticate: anyone
        // could abort the handshakes of others. Only version 1 defines this packet type.
        if self.config.tls.is_some() && has_retry(&datagram) {
            self.counters.quic_in_retries_dropped += 1;
            return None;
        }
        let (time, len) = (self.time(now), datagram.len() as u64);
        let mut answer = Vec::new();
        let event = self.inner.handle(time, remote, Some(local), ecn, datagram, &mut answer);
        match event {
            Some(DatagramEvent::ConnectionEvent(quinn, event)) => {
                self.deliver_to_connection(now, host, (quinn, event), len, opened);
                return Some(quinn.0);
            }
            // The device decrypted it for a connection that is gone.
            _ if opened.is_some() => self.counters.quic_in_orphaned += 1,
            Some(DatagramEvent::NewConnection(incoming)) => self.handle_new(now, host, incoming),
            Some(DatagramEvent::Response(transmit)) => {
                self.discard_fresh_cids();
                self.counters.quic_out_datagrams += 1;
                host.udp_send(now, self.socket, unprotected_send(&transmit, Bytes::from(answer)));
            }
            None => {}
        }
        None
    }

    /// Sends a Version Negotiation packet.
    fn send_version_negotiation(
        &mut self,
        now: Instant,
        host: &mut Host,
        (remote, local): (SocketAddr, IpAddr),
        answer: Vec<u8>,
    ) {
        self.counters.quic_versions_negotiated += 1;
        self.counters.quic_out_datagrams += 1;
        let send = UdpSend {
            flow: FlowId::NONE,
            source: Some(local),
            remote: wire::Endpoint { addr: remote.ip(), port: remote.port() },
            ecn: 0,
            segment_size: 0,
            parts: [TransmitPart::Host(Bytes::from(answer))].into_iter().collect(),
            retransmission: false,
            echo: None,
            protect: None,
        };
        host.udp_send(now, self.socket, send);
    }

    /// Passes a datagram to its connection. The caller settles the connection afterwards.
    fn deliver_to_connection(
        &mut self,
        now: Instant,
        host: &mut Host,
        (quinn, event): (ConnectionHandle, ConnectionEvent),
        len: u64,
        opened: Option<(QuicId, u64)>,
    ) {
        self.run_on(now, host, quinn.0, |connection, cx| {
            // Only packets decrypted with this connection's keys are accepted as decrypted.
            let rx = connection.offload.rx();
            if opened.is_some_and(|(quic, _)| rx != Some(quic)) {
                let counter = match rx {
                    Some(_) => &mut cx.counters.quic_in_disagreed,
                    None => &mut cx.counters.quic_in_orphaned,
                };
                *counter += 1;
                return;
            }
            cx.counters.quic_in_opened += u64::from(opened.is_some());
            connection.bytes += len;
            if connection.offload.rx().is_some() {
                connection.shared.set_decrypted(opened.map(|(_, number)| number));
                connection.inner.handle_event(event);
                connection.shared.set_decrypted(None);
            } else {
                connection.inner.handle_event(event);
            }
            connection.apply_packet_effects(cx);
            connection.update_peer_address(cx.counters);
        });
        if let Ok(index) = u32::try_from(quinn.0) {
            self.schedule_flush(index);
        }
    }

    fn handle_new(&mut self, now: Instant, host: &mut Host, incoming: Incoming) {
        let mut answer = Vec::new();
        if self.open_count >= self.config.connections_max {
            self.counters.quic_connections_refused += 1;
            let transmit = self.inner.refuse(incoming, &mut answer);
            self.discard_fresh_cids();
            host.udp_send(now, self.socket, unprotected_send(&transmit, Bytes::from(answer)));
            return;
        }
        if self.handshaking_count >= self.config.handshakes_before_retry && incoming.may_retry() {
            self.counters.quic_retries += 1;
            let retry = self.inner.retry(incoming, &mut answer);
            self.discard_fresh_cids();
            if let Ok(transmit) = retry {
                host.udp_send(now, self.socket, unprotected_send(&transmit, Bytes::from(answer)));
            }
            return;
        }
        let time = self.time(now);
        let server = self.server_config_with_qlog(host.mtu(), &incoming);
        match self.inner.accept(incoming, time, &mut answer, server) {
            Ok((quinn, inner)) => {
                if let Some(handle) = self.insert_connection(host, quinn, inner) {
                    self.settle(now, host, handle.index as usize);
                }
            }
            Err(error) => {
                self.discard_fresh_cids();
                self.counters.quic_handshakes_failed += 1;
                if let Some(transmit) = error.response {
                    host.udp_send(
                        now,
                        self.socket,
                        unprotected_send(&transmit, Bytes::from(answer)),
                    );
                }
            }
        }
    }

    /// Returns a configuration for an accepted connection that writes a qlog; `None` if no qlog is
    /// wanted.
    fn server_config_with_qlog(&self, mtu: u16, incoming: &Incoming) -> Option<Arc<ServerConfig>> {
        let transport = self.transport_with_qlog(mtu, incoming.orig_dst_cid(), Side::Server)?;
        let mut server = ServerConfig::clone(self.server.as_deref()?);
        server.transport_config(transport);
        Some(Arc::new(server))
    }

    /// Adds a new connection. Returns `None` if its TLS session is not ours, which cannot happen.
    pub(super) fn insert_connection(
        &mut self,
        host: &mut Host,
        quinn: ConnectionHandle,
        inner: quinn_proto::Connection,
    ) -> Option<QuicHandle> {
        let index = u32::try_from(quinn.0).ok()?;
        let shared: Arc<OneRttShared> = handshake_data(&inner)?.shared;
        self.serial += 1;
        let handle = QuicHandle { index, serial: self.serial };
        let flow = host.new_flow();
        let mut connection = Box::new(QuicConnection::new(inner, quinn, handle, shared, flow));
        for id in self.take_fresh_cids() {
            connection.cids.insert(connection.cids_issued, id);
            connection.cids_issued += 1;
        }
        self.handles_by_flow.insert(flow, handle);
        if self.connections.len() <= quinn.0 {
            self.connections.resize_with(quinn.0 + 1, || None);
        }
        self.connections[quinn.0] = Some(connection);
        self.open_count += 1;
        self.handshaking_count += 1;
        self.dirty.push_back(index);
        Some(handle)
    }

    /// Discards connection IDs in responses that belong to no connection.
    fn discard_fresh_cids(&self) {
        self.fresh_cids.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn take_fresh_cids(&self) -> Vec<QuicConnectionId> {
        let mut fresh = self.fresh_cids.lock().unwrap_or_else(PoisonError::into_inner);
        fresh.drain(..).filter_map(|id| QuicConnectionId::new(&id)).collect()
    }
}

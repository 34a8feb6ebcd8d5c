//! Downloads by quinn-proto alone: the part of the host's cycles that remains if device, crypto,
//! I/O, host stack and Outboard's own code cost nothing.
//!
//! Two quinn-proto endpoints hand each other their datagrams. Packet and header protection do
//! nothing, as with the offload, and the handshake only exchanges transport parameters. Counted are
//! the calls of quinn-proto, in batches; copies of datagrams between the ends are not. The server
//! writes constant bytes without copying them, the client drops what it reads. Sizes of datagrams,
//! batches and windows are those of the other paths; congestion control is quinn-proto's own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use cli::Failure;
use io::clock::{self, cycles};
use quinn_proto::crypto::{
    self, AeadKey, CryptoError, ExportKeyingMaterialError, HandshakeTokenKey, HeaderKey, HmacKey,
    KeyPair, Keys, PacketKey, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{
    ClientConfig, ConnectError, Connection, ConnectionHandle, ConnectionId, DatagramEvent, Dir,
    Endpoint, EndpointConfig, MtuDiscoveryConfig, ServerConfig, Side, StreamId, TransportConfig,
    TransportError, VarInt,
};

/// Length of tags, samples and signatures.
const TAG_BYTES: usize = 16;
/// Maximum bytes and datagrams of a batch, as of `quic`.
const BATCH_BYTES_MAX: usize = 264 * 1024;
const BATCH_DATAGRAMS_MAX: usize = 45;
/// Flow control windows of a stream and of a connection, as by default in `quic`.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Length of IPv6 and UDP headers.
const IPV6_UDP_BYTES: u16 = 48;
/// Bytes that the server writes at a time.
static CONTENT: [u8; 64 * 1024] = [0; 64 * 1024];
/// One-way delay.
const DELAY: Duration = Duration::from_micros(35);
/// Turns without a datagram after which a run has failed.
const IDLE_TURNS_MAX: u32 = 1000;

/// Size of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuinnTransfer {
    pub(super) connections: u32,
    /// MTU of the link.
    pub(super) mtu: u16,
    /// Bytes before the measurement, and measured.
    pub(super) warm_bytes: u64,
    pub(super) measured_bytes: u64,
}

/// Cost of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QuinnCost {
    /// Bytes of streams that the client received.
    pub(super) bytes: u64,
    /// Datagrams that the server sent.
    pub(super) packets: u64,
    pub(super) server_cycles: u64,
    pub(super) client_cycles: u64,
    /// Time that passed on the virtual clock.
    pub(super) elapsed: Duration,
}

/// Runs a transfer.
///
/// # Errors
/// Reports a connection that fails or stalls.
pub(super) fn measure(transfer: &QuinnTransfer) -> Result<QuinnCost, Failure> {
    let mut pair = QuinnPair::new(transfer);
    pair.connect(transfer.connections)?;
    pair.run_until(transfer.warm_bytes)?;
    let before = pair.cost();
    pair.run_until(before.bytes + transfer.measured_bytes)?;
    let after = pair.cost();
    Ok(QuinnCost {
        bytes: after.bytes - before.bytes,
        packets: after.packets - before.packets,
        server_cycles: after.server_cycles - before.server_cycles,
        client_cycles: after.client_cycles - before.client_cycles,
        elapsed: after.elapsed - before.elapsed,
    })
}

/// A batch of datagrams on its way.
struct Batch {
    bytes: Vec<u8>,
    segment_size: usize,
}

/// One end: an endpoint and its connections.
struct QuinnEnd {
    endpoint: Endpoint,
    /// Connections by handle, each with the stream that carries the content.
    connections: Vec<(Connection, Option<StreamId>)>,
    peer: SocketAddr,
    cycles: u64,
    /// Bytes read from streams.
    bytes: u64,
    packets: u64,
    sent: Vec<Batch>,
    spare: Vec<Vec<u8>>,
    failed: bool,
}

struct QuinnPair {
    epoch: Instant,
    now: Instant,
    client: QuinnEnd,
    server: QuinnEnd,
    client_config: ClientConfig,
}

impl QuinnPair {
    fn new(transfer: &QuinnTransfer) -> Self {
        let epoch = clock::std_epoch();
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(transfer.mtu.saturating_sub(IPV6_UDP_BYTES));
        let mut transport = TransportConfig::default();
        transport
            .mtu_discovery_config(Some(discovery))
            .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
            .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
            .send_window(u64::from(CONNECTION_WINDOW));
        let transport = Arc::new(transport);
        let mut server = ServerConfig::new(Arc::new(NullCrypto), Arc::new(NullCrypto));
        server.transport_config(Arc::clone(&transport));
        let mut client_config = ClientConfig::new(Arc::new(NullCrypto));
        client_config.transport_config(transport);
        let addr = |last| SocketAddr::from((Ipv4Addr::new(10, 0, 0, last), 443));
        let client = QuinnEnd::new(addr(1), None);
        let server = QuinnEnd::new(addr(2), Some(Arc::new(server)));
        Self { epoch, now: epoch, client, server, client_config }
    }

    fn connect(&mut self, count: u32) -> Result<(), Failure> {
        for _ in 0..count {
            let (to, config) = (self.client.peer, self.client_config.clone());
            let made = self.client.endpoint.connect(self.now, config, to, "server");
            let (_, connection) =
                made.map_err(|e| Failure::System(format!("cannot connect: {e}")))?;
            self.client.connections.push((connection, None));
        }
        Ok(())
    }

    /// Runs until the client has received this many bytes.
    fn run_until(&mut self, bytes: u64) -> Result<(), Failure> {
        let mut idle_turns = 0;
        while self.client.bytes < bytes {
            let arrived = core::mem::take(&mut self.client.sent);
            self.server.turn(self.now, arrived, &mut self.client.spare);
            self.now += DELAY;
            let arrived = core::mem::take(&mut self.server.sent);
            idle_turns = if arrived.is_empty() { idle_turns + 1 } else { 0 };
            self.client.turn(self.now, arrived, &mut self.server.spare);
            self.now += DELAY;
            if idle_turns > IDLE_TURNS_MAX || self.client.failed || self.server.failed {
                let what = "a transfer of quinn-proto alone has failed";
                return Err(Failure::System(what.to_owned()));
            }
        }
        Ok(())
    }

    fn cost(&self) -> QuinnCost {
        QuinnCost {
            bytes: self.client.bytes,
            packets: self.server.packets,
            server_cycles: self.server.cycles,
            client_cycles: self.client.cycles,
            elapsed: self.now - self.epoch,
        }
    }
}

impl QuinnEnd {
    fn new(peer: SocketAddr, server: Option<Arc<ServerConfig>>) -> Self {
        let mut config = EndpointConfig::new(Arc::new(NullCrypto));
        // The largest value that quinn-proto accepts.
        let _ = config.max_udp_payload_size(65_527);
        config.rng_seed(Some([7; 32]));
        Self {
            endpoint: Endpoint::new(Arc::new(config), server, true, None),
            connections: Vec::new(),
            peer,
            cycles: 0,
            bytes: 0,
            packets: 0,
            sent: Vec::new(),
            spare: Vec::new(),
            failed: false,
        }
    }

    /// Handles the datagrams that arrived, and sends all that the connections permit. `spare`
    /// receives the buffers of the batches.
    fn turn(&mut self, now: Instant, arrived: Vec<Batch>, spare: &mut Vec<Vec<u8>>) {
        let mut datagrams = Vec::new();
        for Batch { mut bytes, segment_size } in arrived {
            let mut left = BytesMut::from(&bytes[..]);
            while !left.is_empty() {
                datagrams.push(left.split_to(segment_size.min(left.len())));
            }
            bytes.clear();
            spare.push(bytes);
        }
        let from = cycles();
        for datagram in datagrams {
            self.handle(now, datagram);
        }
        for index in 0..self.connections.len() {
            self.run(now, index);
        }
        self.cycles += cycles() - from;
        for index in 0..self.connections.len() {
            self.transmit(now, index);
        }
    }

    fn handle(&mut self, now: Instant, datagram: BytesMut) {
        let mut answer = Vec::new();
        match self.endpoint.handle(now, self.peer, None, None, datagram, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(ConnectionHandle(index), event)) => {
                if let Some((connection, _)) = self.connections.get_mut(index) {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                match self.endpoint.accept(incoming, now, &mut answer, None) {
                    Ok((_, connection)) => self.connections.push((connection, None)),
                    Err(_) => self.failed = true,
                }
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    /// Handles timers and events of a connection, and reads and writes its stream.
    fn run(&mut self, now: Instant, index: usize) {
        let Some((connection, stream)) = self.connections.get_mut(index) else { return };
        if connection.poll_timeout().is_some_and(|at| at <= now) {
            connection.handle_timeout(now);
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(ConnectionHandle(index), event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            self.failed |= matches!(event, quinn_proto::Event::ConnectionLost { .. });
        }
        if connection.is_handshaking() {
            return;
        }
        if connection.side().is_server() {
            let id = stream.or_else(|| connection.streams().open(Dir::Uni));
            *stream = id;
            let Some(id) = id else { return };
            let chunk = || [Bytes::from_static(&CONTENT)];
            while connection.send_stream(id).write_chunks(&mut chunk()).is_ok() {}
            return;
        }
        let id = stream.or_else(|| connection.streams().accept(Dir::Uni));
        *stream = id;
        let Some(id) = id else { return };
        let mut receive = connection.recv_stream(id);
        let Ok(mut chunks) = receive.read(true) else { return };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            self.bytes += chunk.bytes.len() as u64;
        }
        let _ = chunks.finalize();
    }

    /// Sends the datagrams that a connection may send now.
    fn transmit(&mut self, now: Instant, index: usize) {
        let Some((connection, _)) = self.connections.get_mut(index) else { return };
        let mtu = usize::from(connection.current_mtu()).max(1);
        let most = (BATCH_BYTES_MAX / mtu).clamp(1, BATCH_DATAGRAMS_MAX);
        loop {
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.reserve(mtu * most);
            let from = cycles();
            let made = connection.poll_transmit(now, most, &mut bytes);
            self.cycles += cycles() - from;
            let Some(transmit) = made else {
                bytes.clear();
                return self.spare.push(bytes);
            };
            let segment_size = transmit.segment_size.unwrap_or(transmit.size).max(1);
            self.packets += bytes.len().div_ceil(segment_size) as u64;
            self.sent.push(Batch { bytes, segment_size });
        }
    }
}

/// Crypto that does nothing.
struct NullCrypto;

fn null_keys() -> Keys {
    Keys {
        header: KeyPair { local: Box::new(NullCrypto), remote: Box::new(NullCrypto) },
        packet: KeyPair { local: Box::new(NullCrypto), remote: Box::new(NullCrypto) },
    }
}

impl PacketKey for NullCrypto {
    fn encrypt(&self, _: u64, _: &mut [u8], _: usize) {}

    fn decrypt(&self, _: u64, _: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let len = payload.len().checked_sub(TAG_BYTES).ok_or(CryptoError)?;
        payload.truncate(len);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }

    fn integrity_limit(&self) -> u64 {
        u64::MAX
    }
}

impl HeaderKey for NullCrypto {
    fn decrypt(&self, _: usize, _: &mut [u8]) {}

    fn encrypt(&self, _: usize, _: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        TAG_BYTES
    }
}

impl HmacKey for NullCrypto {
    fn sign(&self, data: &[u8], out: &mut [u8]) {
        // Reset tokens must differ between connections.
        out.iter_mut().zip(data.iter().cycle()).for_each(|(out, byte)| *out = *byte);
    }

    fn signature_len(&self) -> usize {
        2 * TAG_BYTES
    }

    fn verify(&self, _: &[u8], _: &[u8]) -> Result<(), CryptoError> {
        Ok(())
    }
}

impl HandshakeTokenKey for NullCrypto {
    fn aead_from_hkdf(&self, _: &[u8]) -> Box<dyn AeadKey> {
        Box::new(Self)
    }
}

impl AeadKey for NullCrypto {
    fn seal(&self, _: &mut Vec<u8>, _: &[u8]) -> Result<(), CryptoError> {
        Ok(())
    }

    fn open<'a>(&self, data: &'a mut [u8], _: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        Ok(data)
    }
}

impl crypto::ClientConfig for NullCrypto {
    fn start_session(
        self: Arc<Self>,
        _: u32,
        _: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(NullSession::boxed(Side::Client, params))
    }
}

impl crypto::ServerConfig for NullCrypto {
    fn initial_keys(&self, _: u32, _: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        Ok(null_keys())
    }

    fn retry_tag(&self, _: u32, _: &ConnectionId, _: &[u8]) -> [u8; 16] {
        [0; 16]
    }

    fn start_session(self: Arc<Self>, _: u32, params: &TransportParameters) -> Box<dyn Session> {
        NullSession::boxed(Side::Server, params)
    }
}

/// A handshake of three messages: the transport parameters of either end in Initial packets, and a
/// byte of either end in Handshake packets.
struct NullSession {
    side: Side,
    ours: Vec<u8>,
    theirs: Vec<u8>,
    /// Messages read and written.
    read: u32,
    written: u32,
}

impl NullSession {
    fn boxed(side: Side, params: &TransportParameters) -> Box<dyn Session> {
        let mut ours = Vec::new();
        params.write(&mut ours);
        Box::new(Self { side, ours, theirs: Vec::new(), read: 0, written: 0 })
    }
}

impl Session for NullSession {
    fn initial_keys(&self, _: &ConnectionId, _: Side) -> Keys {
        null_keys()
    }

    fn handshake_data(&self) -> Option<Box<dyn std::any::Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn std::any::Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.read < 2
    }

    fn read_handshake(&mut self, message: &[u8]) -> Result<bool, TransportError> {
        if self.read == 0 {
            self.theirs = message.to_vec();
        }
        self.read += 1;
        Ok(false)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        if self.theirs.is_empty() {
            return Ok(None);
        }
        Ok(Some(TransportParameters::read(self.side, &mut &self.theirs[..])?))
    }

    fn write_handshake(&mut self, into: &mut Vec<u8>) -> Option<Keys> {
        let client = self.side.is_client();
        // The client's own keys follow the server's messages of the same level.
        match self.written {
            0 => {
                into.extend_from_slice(&self.ours);
                self.written = if client { 1 } else { 2 };
                (!client).then(null_keys)
            }
            1 if self.read >= 1 => {
                self.written = 2;
                Some(null_keys())
            }
            2 if !client || self.read >= 2 => {
                into.push(1);
                self.written = 3;
                Some(null_keys())
            }
            _ => None,
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        Some(null_keys().packet)
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        false
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(mtu: u16) -> QuinnCost {
        let (connections, warm_bytes, measured_bytes) = (2, 2_000_000, 4_000_000);
        measure(&QuinnTransfer { connections, mtu, warm_bytes, measured_bytes })
            .expect("a transfer")
    }

    #[test]
    fn datagrams_grow_with_the_mtu() {
        let (ethernet, jumbo) = (transfer(1500), transfer(9000));
        for cost in [ethernet, jumbo] {
            assert!(cost.bytes >= 4_000_000 && cost.server_cycles > 0 && cost.client_cycles > 0);
        }
        let bytes_per_packet = |cost: QuinnCost| cost.bytes / cost.packets;
        assert!((1350..1452).contains(&bytes_per_packet(ethernet)), "{ethernet:?}");
        assert!((7000..8952).contains(&bytes_per_packet(jumbo)), "{jumbo:?}");
    }
}

//! Two hosts with their devices, and a link that loses, delays and duplicates frames as the
//! fuzzer's input says. The server is under test; the client only sends bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use abi::Refusal;
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::{Application, Cidr, Host, ListenConfig, Notice, SocketId};
use nic::{DecompressConfig, DeviceConfig, L5oConfig};
use testkit::{LinkDestination, LinkRule, MemDisk, PLAIN_LINK, TestMachine, TwoMachineNetwork};
use wire::Endpoint;

use crate::input::FuzzInput;

pub(crate) const PORT: u16 = 4420;
/// Path of the only file.
pub(crate) const FILE: &str = "disk";
const FILE_BYTES: usize = 64 << 10;
/// Bound of the turns of a conversation. Reaching it is no failure.
const TURNS_MAX: usize = 10_000;

fn machine(number: u8, offload: bool) -> TestMachine<MemDisk> {
    let mut device = DeviceConfig::new([2, 0, 0, 0, 0, number]);
    device.l5o = offload.then(|| L5oConfig::new(Arc::new(Provider)));
    device.decompress = offload.then(DecompressConfig::default);
    let addr = Cidr { addr: [10, 77, 0, number].into(), prefix_len: 24 };
    let file_offload = Err(Refusal::Disabled);
    let config =
        host::HostConfig { addrs: vec![addr], file_offload, ..host::HostConfig::default() };
    let mut disk = MemDisk::default();
    disk.insert(FILE, vec![0; FILE_BYTES], 1);
    TestMachine::new(config, device, PLAIN_LINK, number.into(), disk)
}

/// An application under test.
pub(crate) trait FuzzSubject: Application {
    /// Returns whether the peer may send its next piece.
    fn is_ready(&self) -> bool {
        true
    }
}

/// The peer of the application under test. It discards what it receives.
#[derive(Default)]
pub(crate) struct RawBytesPeer {
    /// All connections so far. The peer sends on the last one.
    sockets: Vec<SocketId>,
}

impl Application for RawBytesPeer {
    fn handle_notice(&mut self, _: Instant, _: &mut Host, notice: Notice) {
        if let Notice::Accepted(_, socket) = notice {
            self.sockets.push(socket);
        }
    }

    fn advance(&mut self, _: Instant, host: &mut Host) -> bool {
        for &socket in &self.sockets {
            while host.read(socket, &mut [0; 4096]) > 0 {}
        }
        false
    }
}

/// The network, and the bytes that the peer sends.
pub(crate) struct FuzzNetwork<S> {
    /// The talker is always the client and the subject the server, regardless of which connects.
    pub(crate) net: TwoMachineNetwork<RawBytesPeer, S>,
    /// Unsent pieces of each connection. The next piece is sent when the network is idle.
    unsent: VecDeque<VecDeque<Vec<u8>>>,
    /// True once a whole piece was sent.
    sent_first: bool,
    /// True while the effects of the last piece are awaited.
    waits: bool,
    /// True if the peer opens the connections.
    connects: bool,
}

impl<S: FuzzSubject> FuzzNetwork<S> {
    /// Creates the network. The peer sends each element of `talks` on a connection of its own; all
    /// pieces after the very first wait until the subject is ready. If `connects`, the peer opens
    /// the connections, one at a time; otherwise `make` has the subject connect.
    pub(crate) fn new(
        offload: bool,
        connects: bool,
        talks: impl IntoIterator<Item = VecDeque<Vec<u8>>>,
        fates: FuzzInput<'_>,
        make: impl FnOnce(&mut Host, Instant, Endpoint) -> S,
    ) -> Self {
        let (mut node, mut peer) = (machine(1, offload), machine(2, false));
        let now = Instant::from_millis(1);
        if !connects {
            let _ = peer.host().listen(ListenConfig { addr: None, port: PORT, backlog: 4 });
        }
        let to = Endpoint { addr: [10, 77, 0, 2].into(), port: PORT };
        let subject = make(node.host(), now, to);
        let mut network =
            TwoMachineNetwork::new(now, (peer, RawBytesPeer::default()), (node, subject));
        network.link = link(fates);
        let unsent = talks.into_iter().collect();
        let mut net = Self { net: network, unsent, sent_first: false, waits: false, connects };
        net.settle();
        net.connect();
        net
    }

    /// Opens a connection if the peer is the one that connects and it has bytes left to send.
    fn connect(&mut self) {
        if self.connects && !self.unsent.is_empty() {
            let to = Endpoint { addr: [10, 77, 0, 1].into(), port: PORT };
            let socket = self.net.client.machine.host().connect(self.net.now, to);
            self.net.client.app.sockets.extend(socket);
        }
    }

    /// Runs until nothing is left to happen, 20 s have passed, or [`TURNS_MAX`] is reached.
    pub(crate) fn run(&mut self) {
        let end = self.net.now + Duration::from_secs(20);
        for _ in 0..TURNS_MAX {
            if self.settle() || core::mem::take(&mut self.waits) {
                continue;
            }
            if !self.net.advance(end) {
                return;
            }
        }
    }

    /// Runs one turn; returns whether anything has happened.
    fn settle(&mut self) -> bool {
        let spoke = self.send_next_piece();
        self.net.turn() || spoke
    }

    /// Sends more of the peer's current piece; returns whether bytes were sent.
    fn send_next_piece(&mut self) -> bool {
        let now = self.net.now;
        let socket = self.net.client.app.sockets.last().copied();
        let (Some(socket), Some(pieces)) = (socket, self.unsent.front_mut()) else {
            return false;
        };
        let host = self.net.client.machine.host();
        // Bytes sent before the connection is established would be lost by the shutdown.
        if self.waits || !host.readiness(socket).writable {
            return false;
        }
        if self.sent_first && !self.net.server.app.is_ready() {
            return false;
        }
        let Some(piece) = pieces.front_mut() else { return false };
        let taken = host.send(now, socket, Bytes::copy_from_slice(piece)).unwrap_or(0);
        piece.drain(..taken);
        if !piece.is_empty() {
            return taken > 0;
        }
        pieces.pop_front();
        (self.sent_first, self.waits) = (true, true);
        if pieces.is_empty() {
            self.unsent.pop_front();
            self.connect();
        }
        if self.unsent.is_empty() {
            // Shutdown rather than close: the peer still reads, since a reset would come at a time
            // that depends on the run.
            let sockets = self.net.client.app.sockets.clone();
            sockets.iter().for_each(|&socket| self.net.client.host().shutdown(now, socket));
        }
        true
    }
}

/// Returns a rule that loses, delays or duplicates frames to the subject, one byte of `fates` for
/// each frame.
fn link(fates: FuzzInput<'_>) -> LinkRule {
    let mut fates: VecDeque<u8> = fates.0.iter().copied().collect();
    Box::new(move |_, towards, frame| {
        let fate = match towards {
            LinkDestination::Client => 0,
            LinkDestination::Server => fates.pop_front().unwrap_or(0) % 8,
        };
        match fate {
            1 => vec![],
            2 => vec![(Duration::from_nanos(1), frame)],
            3 => vec![(Duration::ZERO, frame.clone()), (Duration::ZERO, frame)],
            _ => vec![(Duration::ZERO, frame)],
        }
    })
}

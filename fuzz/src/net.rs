//! Two hosts with their devices, and a wire that loses and swaps frames as inputs choose. One host
//! is what is tested; the other only sends bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use abi::Refusal;
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::{Application, Cidr, Host, Listen, Notice, SocketId};
use nic::{DeviceConfig, L5oConfig};
use testkit::{LinkRule, Machine, MemDisk, Network, PLAIN_LINK, Towards};
use wire::Endpoint;

use crate::input::Input;

pub(crate) const PORT: u16 = 4420;
/// Path of the only file, and its bytes.
pub(crate) const FILE: &str = "disk";
const FILE_BYTES: usize = 64 << 10;
/// Turns after which a conversation is over: a bound, and no judgement.
const TURNS_MAX: usize = 10_000;

fn machine(number: u8, offload: bool) -> Machine<MemDisk> {
    let mut device = DeviceConfig::new([2, 0, 0, 0, 0, number]);
    device.l5o = offload.then(|| L5oConfig::new(Arc::new(Provider)));
    let addr = Cidr { addr: [10, 77, 0, number].into(), prefix_len: 24 };
    let file_offload = Err(Refusal::Disabled);
    let config = host::Config { addrs: vec![addr], file_offload, ..host::Config::default() };
    let mut disk = MemDisk::default();
    disk.put(FILE, vec![0; FILE_BYTES], 1);
    Machine::new(config, device, PLAIN_LINK, number.into(), disk)
}

/// An application that is tested.
pub(crate) trait Subject: Application {
    /// Bytes may be sent to it.
    fn is_ready(&self) -> bool {
        true
    }
}

/// The other end, which only sends bytes.
#[derive(Default)]
pub(crate) struct Talker {
    /// The connections that there are, the last of which it sends on.
    sockets: Vec<SocketId>,
}

impl Application for Talker {
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

/// Both ends.
pub(crate) struct Net<S> {
    /// The talker is the client, whoever connects, and the subject the server.
    pub(crate) net: Network<Talker, S>,
    /// What it sends on each connection that has not been sent: a piece, and the next when nothing
    /// moves.
    unsent: VecDeque<VecDeque<Vec<u8>>>,
    /// A piece was sent.
    spoke: bool,
    /// What comes of it is awaited.
    waits: bool,
    connects: bool,
}

impl<S: Subject> Net<S> {
    /// A peer that sends the pieces of `talks` on a connection each, those after the first when the
    /// subject is ready. `connects`: it is the peer that opens connections, one after the other, or
    /// else the subject does, by what `make` does.
    pub(crate) fn new(
        offload: bool,
        connects: bool,
        talks: impl IntoIterator<Item = VecDeque<Vec<u8>>>,
        fates: Input<'_>,
        make: impl FnOnce(&mut Host, Instant, Endpoint) -> S,
    ) -> Self {
        let (mut node, mut peer) = (machine(1, offload), machine(2, false));
        let now = Instant::from_millis(1);
        if !connects {
            let _ = peer.host().listen(Listen { addr: None, port: PORT, backlog: 4 });
        }
        let to = Endpoint { addr: [10, 77, 0, 2].into(), port: PORT };
        let subject = make(node.host(), now, to);
        let mut network = Network::new(now, (peer, Talker::default()), (node, subject));
        network.link = link(fates);
        let unsent = talks.into_iter().collect();
        let mut net = Self { net: network, unsent, spoke: false, waits: false, connects };
        net.settle();
        net.connect();
        net
    }

    /// The peer opens a connection, if it is to and has something to send on it.
    fn connect(&mut self) {
        if self.connects && !self.unsent.is_empty() {
            let to = Endpoint { addr: [10, 77, 0, 1].into(), port: PORT };
            let socket = self.net.client.machine.host().connect(self.net.now, to);
            self.net.client.app.sockets.extend(socket);
        }
    }

    /// Everything until nothing is left to happen, or it has been long enough.
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

    /// A turn; says whether anything has happened.
    fn settle(&mut self) -> bool {
        let spoke = self.speak();
        self.net.turn() || spoke
    }

    /// The peer sends what it has.
    fn speak(&mut self) -> bool {
        let now = self.net.now;
        let socket = self.net.client.app.sockets.last().copied();
        let (Some(socket), Some(pieces)) = (socket, self.unsent.front_mut()) else {
            return false;
        };
        let host = self.net.client.machine.host();
        // What is not open yet would be forgotten with the shutdown.
        if self.waits || !host.readiness(socket).writable {
            return false;
        }
        if self.spoke && !self.net.server.app.is_ready() {
            return false;
        }
        let Some(piece) = pieces.front_mut() else { return false };
        let taken = host.send(now, socket, Bytes::copy_from_slice(piece)).unwrap_or(0);
        piece.drain(..taken);
        if !piece.is_empty() {
            return taken > 0;
        }
        pieces.pop_front();
        (self.spoke, self.waits) = (true, true);
        if pieces.is_empty() {
            self.unsent.pop_front();
            self.connect();
        }
        if self.unsent.is_empty() {
            // It reads on: a reset would come at a time of its own.
            let sockets = self.net.client.app.sockets.clone();
            sockets.iter().for_each(|&socket| self.net.client.host().shutdown(now, socket));
        }
        true
    }
}

/// Frames to the subject: as they are, after others, twice, or never, as inputs say.
fn link(fates: Input<'_>) -> LinkRule {
    let mut fates: VecDeque<u8> = fates.0.iter().copied().collect();
    Box::new(move |_, towards, frame| {
        let fate = match towards {
            Towards::Client => 0,
            Towards::Server => fates.pop_front().unwrap_or(0) % 8,
        };
        match fate {
            1 => vec![],
            2 => vec![(Duration::from_nanos(1), frame)],
            3 => vec![(Duration::ZERO, frame.clone()), (Duration::ZERO, frame)],
            _ => vec![(Duration::ZERO, frame)],
        }
    })
}

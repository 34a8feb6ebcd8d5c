//! Two hosts with their devices, and a wire that loses and swaps frames as inputs choose. One host
//! is what is tested; the other only sends bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use abi::disk::{DiskCompletion, DiskFile, DiskRequest};
use abi::port::{RxFrame, WireCaps};
use abi::{Checksum, FileFault, FileKind, FileStat, Refusal};
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::{Cidr, Host, Listen, Notice, SocketId};
use nic::{Device, DeviceConfig, L5oConfig};
use wire::Endpoint;

use crate::input::Input;

const WIRE: WireCaps =
    WireCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu: 1500 };
pub(crate) const PORT: u16 = 4420;
/// Bytes of the only file.
const FILE_BYTES: usize = 64 << 10;
/// Turns after which a conversation is over: a bound, and no judgement.
const TURNS_MAX: usize = 2000;

/// A host with its device, and a disk with one file.
pub(crate) struct Node {
    pub(crate) host: Host,
    device: Device,
    file: Vec<u8>,
}

impl Node {
    fn new(number: u8, offload: bool) -> Self {
        let mut config = DeviceConfig::new([2, 0, 0, 0, 0, number]);
        config.l5o = offload.then(|| L5oConfig::new(Arc::new(Provider)));
        let device = Device::new(config, WIRE);
        let addr = Cidr { addr: [10, 77, 0, number].into(), prefix_len: 24 };
        let file_offload = Err(Refusal::Disabled);
        let config = host::Config { addrs: vec![addr], file_offload, ..host::Config::default() };
        let host = Host::new(config, &device.capabilities(), number.into());
        Self { host, device, file: vec![0; FILE_BYTES] }
    }

    /// Moves what crosses between host, device and disk until nothing does; gives the frames.
    fn run(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let mut moved = false;
            while let Some(op) = self.host.poll_op(now) {
                self.device.handle_op(now, 0, op);
                moved = true;
            }
            while let Some(frame) = self.device.poll_frame(now) {
                let mut bytes = vec![0; frame.len()];
                frame.copy_to(&mut bytes);
                frames.push(bytes);
                moved = true;
            }
            while let Some((_, event)) = self.device.poll_event() {
                self.host.handle_event(now, event);
                moved = true;
            }
            while let Some(packet) = self.host.poll_recycle() {
                self.device.pool().put(packet);
            }
            while let Some(request) = self.host.poll_disk() {
                let done = self.answer(request);
                done.into_iter().for_each(|done| self.host.handle_disk(now, done));
                moved = true;
            }
            if !moved {
                return frames;
            }
        }
    }

    fn answer(&mut self, request: DiskRequest) -> Option<DiskCompletion> {
        let size = self.file.len() as u64;
        let (modified_s, modified_ns, kind) = (1, 0, FileKind::Regular);
        let stat = FileStat { kind, size, modified_s, modified_ns, version: 1 };
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(FILE_BYTES);
        Some(match request {
            DiskRequest::Open { id, .. } => {
                DiskCompletion::Opened { id, result: Ok((DiskFile(0), stat)) }
            }
            DiskRequest::Read { id, offset, mut buf, .. } => {
                let from = &self.file[at(offset)..];
                let len = from.len().min(buf.as_slice().len());
                buf.as_mut_slice()[..len].copy_from_slice(&from[..len]);
                let result = Ok((u32::try_from(len).unwrap_or(0), stat));
                DiskCompletion::Read { id, buf, result }
            }
            DiskRequest::Write { id, offset, buf, len, .. } => {
                let from = &buf.as_slice()[..len as usize];
                let room = self.file.get_mut(at(offset)..at(offset) + from.len());
                let result = room.map(|room| room.copy_from_slice(from)).ok_or(FileFault::Io);
                DiskCompletion::Written { id, buf, result }
            }
            DiskRequest::Flush { id, .. } => DiskCompletion::Flushed { id, result: Ok(()) },
            DiskRequest::Zero { id, offset, len, .. } => {
                let end = offset.saturating_add(len);
                assert!(end <= size, "a namespace ends at {size}, and not at {end}");
                self.file[at(offset)..at(end)].fill(0);
                DiskCompletion::Zeroed { id, result: Ok(()) }
            }
            DiskRequest::Close { .. } => return None,
        })
    }

    fn receive(&mut self, now: Instant, frame: &[u8]) {
        let Some(packet) = self.device.pool().copy(frame) else { return };
        let checksum = Checksum::Unchecked;
        self.device.handle_frame(now, RxFrame { packet, checksum, segment_size: 0 });
    }

    fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        self.host.poll_timeout().into_iter().chain(self.device.poll_timeout(now)).min()
    }
}

/// What is tested, over the host of a node.
pub(crate) trait Subject {
    /// Takes a notice.
    fn notice(&mut self, host: &mut Host, now: Instant, notice: Notice);
    /// When it has to be called again, and the call.
    fn poll_timeout(&self) -> Option<Instant>;
    /// That time has come.
    fn timeout(&mut self, host: &mut Host, now: Instant);
    /// Bytes may be sent to it.
    fn is_ready(&self) -> bool {
        true
    }
}

/// Both ends, and what is on its way.
pub(crate) struct Net<'a, S> {
    pub(crate) now: Instant,
    pub(crate) node: Node,
    pub(crate) subject: S,
    peer: Node,
    /// The connections that there are, the last of which the peer sends on.
    sockets: Vec<SocketId>,
    /// What it sends on each that has not been sent: a piece, and the next when nothing moves.
    unsent: VecDeque<VecDeque<Vec<u8>>>,
    /// A piece was sent.
    spoke: bool,
    /// What comes of it is awaited.
    waits: bool,
    connects: bool,
    /// What happens to frames, one after the other.
    fates: Input<'a>,
}

impl<'a, S: Subject> Net<'a, S> {
    /// A peer that sends the pieces of `talks` on a connection each, those after the first when the
    /// subject is ready. `connects`: it is the peer that opens connections, one after the other, or
    /// else the subject does, by what `make` does.
    pub(crate) fn new(
        offload: bool,
        connects: bool,
        talks: impl IntoIterator<Item = VecDeque<Vec<u8>>>,
        fates: Input<'a>,
        make: impl FnOnce(&mut Host, Instant, Endpoint) -> S,
    ) -> Self {
        let (mut node, mut peer) = (Node::new(1, offload), Node::new(2, false));
        let now = Instant::from_millis(1);
        let at = |last: u8| Endpoint { addr: [10, 77, 0, last].into(), port: PORT };
        if !connects {
            let _ = peer.host.listen(Listen { addr: None, port: PORT, backlog: 4 });
        }
        let subject = make(&mut node.host, now, at(2));
        let (sockets, unsent) = (Vec::new(), talks.into_iter().collect());
        let (spoke, waits) = (false, false);
        let mut net =
            Self { now, node, subject, peer, sockets, unsent, spoke, waits, connects, fates };
        net.settle();
        net.connect();
        net
    }

    /// The peer opens a connection, if it is to and has something to send on it.
    fn connect(&mut self) {
        if self.connects && !self.unsent.is_empty() {
            let to = Endpoint { addr: [10, 77, 0, 1].into(), port: PORT };
            self.sockets.extend(self.peer.host.connect(self.now, to));
        }
    }

    /// Everything until nothing is left to happen, or it has been long enough.
    pub(crate) fn run(&mut self) {
        let end = self.now + Duration::from_secs(20);
        for _ in 0..TURNS_MAX {
            if self.settle() || core::mem::take(&mut self.waits) {
                continue;
            }
            let due = [
                self.node.poll_timeout(self.now),
                self.peer.poll_timeout(self.now),
                self.subject.poll_timeout(),
            ];
            let Some(next) = due.into_iter().flatten().min().filter(|at| *at < end) else { return };
            self.now = next.max(self.now + Duration::from_micros(10));
            self.node.host.handle_timeout(self.now);
            self.peer.host.handle_timeout(self.now);
            self.subject.timeout(&mut self.node.host, self.now);
        }
    }

    /// A turn; says whether anything has happened.
    fn settle(&mut self) -> bool {
        let mut moved = false;
        while let Some(notice) = self.node.host.poll_notice() {
            self.subject.notice(&mut self.node.host, self.now, notice);
            moved = true;
        }
        moved |= self.speak();
        let down = self.node.run(self.now);
        let up = self.peer.run(self.now);
        moved |= !down.is_empty() || !up.is_empty();
        down.iter().for_each(|frame| self.peer.receive(self.now, frame));
        self.deliver(up);
        moved
    }

    /// The peer reads what there is, and sends what it has.
    fn speak(&mut self) -> bool {
        let host = &mut self.peer.host;
        while let Some(notice) = host.poll_notice() {
            if let Notice::Accepted(_, socket) = notice {
                self.sockets.push(socket);
            }
        }
        for &socket in &self.sockets {
            while host.read(socket, &mut [0; 4096]) > 0 {}
        }
        let (Some(&socket), Some(pieces)) = (self.sockets.last(), self.unsent.front_mut()) else {
            return false;
        };
        // What is not open yet would be forgotten with the shutdown.
        if self.waits || !host.readiness(socket).writable {
            return false;
        }
        if self.spoke && !self.subject.is_ready() {
            return false;
        }
        let Some(piece) = pieces.front_mut() else { return false };
        let taken = host.send(socket, Bytes::copy_from_slice(piece)).unwrap_or(0);
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
            self.sockets.iter().for_each(|&socket| self.peer.host.shutdown(socket));
        }
        true
    }

    /// Frames to the subject: as they are, after the next one, twice, or never.
    fn deliver(&mut self, frames: Vec<Vec<u8>>) {
        let mut late = None;
        for frame in frames {
            match self.fates.byte() % 8 {
                1 => continue,
                2 => {
                    let before = late.replace(frame);
                    before.into_iter().for_each(|frame| self.node.receive(self.now, &frame));
                    continue;
                }
                3 => self.node.receive(self.now, &frame),
                _ => {}
            }
            self.node.receive(self.now, &frame);
            let late = late.take();
            late.into_iter().for_each(|frame| self.node.receive(self.now, &frame));
        }
        late.into_iter().for_each(|frame| self.node.receive(self.now, &frame));
    }
}

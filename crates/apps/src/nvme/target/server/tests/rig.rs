//! Test harness: a target without TCP, scripted initiators, and an in-memory disk that executes
//! operations on demand.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::{FileExtent, FileFault, FileId, FileKind, FileStat};
use base::{Duration, Instant};
use bytes::Bytes;
use host::nvme::{NvmeDataMatch, NvmeDataSource, NvmeTransportEnd, NvmeTransportEvent};
use host::{DiskToken, DiskUser, SocketError};
use patterns::PatternSet;
use wire::nvme::command::{NvmeCommand, NvmeCompletion, Sgl};
use wire::nvme::fabrics::{
    CNTLID_DYNAMIC, ConnectCommand, ConnectData, ControllerConfiguration, FabricsCommand,
    PropertySet, cattr, property,
};
use wire::nvme::nqn::Nqn;
use wire::nvme::pdu::PduFault;
use wire::nvme::status::NvmeStatus;

use crate::nvme::channel::{NvmePskIdentity, SecureChannelError};
use crate::nvme::target::backend::{DiskChangeDone, TargetDisk, TargetTransport};
use crate::nvme::target::server::NvmeTargetServer;
use crate::nvme::target::{NamespaceConfig, NvmeTargetConfig, SubsystemConfig};

/// The only user of the disk.
const DISK_USER: DiskUser = DiskUser(0);
/// Block size of every namespace, in bytes.
pub(super) const BLOCK: u64 = 4096;
pub(super) const BLOCK_BYTES: usize = 4096;
/// Number of blocks of a namespace.
pub(super) const BLOCKS: u64 = 64;
/// File size in bytes: [`BLOCKS`] blocks and a part of one more.
pub(super) const FILE_BYTES: usize = 64 * BLOCK_BYTES + 100;

/// PDU or action that the target requested of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Response(NvmeCompletion),
    /// Data of a read; `success` if no response follows.
    Data {
        cid: u16,
        bytes: Vec<u8>,
        success: bool,
    },
    R2t {
        cid: u16,
        tag: u16,
        len: u32,
    },
    Terminated(PduFault),
    /// The connection was ended, gently or by a reset.
    End(bool),
}

/// State shared by the two ends of a link.
#[derive(Debug, Default)]
pub(super) struct FakeTransportState {
    pub(super) incoming: VecDeque<NvmeTransportEvent>,
    pub(super) sent: Vec<Sent>,
    mark: u64,
    /// Position up to which the peer has acknowledged.
    acknowledged: u64,
    /// Error of the socket.
    pub(super) error: Option<SocketError>,
    /// Unacknowledged data from files: position, extent, and the bytes when they were sent.
    in_flight: Vec<(u64, FileExtent, Vec<u8>)>,
    expected: BTreeMap<u16, (u32, AlignedBuf)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FakeTransport(pub(super) Rc<RefCell<FakeTransportState>>);

impl TargetTransport for FakeTransport {
    type Host = FakeDisk;

    fn poll(
        &mut self,
        _: Instant,
        _: &mut FakeDisk,
        _: &mut dyn FnMut(NvmeDataMatch),
    ) -> Option<NvmeTransportEvent> {
        self.0.borrow_mut().incoming.pop_front()
    }

    fn start_inspection(&mut self, _: Instant, _: &mut FakeDisk, _: &Arc<PatternSet>) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn send_response(&mut self, _: Instant, _: &mut FakeDisk, entry: &[u8; 16]) -> u64 {
        let mut wire = self.0.borrow_mut();
        wire.mark += 1;
        wire.sent.push(Sent::Response(NvmeCompletion::parse(entry)));
        wire.mark
    }

    fn send_data(
        &mut self,
        _: Instant,
        disk: &mut FakeDisk,
        cid: u16,
        data: &NvmeDataSource,
        success: bool,
    ) -> u64 {
        let mut wire = self.0.borrow_mut();
        wire.mark += 1;
        let bytes = match data {
            NvmeDataSource::Memory(bytes) => bytes.to_vec(),
            NvmeDataSource::File { file, offset, len } => {
                let extent = FileExtent { file: *file, offset: *offset, len: *len };
                let bytes = disk.bytes(extent).to_vec();
                let flying = (wire.mark, extent, bytes.clone());
                wire.in_flight.push(flying);
                bytes
            }
        };
        wire.sent.push(Sent::Data { cid, bytes, success });
        wire.mark
    }

    fn send_r2t(&mut self, _: Instant, _: &mut FakeDisk, cid: u16, tag: u16, len: u32) {
        let mut wire = self.0.borrow_mut();
        assert!(wire.expected.contains_key(&tag), "a buffer is there before it is asked for");
        wire.sent.push(Sent::R2t { cid, tag, len });
    }

    fn expect(
        &mut self,
        _: &mut FakeDisk,
        (_, tag): (u16, u16),
        len: u32,
        buffer: AlignedBuf,
    ) -> Option<AlignedBuf> {
        assert!(len as usize <= buffer.len());
        let before = self.0.borrow_mut().expected.insert(tag, (len, buffer));
        assert!(before.is_none(), "tag {tag} is in use");
        None
    }

    fn remote(&self, _: &FakeDisk) -> Option<wire::Endpoint> {
        None
    }

    fn digests(&self) -> (bool, bool) {
        (false, false)
    }

    fn terminate(&mut self, _: Instant, _: &mut FakeDisk, why: PduFault) {
        let mut wire = self.0.borrow_mut();
        wire.sent.push(Sent::Terminated(why));
        wire.incoming.clear();
        wire.incoming.push_back(NvmeTransportEvent::Ended(NvmeTransportEnd::Terminated(why)));
    }

    fn identity(&self) -> Option<NvmePskIdentity> {
        None
    }

    fn insecure(&self) -> Option<SecureChannelError> {
        None
    }

    fn acknowledged(&self, _: &FakeDisk) -> u64 {
        self.0.borrow().acknowledged
    }

    fn error(&self, _: &FakeDisk) -> Option<SocketError> {
        self.0.borrow().error
    }

    fn end(&mut self, _: Instant, _: &mut FakeDisk, gently: bool) {
        self.0.borrow_mut().sent.push(Sent::End(gently));
    }
}

/// Operation that the disk has not executed yet.
#[derive(Debug)]
enum FakeDiskRequest {
    Read(u64, FileExtent),
    Write { token: u64, extent: FileExtent, buffer: AlignedBuf, fua: bool },
    Flush(u64),
    Zero { token: u64, extent: FileExtent, deallocate: bool },
}

/// Operation that the disk has executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskAction {
    Read(u64, u32),
    Write { offset: u64, len: u32, fua: bool },
    Flush,
    Zero { offset: u64, len: u32, deallocate: bool },
}

#[derive(Debug, Default)]
pub(super) struct FakeDisk {
    pub(super) files: Vec<Vec<u8>>,
    /// Opens have ended.
    pub(super) opens: bool,
    /// True to refuse opens: too many files are open.
    pub(super) is_full: bool,
    pub(super) open_fault: Option<FileFault>,
    requests: VecDeque<FakeDiskRequest>,
    reads: VecDeque<(u64, Result<Bytes, FileFault>)>,
    changed: VecDeque<DiskChangeDone>,
    held: Vec<FileExtent>,
    pub(super) actions: Vec<DiskAction>,
    /// Fault of the next operations.
    pub(super) fault: Option<FileFault>,
    /// Files that were closed.
    pub(super) closed: Vec<FileId>,
    /// Ranges that the device reads anew.
    pub(super) invalidated: Vec<Range<u64>>,
}

impl FakeDisk {
    fn bytes(&mut self, extent: FileExtent) -> &mut [u8] {
        let start = usize::try_from(extent.offset).unwrap();
        &mut self.files[extent.file.0 as usize][start..][..extent.len as usize]
    }

    fn has(&self, extent: FileExtent) -> bool {
        extent.offset + u64::from(extent.len) <= self.files[extent.file.0 as usize].len() as u64
    }

    /// Executes the oldest operation. Returns false if there is none.
    pub(super) fn step(&mut self) -> bool {
        let Some(request) = self.requests.pop_front() else { return false };
        let result = match &request {
            FakeDiskRequest::Write { extent, .. } | FakeDiskRequest::Zero { extent, .. }
                if !self.has(*extent) =>
            {
                Err(FileFault::BadExtent)
            }
            _ => self.fault.map_or(Ok(()), Err),
        };
        match request {
            FakeDiskRequest::Read(token, extent) => {
                self.actions.push(DiskAction::Read(extent.offset, extent.len));
                let bytes = Bytes::copy_from_slice(self.bytes(extent));
                // Reads never return all bytes at once.
                let some = bytes.slice(..bytes.len().div_ceil(2));
                self.reads.push_back((token, result.map(|()| some)));
            }
            FakeDiskRequest::Write { token, extent, buffer, fua } => {
                if result.is_ok() {
                    let len = extent.len as usize;
                    self.bytes(extent).copy_from_slice(&buffer.as_slice()[..len]);
                    self.actions.push(DiskAction::Write {
                        offset: extent.offset,
                        len: extent.len,
                        fua,
                    });
                }
                self.changed.push_back((token, Some(buffer), result));
            }
            FakeDiskRequest::Flush(token) => {
                self.actions.push(DiskAction::Flush);
                self.changed.push_back((token, None, result));
            }
            FakeDiskRequest::Zero { token, extent, deallocate } => {
                if result.is_ok() {
                    self.bytes(extent).fill(0);
                    let FileExtent { offset, len, .. } = extent;
                    self.actions.push(DiskAction::Zero { offset, len, deallocate });
                }
                self.changed.push_back((token, None, result));
            }
        }
        true
    }
}

impl TargetDisk for FakeDisk {
    fn close(&mut self, file: FileId) {
        self.closed.push(file);
    }

    fn new_user(&mut self) -> DiskUser {
        DISK_USER
    }

    fn open(&mut self, path: &str, _: bool) -> Option<FileId> {
        if self.is_full {
            return None;
        }
        let index = u32::try_from(self.files.len()).unwrap();
        // Each block begins with its number and is filled with the first letter of the path.
        let mut bytes = vec![path.as_bytes()[0]; FILE_BYTES];
        for (block, number) in bytes.chunks_mut(BLOCK_BYTES).zip(0_u8..) {
            block[0] = number;
        }
        self.files.push(bytes);
        Some(FileId(index))
    }

    fn stat(&self, file: FileId) -> Option<Result<FileStat, FileFault>> {
        let size = self.files[file.0 as usize].len() as u64;
        let kind = FileKind::Regular;
        let stat = FileStat { kind, size, modified_s: 0, modified_ns: 0, version: 0 };
        self.opens.then_some(self.open_fault.map_or(Ok(stat), Err))
    }

    fn read(&mut self, token: DiskToken, extent: FileExtent) -> bool {
        let has = self.has(extent);
        if has {
            self.held.push(extent);
            self.requests.push_back(FakeDiskRequest::Read(token.number, extent));
        }
        has
    }

    fn release(&mut self, extent: FileExtent) {
        let place = self.held.iter().position(|held| *held == extent);
        self.held.remove(place.expect("it is held"));
    }

    fn write(
        &mut self,
        token: DiskToken,
        (file, offset): (FileId, u64),
        buffer: AlignedBuf,
        len: u32,
        fua: bool,
    ) {
        let extent = FileExtent { file, offset, len };
        self.requests.push_back(FakeDiskRequest::Write {
            token: token.number,
            extent,
            buffer,
            fua,
        });
    }

    fn invalidate(&mut self, _: FileId, range: Range<u64>) {
        self.invalidated.push(range);
    }

    fn flush(&mut self, token: DiskToken, _: FileId) {
        self.requests.push_back(FakeDiskRequest::Flush(token.number));
    }

    fn zero(
        &mut self,
        token: DiskToken,
        (file, offset): (FileId, u64),
        len: u64,
        deallocate: bool,
    ) {
        let extent = FileExtent { file, offset, len: u32::try_from(len).unwrap() };
        self.requests.push_back(FakeDiskRequest::Zero { token: token.number, extent, deallocate });
    }

    fn poll_read(&mut self, _: DiskUser) -> Option<(u64, Result<Bytes, FileFault>)> {
        self.reads.pop_front()
    }

    fn poll_changed(&mut self, _: DiskUser) -> Option<DiskChangeDone> {
        self.changed.pop_front()
    }
}

/// Returns the subsystem's NQN.
pub(super) fn subnqn() -> Nqn {
    Nqn::new("nqn.2026-11.example:disks").unwrap()
}

/// Returns the NQN of a host.
pub(super) fn hostnqn(number: u8) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.example:host{number}")).unwrap()
}

/// A target with its disk and virtual time.
pub(super) struct FakeDiskRig {
    pub(super) server: NvmeTargetServer<FakeTransport>,
    pub(super) disk: FakeDisk,
    pub(super) now: Instant,
    before: Vec<(&'static str, u64)>,
    connections: usize,
}

/// A connection of a scripted initiator.
#[derive(Clone, Debug)]
pub(super) struct ScriptedPeer {
    pub(super) link: FakeTransport,
    pub(super) index: usize,
}

impl FakeDiskRig {
    /// Creates a target with open namespaces on `a` and `b`, for hosts 1 and 2.
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut NvmeTargetConfig)) -> Self {
        let nqn = subnqn();
        let namespaces = ["a", "b"].map(|path| NamespaceConfig::new(&nqn, path)).to_vec();
        let hosts = Some(vec![hostnqn(1), hostnqn(2)]);
        let serial = String::from("0001");
        let subsystem = SubsystemConfig { nqn, serial, hosts, namespaces };
        let endpoint = wire::Endpoint { addr: [192, 0, 2, 1].into(), port: 4420 };
        let mut config = NvmeTargetConfig {
            subsystems: vec![subsystem],
            addresses: vec![endpoint],
            queues_max: 4,
            controllers_max: 3,
            ..NvmeTargetConfig::default()
        };
        change(&mut config);
        config.check().unwrap();
        let mut disk = FakeDisk { opens: true, ..FakeDisk::default() };
        let server = NvmeTargetServer::new(config, &mut disk);
        let now = Instant::from_millis(1000);
        let mut rig = Self { server, disk, now, before: Vec::new(), connections: 0 };
        for file in 0..2 {
            rig.server.handle_file(rig.now, &mut rig.disk, FileId(file));
        }
        rig.moved();
        rig
    }

    /// Returns the counters that changed since the last call.
    pub(super) fn moved(&mut self) -> Vec<String> {
        let after = base::counters::collect_counters(|f| self.server.shared.counters.visit(f));
        let moved = base::counters::moved(&self.before, &after);
        self.before = after;
        moved
            .into_iter()
            .map(|(name, by)| format!("{} +{by}", name.replace("nvmet_", "")))
            .collect()
    }

    /// Connects a new initiator by TCP.
    pub(super) fn accept(&mut self) -> ScriptedPeer {
        let link = FakeTransport::default();
        let index = self.connections;
        self.connections += 1;
        self.server.handle_accepted(self.now, &mut self.disk, index, link.clone());
        ScriptedPeer { link, index }
    }

    /// Delivers an event on a connection.
    pub(super) fn deliver(&mut self, peer: &ScriptedPeer, incoming: NvmeTransportEvent) {
        peer.link.0.borrow_mut().incoming.push_back(incoming);
        self.server.handle_socket(self.now, &mut self.disk, peer.index);
    }

    /// Delivers a command. Returns everything sent on its connection.
    pub(super) fn command(
        &mut self,
        peer: &ScriptedPeer,
        command: &NvmeCommand,
        data: &[u8],
    ) -> Vec<Sent> {
        let data = Bytes::copy_from_slice(data);
        self.deliver(
            peer,
            NvmeTransportEvent::Command { sqe: command.to_bytes(), data, digest_ok: true },
        );
        self.sent(peer)
    }

    /// Returns everything sent since the last call.
    pub(super) fn sent(&self, peer: &ScriptedPeer) -> Vec<Sent> {
        core::mem::take(&mut peer.link.0.borrow_mut().sent)
    }

    /// Delivers a command that is completed at once. Returns its completion.
    pub(super) fn completed(
        &mut self,
        peer: &ScriptedPeer,
        command: &NvmeCommand,
        data: &[u8],
    ) -> NvmeCompletion {
        match self.command(peer, command, data)[..] {
            [Sent::Response(completion)] => {
                assert_eq!(completion.cid, command.cid);
                completion
            }
            ref other => panic!("{command:?} was answered with {other:?}"),
        }
    }

    /// Delivers a command that is completed at once. Returns its status.
    pub(super) fn status(
        &mut self,
        peer: &ScriptedPeer,
        command: &NvmeCommand,
        data: &[u8],
    ) -> NvmeStatus {
        self.completed(peer, command, data).status
    }

    /// Delivers all data for an R2T.
    pub(super) fn data(
        &mut self,
        peer: &ScriptedPeer,
        cid: u16,
        tag: u16,
        bytes: &[u8],
        digest_ok: bool,
    ) {
        let (len, mut buffer) = peer.link.0.borrow_mut().expected.remove(&tag).unwrap();
        assert_eq!(len as usize, bytes.len());
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        let incoming = NvmeTransportEvent::WriteData {
            cccid: cid,
            ttag: tag,
            offset: 0,
            len,
            last: true,
            digest_ok,
        };
        peer.link.0.borrow_mut().incoming.push_back(incoming);
        self.deliver(peer, NvmeTransportEvent::Buffer { tag, buffer });
    }

    /// Executes one disk operation. Returns false if there is none.
    pub(super) fn disk_step(&mut self) -> bool {
        let did = self.disk.step();
        self.server.handle_disk(self.now, &mut self.disk, DISK_USER);
        did
    }

    /// Executes all disk operations.
    pub(super) fn disk_all(&mut self) {
        while self.disk_step() {}
    }

    /// Acknowledges everything, and checks that the file ranges in flight have not changed.
    pub(super) fn acknowledge(&mut self, peer: &ScriptedPeer) {
        let mut wire = peer.link.0.borrow_mut();
        wire.acknowledged = wire.mark;
        for (_, extent, bytes) in wire.in_flight.drain(..) {
            assert_eq!(self.disk.bytes(extent), bytes, "a retransmission would be another");
        }
        drop(wire);
        self.server.handle_socket(self.now, &mut self.disk, peer.index);
    }

    /// Advances the time.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        while self.server.poll_timeout().is_some_and(|at| at <= self.now) {
            self.server.handle_timeout(self.now, &mut self.disk);
        }
    }

    /// Ends a peer's connection.
    pub(super) fn end(&mut self, peer: &ScriptedPeer) {
        self.deliver(peer, NvmeTransportEvent::Ended(NvmeTransportEnd::Closed));
    }

    /// Connects a queue. Returns the completion of Connect.
    pub(super) fn connect(&mut self, peer: &ScriptedPeer, ask: &ConnectRequest) -> NvmeCompletion {
        let ConnectRequest { host, hostid, qid, cntlid, sqsize, kato, flow, subnqn } = *ask;
        let hostid = hostid.unwrap_or([host; 16]);
        let cattr = if flow { 0 } else { cattr::DISABLE_SQ_FLOW_CONTROL };
        let connect = ConnectCommand { recfmt: 0, qid, sqsize, cattr, kato };
        let sgl = Sgl::InCapsule { offset: 0, len: 1024 };
        let command = FabricsCommand::Connect(connect).to_command(0, sgl);
        let subnqn = Some(subnqn);
        let data = ConnectData { hostid, cntlid, subnqn, hostnqn: Some(hostnqn(host)) };
        self.completed(peer, &command, &data.to_bytes())
    }

    /// Connects and enables a controller with I/O queues. Returns the connections, the admin
    /// queue's first.
    pub(super) fn connect_controller(&mut self, host: u8, queues: u16) -> Vec<ScriptedPeer> {
        let admin = self.accept();
        let connected = self.connect(&admin, &ConnectRequest { host, ..ConnectRequest::default() });
        assert_eq!(connected.status, NvmeStatus::SUCCESS);
        let cntlid = u16::try_from(connected.dword0()).unwrap();
        assert_eq!(self.enable(&admin), NvmeStatus::SUCCESS);
        let mut all = vec![admin];
        for qid in 1..=queues {
            let peer = self.accept();
            let connected = self
                .connect(&peer, &ConnectRequest { host, qid, cntlid, ..ConnectRequest::default() });
            assert_eq!(
                (connected.status, connected.dword0()),
                (NvmeStatus::SUCCESS, cntlid.into())
            );
            all.push(peer);
        }
        self.moved();
        all
    }

    pub(super) fn enable(&mut self, admin: &ScriptedPeer) -> NvmeStatus {
        let set = PropertySet::new(property::CC, ControllerConfiguration::ENABLED.to_value());
        self.status(admin, &FabricsCommand::PropertySet(set).to_command(1, Sgl::NONE), &[])
    }
}

/// Parameters of a Connect.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectRequest {
    pub(super) host: u8,
    /// Host identifier; if `None`, 16 times the host's number.
    pub(super) hostid: Option<[u8; 16]>,
    pub(super) qid: u16,
    pub(super) cntlid: u16,
    pub(super) sqsize: u16,
    pub(super) kato: u32,
    pub(super) flow: bool,
    pub(super) subnqn: Nqn,
}

impl Default for ConnectRequest {
    fn default() -> Self {
        let (host, qid, cntlid, sqsize, kato, flow) = (1, 0, CNTLID_DYNAMIC, 31, 0, true);
        let (hostid, subnqn) = (None, subnqn());
        Self { host, hostid, qid, cntlid, sqsize, kato, flow, subnqn }
    }
}

impl FakeTransportState {
    /// Acknowledges everything, without a notice to the target.
    pub(super) fn acknowledge_silently(&mut self) {
        self.acknowledged = self.mark;
    }
}

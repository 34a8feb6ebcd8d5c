//! NVMe/TCP applications of accounted benchmarks: an initiator and a target.
//!
//! Each is a minimal user of [`NvmeTransport`]. The initiator keeps a number of commands open on
//! every connection, at random offsets; the target serves them from memory or from a file. Commands
//! consist of an opcode, an identifier, an offset and a length, and nothing else of NVMe, so that
//! the host's cycles are those of transport and TCP. One byte of every buffer is compared.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::crypto::Suite;
use base::{Instant, Prng};
use bytes::Bytes;
use host::nvme::{
    NvmeDataSource, NvmeInitiatorParams, NvmeTargetParams, NvmeTransport, NvmeTransportEnd,
    NvmeTransportEvent,
};
use host::{Application, FileId, Host, Notice, SocketId, TlsDirection, TlsKeys, TlsVersion};
use wire::Endpoint;

use crate::bench::cycle_accounting::BenchApp;
use crate::bench::timed_crypto::{CycleMeter, MeteredCrypto};

/// TCP port of the target.
pub(crate) const PORT: u16 = 4420;
/// Name of the file that a target reads.
pub(crate) const FILE: &str = "namespace";

/// Parameters that both ends of a run share.
#[derive(Clone, Debug)]
pub(crate) struct NvmeRunParams {
    /// Commands are writes; otherwise reads.
    pub(crate) write: bool,
    /// Bytes of each command.
    pub(crate) bytes: u32,
    /// Open commands per connection.
    pub(crate) depth: u16,
    pub(crate) connections: u32,
    pub(crate) tls: bool,
    /// Content of the namespace.
    pub(crate) content: Bytes,
}

/// The application of either end.
pub(crate) struct NvmeBenchApp {
    params: NvmeRunParams,
    role: NvmeBenchRole,
    connections: BTreeMap<SocketId, NvmeBenchConnection>,
    prng: Prng,
    /// Cycles of the digests that the host computed.
    pub(crate) digests: CycleMeter,
    /// Commands completed at this end.
    pub(crate) commands: u64,
    /// Errors; the first one ends the run.
    errors: Vec<String>,
}

enum NvmeBenchRole {
    Initiator(Endpoint),
    Target { reads_file: bool, file: Option<FileId> },
}

/// A connection.
struct NvmeBenchConnection {
    /// `None` until the connection is established.
    transport: Option<NvmeTransport>,
    /// Commands by identifier.
    commands: Vec<OpenCommand>,
    spare: Vec<AlignedBuf>,
    /// Command identifiers that are not in use.
    free: VecDeque<u16>,
}

/// An open command.
#[derive(Clone, Copy, Debug, Default)]
struct OpenCommand {
    at: u64,
    /// The target has completed it.
    completed: bool,
    /// Its buffer has not come back from the transport.
    buffer_registered: bool,
}

impl NvmeBenchConnection {
    fn new(depth: u16, transport: Option<NvmeTransport>) -> Self {
        Self {
            transport,
            commands: vec![OpenCommand::default(); depth.into()],
            spare: Vec::new(),
            free: (0..depth).collect(),
        }
    }

    fn buffer(&mut self, bytes: u32) -> AlignedBuf {
        self.spare.pop().unwrap_or_else(|| AlignedBuf::new((bytes as usize).div_ceil(PAGE_BYTES)))
    }
}

impl NvmeBenchApp {
    /// Returns an initiator that connects to `target`.
    pub(crate) fn initiator(agreed: NvmeRunParams, target: Endpoint) -> Self {
        Self::new(agreed, NvmeBenchRole::Initiator(target))
    }

    /// Returns a target that reads from a file or from memory.
    pub(crate) fn target(agreed: NvmeRunParams, reads_file: bool) -> Self {
        Self::new(agreed, NvmeBenchRole::Target { reads_file, file: None })
    }

    fn new(agreed: NvmeRunParams, role: NvmeBenchRole) -> Self {
        Self {
            params: agreed,
            role,
            connections: BTreeMap::new(),
            prng: Prng::new(11),
            digests: CycleMeter::default(),
            commands: 0,
            errors: Vec::new(),
        }
    }

    /// Attaches TLS, if it is used, and starts NVMe/TCP on an established connection.
    fn establish(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        let initiator = matches!(self.role, NvmeBenchRole::Initiator(_));
        if self.params.tls {
            if let Err(e) = host.attach_tls(now, socket, &keys(initiator)) {
                self.errors.push(e.to_string());
            }
        }
        let crypto = Arc::new(MeteredCrypto(self.digests.clone()));
        let (header_digest, data_digest) = (true, true);
        let transport = if initiator {
            let params = NvmeInitiatorParams { header_digest, data_digest, hpda: 0, maxr2t: 0 };
            NvmeTransport::initiate(socket, crypto, params)
        } else {
            let (cpda, maxh2cdata, in_capsule_max) = (0, 128 << 10, 0);
            let params =
                NvmeTargetParams { header_digest, data_digest, cpda, maxh2cdata, in_capsule_max };
            NvmeTransport::serve(socket, crypto, params)
        };
        self.connections
            .insert(socket, NvmeBenchConnection::new(self.params.depth, Some(transport)));
    }

    fn work(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        while let Some(incoming) = self
            .connections
            .get_mut(&socket)
            .and_then(|link| link.transport.as_mut())
            .and_then(|transport| transport.poll(now, host))
        {
            self.handle_incoming(now, host, socket, incoming);
        }
        if matches!(self.role, NvmeBenchRole::Initiator(_)) {
            self.submit(now, host, socket);
        }
    }

    fn handle_incoming(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
        incoming: NvmeTransportEvent,
    ) {
        match incoming {
            NvmeTransportEvent::Ready => {}
            NvmeTransportEvent::Command { sqe, .. } => self.serve(now, host, socket, &sqe),
            NvmeTransportEvent::ReadData { cccid, success, digest_ok, .. } => {
                self.record_error_unless(digest_ok, "data digest mismatch");
                if success {
                    self.update_command(socket, cccid, |command| command.completed = true);
                }
            }
            NvmeTransportEvent::WriteData { digest_ok, .. } => {
                self.record_error_unless(digest_ok, "data digest mismatch")
            }
            NvmeTransportEvent::Response(cqe) => {
                let cid = u16::from_le_bytes([cqe[12], cqe[13]]);
                self.update_command(socket, cid, |command| command.completed = true);
            }
            NvmeTransportEvent::R2t { cccid, ttag, offset, len } => {
                let Some(link) = self.connections.get_mut(&socket) else { return };
                let at = link.commands.get(usize::from(cccid)).map_or(0, |c| c.at);
                let data = slice(&self.params.content, at + u64::from(offset), len);
                if let Some(transport) = &mut link.transport {
                    transport.send_write_data(now, host, (cccid, ttag), offset, data, true);
                }
            }
            NvmeTransportEvent::Buffer { tag, buffer } => {
                self.handle_buffer(now, host, socket, tag, buffer)
            }
            NvmeTransportEvent::Ended(NvmeTransportEnd::Closed) => {}
            NvmeTransportEvent::Ended(how) => self.errors.push(how.to_string()),
        }
    }

    fn record_error_unless(&mut self, right: bool, what: &str) {
        if !right {
            self.errors.push(what.to_owned());
        }
    }

    /// Handles a buffer that holds all data of a command.
    fn handle_buffer(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
        tag: u16,
        buffer: AlignedBuf,
    ) {
        let Some(link) = self.connections.get_mut(&socket) else { return };
        let at = link.commands.get(usize::from(tag)).map_or(0, |c| c.at);
        #[expect(clippy::cast_possible_truncation, reason = "less than the command's bytes")]
        let place = self.prng.below(self.params.bytes.into()) as usize;
        let right = slice(&self.params.content, at + place as u64, 1).first().copied();
        let same = buffer.as_slice().get(place).copied() == right;
        link.spare.push(buffer);
        let response = matches!(self.role, NvmeBenchRole::Target { .. });
        if let Some(transport) = link.transport.as_mut().filter(|_| response) {
            let mut cqe = [0; 16];
            cqe[12..14].copy_from_slice(&tag.to_le_bytes());
            transport.send_response(now, host, &cqe);
            self.commands += 1;
        } else {
            self.update_command(socket, tag, |command| command.buffer_registered = false);
        }
        self.record_error_unless(same, "data mismatch");
    }

    /// Updates an initiator's command. The command ends when the target has completed it and its
    /// buffer is back.
    fn update_command(&mut self, socket: SocketId, cid: u16, note: impl FnOnce(&mut OpenCommand)) {
        let Some(link) = self.connections.get_mut(&socket) else { return };
        let Some(command) = link.commands.get_mut(usize::from(cid)) else { return };
        note(command);
        if command.completed && !command.buffer_registered {
            link.free.push_back(cid);
            self.commands += 1;
        }
    }

    /// Submits commands up to the queue depth.
    fn submit(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        let NvmeRunParams { write, bytes, ref content, .. } = self.params;
        let Some(link) = self.connections.get_mut(&socket) else { return };
        if link.transport.as_ref().is_none_or(|transport| transport.negotiated().is_none()) {
            return;
        }
        let blocks = (content.len() as u64 - u64::from(bytes)) / 4096 + 1;
        while let Some(cid) = link.free.pop_front() {
            let at = self.prng.below(blocks) * 4096;
            let buffer = (!write).then(|| link.buffer(bytes));
            let Some(transport) = &mut link.transport else { return };
            if let Some(command) = link.commands.get_mut(usize::from(cid)) {
                *command = OpenCommand { at, completed: false, buffer_registered: !write };
            }
            let back =
                buffer.and_then(|buffer| transport.expect(host, (cid, cid), 0, bytes, buffer));
            if back.is_some() {
                self.errors.push("command tag already in use".to_owned());
            }
            let mut sqe = [0; 64];
            sqe[0] = if write { 1 } else { 2 };
            sqe[2..4].copy_from_slice(&cid.to_le_bytes());
            sqe[8..16].copy_from_slice(&at.to_le_bytes());
            transport.send_command(now, host, &sqe, Bytes::new());
        }
    }

    /// Serves a command.
    fn serve(&mut self, now: Instant, host: &mut Host, socket: SocketId, sqe: &[u8; 64]) {
        let cid = u16::from_le_bytes([sqe[2], sqe[3]]);
        let at = sqe[8..16].try_into().map_or(0, u64::from_le_bytes);
        let NvmeRunParams { bytes, ref content, .. } = self.params;
        let Some(link) = self.connections.get_mut(&socket) else { return };
        let NvmeBenchRole::Target { file, .. } = self.role else { return };
        let buffer = (sqe[0] == 1).then(|| link.buffer(bytes));
        let Some(transport) = &mut link.transport else { return };
        if let Some(buffer) = buffer {
            if let Some(command) = link.commands.get_mut(usize::from(cid)) {
                command.at = at;
            }
            if transport.expect(host, (cid, cid), 0, bytes, buffer).is_some() {
                self.errors.push("command tag already in use".to_owned());
            }
            transport.send_r2t(now, host, (cid, cid), 0, bytes);
            return;
        }
        let data = match file {
            Some(file) => NvmeDataSource::File { file, offset: at, len: bytes },
            None => NvmeDataSource::Memory(slice(content, at, bytes)),
        };
        transport.send_read_data(now, host, cid, &data, true);
        self.commands += 1;
    }
}

impl Application for NvmeBenchApp {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Accepted(_, socket) => {
                self.establish(now, host, socket);
                self.work(now, host, socket);
            }
            Notice::Socket(socket) => {
                let fresh =
                    self.connections.get(&socket).is_some_and(|link| link.transport.is_none());
                if fresh && host.readiness(socket).writable {
                    self.establish(now, host, socket);
                }
                self.work(now, host, socket);
            }
            Notice::File(file) if !matches!(host.offload_fstat(file), Some(Ok(_))) => {
                self.errors.push("cannot open the namespace".to_owned());
            }
            _ => {}
        }
    }
}

impl BenchApp for NvmeBenchApp {
    /// Opens the file or the connections.
    fn start(&mut self, now: Instant, host: &mut Host) {
        match &mut self.role {
            NvmeBenchRole::Target { reads_file, file } if *reads_file => {
                *file = host.offload_open_namespace(FILE);
            }
            NvmeBenchRole::Target { .. } => {}
            NvmeBenchRole::Initiator(target) => {
                for _ in 0..self.params.connections {
                    match host.connect(now, *target) {
                        Ok(socket) => {
                            self.connections
                                .insert(socket, NvmeBenchConnection::new(self.params.depth, None));
                        }
                        Err(e) => self.errors.push(e.to_string()),
                    }
                }
            }
        }
    }

    fn error(&self) -> Option<&str> {
        self.errors.first().map(String::as_str)
    }
}

/// Returns a range of the namespace.
fn slice(content: &Bytes, at: u64, len: u32) -> Bytes {
    let from = usize::try_from(at).unwrap_or(usize::MAX).min(content.len());
    content.slice(from..content.len().min(from + len as usize))
}

/// Returns fixed keys, one per direction for all connections: nothing here is secret.
fn keys(initiator: bool) -> TlsKeys {
    let direction = |which: u8| TlsDirection::new(&[which; 32], [which; 12], 0);
    let (tx, rx) = if initiator { (1, 2) } else { (2, 1) };
    TlsKeys {
        version: TlsVersion::Tls13,
        suite: Suite::Aes128Gcm,
        tx: direction(tx),
        rx: direction(rx),
        crypto: Arc::new(crypto::Provider),
    }
}

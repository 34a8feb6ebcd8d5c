//! NVMe/TCP applications of accounted benchmarks: an initiator and a target.
//!
//! Each is a minimal user of [`Transport`]. The initiator keeps a number of commands open on every
//! connection, at random offsets; the target serves them from memory or from a file. Commands
//! consist of an opcode, an identifier, an offset and a length, and nothing else of NVMe, so that
//! the host's cycles are those of transport and TCP. One byte of every buffer is compared.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::crypto::Suite;
use base::{Instant, Prng};
use bytes::Bytes;
use host::nvme::{Ended, Incoming, Initiate, Serve, Source, Transport};
use host::{Application, FileId, Host, Notice, SocketId, TlsDirection, TlsKeys, TlsVersion};
use wire::Endpoint;

use crate::bench::accounted::BenchApp;
use crate::bench::timed_crypto::{Meter, Timed};

/// TCP port of the target.
pub(crate) const PORT: u16 = 4420;
/// Name of the file that a target reads.
pub(crate) const FILE: &str = "namespace";

/// Parameters that both ends of a run share.
#[derive(Clone, Debug)]
pub(crate) struct Agreed {
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
pub(crate) struct NvmeEnd {
    agreed: Agreed,
    role: Role,
    links: BTreeMap<SocketId, Link>,
    prng: Prng,
    /// Cycles of the digests that the host computed.
    pub(crate) digests: Meter,
    /// Commands completed at this end.
    pub(crate) commands: u64,
    /// Errors; the first one ends the run.
    errors: Vec<String>,
}

enum Role {
    Initiator(Endpoint),
    Target { reads_file: bool, file: Option<FileId> },
}

/// A connection.
struct Link {
    /// `None` until the connection is established.
    transport: Option<Transport>,
    /// Commands by identifier.
    commands: Vec<Command>,
    spare: Vec<AlignedBuf>,
    /// Command identifiers that are not in use.
    free: VecDeque<u16>,
}

/// An open command.
#[derive(Clone, Copy, Debug, Default)]
struct Command {
    at: u64,
    /// The target has completed it.
    ended: bool,
    /// Its buffer has not come back from the transport.
    lent: bool,
}

impl Link {
    fn new(depth: u16, transport: Option<Transport>) -> Self {
        Self {
            transport,
            commands: vec![Command::default(); depth.into()],
            spare: Vec::new(),
            free: (0..depth).collect(),
        }
    }

    fn buffer(&mut self, bytes: u32) -> AlignedBuf {
        self.spare.pop().unwrap_or_else(|| AlignedBuf::new((bytes as usize).div_ceil(PAGE_BYTES)))
    }
}

impl NvmeEnd {
    /// Returns an initiator that connects to `target`.
    pub(crate) fn initiator(agreed: Agreed, target: Endpoint) -> Self {
        Self::new(agreed, Role::Initiator(target))
    }

    /// Returns a target that reads from a file or from memory.
    pub(crate) fn target(agreed: Agreed, reads_file: bool) -> Self {
        Self::new(agreed, Role::Target { reads_file, file: None })
    }

    fn new(agreed: Agreed, role: Role) -> Self {
        Self {
            agreed,
            role,
            links: BTreeMap::new(),
            prng: Prng::new(11),
            digests: Meter::default(),
            commands: 0,
            errors: Vec::new(),
        }
    }

    /// Attaches TLS, if it is used, and starts NVMe/TCP on an established connection.
    fn establish(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        let initiator = matches!(self.role, Role::Initiator(_));
        if self.agreed.tls {
            if let Err(e) = host.attach_tls(now, socket, &keys(initiator)) {
                self.errors.push(e.to_string());
            }
        }
        let crypto = Arc::new(Timed(self.digests.clone()));
        let (header_digest, data_digest) = (true, true);
        let transport = if initiator {
            let params = Initiate { header_digest, data_digest, hpda: 0, maxr2t: 0 };
            Transport::initiate(socket, crypto, params)
        } else {
            let (cpda, maxh2cdata, in_capsule_max) = (0, 128 << 10, 0);
            let params = Serve { header_digest, data_digest, cpda, maxh2cdata, in_capsule_max };
            Transport::serve(socket, crypto, params)
        };
        self.links.insert(socket, Link::new(self.agreed.depth, Some(transport)));
    }

    fn work(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        while let Some(incoming) = self
            .links
            .get_mut(&socket)
            .and_then(|link| link.transport.as_mut())
            .and_then(|transport| transport.poll(now, host))
        {
            self.take(now, host, socket, incoming);
        }
        if matches!(self.role, Role::Initiator(_)) {
            self.submit(now, host, socket);
        }
    }

    fn take(&mut self, now: Instant, host: &mut Host, socket: SocketId, incoming: Incoming) {
        match incoming {
            Incoming::Ready => {}
            Incoming::Command { sqe, .. } => self.serve(now, host, socket, &sqe),
            Incoming::ReadData { cccid, success, digest_ok, .. } => {
                self.check(digest_ok, "a wrong digest");
                if success {
                    self.end(socket, cccid, |command| command.ended = true);
                }
            }
            Incoming::WriteData { digest_ok, .. } => self.check(digest_ok, "a wrong digest"),
            Incoming::Response(cqe) => {
                let cid = u16::from_le_bytes([cqe[12], cqe[13]]);
                self.end(socket, cid, |command| command.ended = true);
            }
            Incoming::R2t { cccid, ttag, offset, len } => {
                let Some(link) = self.links.get_mut(&socket) else { return };
                let at = link.commands.get(usize::from(cccid)).map_or(0, |c| c.at);
                let data = slice(&self.agreed.content, at + u64::from(offset), len);
                if let Some(transport) = &mut link.transport {
                    transport.send_write_data(now, host, (cccid, ttag), offset, data, true);
                }
            }
            Incoming::Buffer { tag, buffer } => self.take_buffer(now, host, socket, tag, buffer),
            Incoming::Ended(Ended::Closed) => {}
            Incoming::Ended(how) => self.errors.push(how.to_string()),
        }
    }

    fn check(&mut self, right: bool, what: &str) {
        if !right {
            self.errors.push(what.to_owned());
        }
    }

    /// Handles a buffer that holds all data of a command.
    fn take_buffer(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
        tag: u16,
        buffer: AlignedBuf,
    ) {
        let Some(link) = self.links.get_mut(&socket) else { return };
        let at = link.commands.get(usize::from(tag)).map_or(0, |c| c.at);
        #[expect(clippy::cast_possible_truncation, reason = "less than the command's bytes")]
        let place = self.prng.below(self.agreed.bytes.into()) as usize;
        let right = slice(&self.agreed.content, at + place as u64, 1).first().copied();
        let same = buffer.as_slice().get(place).copied() == right;
        link.spare.push(buffer);
        let response = matches!(self.role, Role::Target { .. });
        if let Some(transport) = link.transport.as_mut().filter(|_| response) {
            let mut cqe = [0; 16];
            cqe[12..14].copy_from_slice(&tag.to_le_bytes());
            transport.send_response(now, host, &cqe);
            self.commands += 1;
        } else {
            self.end(socket, tag, |command| command.lent = false);
        }
        self.check(same, "a wrong byte");
    }

    /// Updates an initiator's command. The command ends when the target has completed it and its
    /// buffer is back.
    fn end(&mut self, socket: SocketId, cid: u16, note: impl FnOnce(&mut Command)) {
        let Some(link) = self.links.get_mut(&socket) else { return };
        let Some(command) = link.commands.get_mut(usize::from(cid)) else { return };
        note(command);
        if command.ended && !command.lent {
            link.free.push_back(cid);
            self.commands += 1;
        }
    }

    /// Submits commands up to the queue depth.
    fn submit(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        let Agreed { write, bytes, ref content, .. } = self.agreed;
        let Some(link) = self.links.get_mut(&socket) else { return };
        if link.transport.as_ref().is_none_or(|transport| transport.negotiated().is_none()) {
            return;
        }
        let blocks = (content.len() as u64 - u64::from(bytes)) / 4096 + 1;
        while let Some(cid) = link.free.pop_front() {
            let at = self.prng.below(blocks) * 4096;
            let buffer = (!write).then(|| link.buffer(bytes));
            let Some(transport) = &mut link.transport else { return };
            if let Some(command) = link.commands.get_mut(usize::from(cid)) {
                *command = Command { at, ended: false, lent: !write };
            }
            let back =
                buffer.and_then(|buffer| transport.expect(host, (cid, cid), 0, bytes, buffer));
            if back.is_some() {
                self.errors.push("a tag that is in use".to_owned());
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
        let Agreed { bytes, ref content, .. } = self.agreed;
        let Some(link) = self.links.get_mut(&socket) else { return };
        let Role::Target { file, .. } = self.role else { return };
        let buffer = (sqe[0] == 1).then(|| link.buffer(bytes));
        let Some(transport) = &mut link.transport else { return };
        if let Some(buffer) = buffer {
            if let Some(command) = link.commands.get_mut(usize::from(cid)) {
                command.at = at;
            }
            if transport.expect(host, (cid, cid), 0, bytes, buffer).is_some() {
                self.errors.push("a tag that is in use".to_owned());
            }
            transport.send_r2t(now, host, (cid, cid), 0, bytes);
            return;
        }
        let data = match file {
            Some(file) => Source::File { file, offset: at, len: bytes },
            None => Source::Memory(slice(content, at, bytes)),
        };
        transport.send_read_data(now, host, cid, &data, true);
        self.commands += 1;
    }
}

impl Application for NvmeEnd {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Accepted(_, socket) => {
                self.establish(now, host, socket);
                self.work(now, host, socket);
            }
            Notice::Socket(socket) => {
                let fresh = self.links.get(&socket).is_some_and(|link| link.transport.is_none());
                if fresh && host.readiness(socket).writable {
                    self.establish(now, host, socket);
                }
                self.work(now, host, socket);
            }
            Notice::File(file) if !matches!(host.offload_fstat(file), Some(Ok(_))) => {
                self.errors.push("the namespace cannot be read".to_owned());
            }
            _ => {}
        }
    }
}

impl BenchApp for NvmeEnd {
    /// Opens the file or the connections.
    fn start(&mut self, now: Instant, host: &mut Host) {
        match &mut self.role {
            Role::Target { reads_file, file } if *reads_file => {
                *file = host.offload_open_namespace(FILE);
            }
            Role::Target { .. } => {}
            Role::Initiator(target) => {
                for _ in 0..self.agreed.connections {
                    match host.connect(now, *target) {
                        Ok(socket) => {
                            self.links.insert(socket, Link::new(self.agreed.depth, None));
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

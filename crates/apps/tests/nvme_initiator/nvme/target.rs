//! A scripted controller that builds its PDUs by hand.

use std::collections::{BTreeMap, VecDeque};

use abi::crypto::CryptoProvider as _;
use base::Instant;
use bytes::Bytes;
use crypto::Provider;
use host::{Application, Host, ListenConfig, Notice, SocketId, TlsServer};
use wire::nvme::command::{
    AsyncEvent, COMMAND_BYTES, GetLogPage, IdentifyCommand, NvmeBlockRange, NvmeCommand,
    NvmeCompletion, Sgl, admin, events, io,
};
use wire::nvme::fabrics::{ConnectResult, ControllerCapabilities, FabricsCommand, property};
use wire::nvme::identify::{self, IdentifyController, NamespaceDescriptor, cns, oncs};
use wire::nvme::pdu::{
    COMMON_BYTES, DataPduHeader, IcResp, PduCommonHeader, PduFault, PduHeader, PduRules, R2t,
};
use wire::nvme::status::NvmeStatus;

const SHIFT: u8 = 9;
const BLOCKS: u64 = 4096;

/// Response of a script to an I/O command.
pub(crate) enum ScriptAnswer {
    /// Execute the command correctly.
    Good,
    /// Do not answer; keep the command in [`ScriptedController::kept`].
    Keep,
    /// Send these headers with their data.
    Pdus(Vec<(PduHeader, Vec<u8>)>),
    /// As `Pdus`, with wrong data digests.
    WrongDigests(Vec<(PduHeader, Vec<u8>)>),
    /// Close the connection.
    Close,
}

/// Maps a queue ID and an I/O command to the response.
type Script = Box<dyn FnMut(u16, &NvmeCommand) -> ScriptAnswer>;

struct ControllerConn {
    socket: SocketId,
    rules: PduRules,
    /// Digests and alignment of PDUs to the initiator.
    send: PduRules,
    received: Vec<u8>,
    unsent: Vec<u8>,
    qid: Option<u16>,
    /// Writes whose data was requested.
    writes: BTreeMap<u16, (NvmeCommand, Vec<u8>)>,
    events: VecDeque<u16>,
}

/// The scripted controller.
pub(crate) struct ScriptedController {
    conns: Vec<ControllerConn>,
    pub(crate) disk: Vec<u8>,
    pub(crate) script: Script,
    /// Unanswered I/O commands: connection, command and in-capsule data.
    pub(crate) kept: Vec<(SocketId, NvmeCommand, Bytes)>,
    /// Received I/O commands: queue ID, opcode, first block.
    pub(crate) log: Vec<(u16, u8, u64)>,
    /// Opcodes of admin commands that are not part of the set-up.
    pub(crate) admin_log: Vec<u8>,
    pub(crate) terminated: Vec<PduFault>,
    /// Result of Connect.
    pub(crate) connect: ConnectResult,
    pub(crate) not_ready: u32,
    pub(crate) digests: bool,
    pub(crate) ioccsz: u32,
    pub(crate) nguid: [u8; 16],
    /// Identification descriptors of the namespaces, or the status with which the command fails.
    pub(crate) descriptors: Result<Vec<NamespaceDescriptor>, NvmeStatus>,
    /// Number of blocks that Identify Namespace reports.
    pub(crate) blocks: u64,
    /// IDs of the active namespaces.
    pub(crate) nsids: Vec<u32>,
    /// Next values of `nsids`: each listing replaces the list and sends an event, while there are
    /// any.
    pub(crate) nsids_next: VecDeque<Vec<u32>>,
    /// Discovery logs by generation: each read of the header moves on to the next, if there is one.
    pub(crate) logs: VecDeque<Vec<u8>>,
    pub(crate) silent: bool,
}

impl Application for ScriptedController {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Accepted(_, socket) => {
                let (rules, qid) = (PduRules { plen_max: 1 << 24, ..PduRules::NONE }, None);
                self.conns.push(ControllerConn {
                    socket,
                    rules,
                    send: PduRules::NONE,
                    received: Vec::new(),
                    unsent: Vec::new(),
                    qid,
                    writes: BTreeMap::new(),
                    events: VecDeque::new(),
                });
                self.turn(now, host, socket);
            }
            Notice::Socket(socket) => self.turn(now, host, socket),
            _ => {}
        }
    }
}

impl ScriptedController {
    pub(crate) fn new(host: &mut Host, tls: Option<TlsServer>) -> Self {
        let listen = ListenConfig { addr: None, port: super::PORT, backlog: 64 };
        match tls {
            Some(server) => host.listen_tls(listen, server).unwrap(),
            None => host.listen(listen).unwrap(),
        };
        Self {
            conns: Vec::new(),
            disk: vec![0; usize::try_from(BLOCKS << SHIFT).unwrap()],
            script: Box::new(|_, _| ScriptAnswer::Good),
            kept: Vec::new(),
            log: Vec::new(),
            admin_log: Vec::new(),
            terminated: Vec::new(),
            connect: ConnectResult::Accepted { cntlid: 1, authentication: 0 },
            not_ready: 0,
            digests: true,
            ioccsz: 4 + 8192 / 16,
            nguid: [9; 16],
            descriptors: Ok(Vec::new()),
            blocks: BLOCKS,
            nsids: vec![1, 5],
            nsids_next: VecDeque::new(),
            logs: VecDeque::new(),
            silent: false,
        }
    }

    fn conn(&mut self, socket: SocketId) -> Option<&mut ControllerConn> {
        self.conns.iter_mut().find(|conn| conn.socket == socket)
    }

    /// Returns the sockets of connected I/O queues.
    pub(crate) fn io_conns(&self) -> Vec<SocketId> {
        let io = self.conns.iter().filter(|conn| conn.qid.is_some_and(|qid| qid > 0));
        io.map(|conn| conn.socket).collect()
    }

    pub(crate) fn kill(&mut self, now: Instant, host: &mut Host) {
        for conn in self.conns.drain(..) {
            host.abort(now, conn.socket);
        }
        self.kept.clear();
    }

    /// Resets one connection.
    pub(crate) fn reset(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        host.abort(now, socket);
        self.conns.retain(|conn| conn.socket != socket);
        self.kept.retain(|kept| kept.0 != socket);
    }

    fn turn(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        self.flush(now, host, socket);
        let mut bytes = vec![0; 1 << 20];
        let read = host.read(socket, &mut bytes);
        let ready = host.readiness(socket);
        let Some(conn) = self.conn(socket) else { return };
        conn.received.extend_from_slice(&bytes[..read]);
        while self.take_pdu(now, host, socket) {}
        if ready.error.is_some() || ready.peer_closed {
            host.close(now, socket);
            self.conns.retain(|conn| conn.socket != socket);
        }
    }

    fn flush(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        let Some(conn) = self.conn(socket) else { return };
        let taken = host.send(now, socket, Bytes::copy_from_slice(&conn.unsent)).unwrap_or(0);
        conn.unsent.drain(..taken);
    }

    /// Sends a PDU. Its data digest is XORed with `spoil`.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
        header: &PduHeader,
        data: &[u8],
        spoil: u32,
    ) {
        let Some(conn) = self.conn(socket) else { return };
        let mut bytes = testkit::pdu(header, data, &conn.send, &Provider).unwrap();
        if !data.is_empty() && conn.send.data_digest {
            let digest = bytes.last_chunk_mut::<4>().unwrap();
            *digest = (u32::from_le_bytes(*digest) ^ spoil).to_le_bytes();
        }
        conn.unsent.extend(bytes);
        self.flush(now, host, socket);
    }

    pub(crate) fn respond(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
        cid: u16,
        result: u64,
        status: NvmeStatus,
    ) {
        let completion = NvmeCompletion { result, sqhd: 0, cid, status };
        self.send(now, host, socket, &PduHeader::CapsuleResp(completion.to_bytes()), &[], 0);
    }

    fn take_pdu(&mut self, now: Instant, host: &mut Host, socket: SocketId) -> bool {
        let Some(conn) = self.conn(socket) else { return false };
        let Some(first) = conn.received.first_chunk::<COMMON_BYTES>() else { return false };
        let common = PduCommonHeader::parse(first, &conn.rules).expect("a good PDU");
        let whole = common.plen as usize;
        if conn.received.len() < whole {
            return false;
        }
        let bytes: Vec<u8> = conn.received.drain(..whole).collect();
        let bare = usize::from(common.kind.header_len());
        let header = PduHeader::parse(&common, &bytes[..bare]).expect("a good header");
        if common.header_bytes as usize > bare {
            assert_eq!(bytes[bare..bare + 4], Provider.crc32c(0, &bytes[..bare]).to_le_bytes());
        }
        let range = common.data();
        let data = Bytes::copy_from_slice(&bytes[range.start as usize..range.end as usize]);
        if let Some(at) = common.data_digest() {
            let came = &bytes[at.start as usize..at.end as usize];
            assert_eq!(came, Provider.crc32c(0, &data).to_le_bytes());
        }
        self.handle(now, host, socket, header, &data);
        true
    }

    fn handle(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
        header: PduHeader,
        data: &Bytes,
    ) {
        match header {
            PduHeader::ICReq(request) => {
                let allowed = self.digests;
                let response = IcResp {
                    pfv: 0,
                    cpda: 0,
                    header_digest: request.header_digest && allowed,
                    data_digest: request.data_digest && allowed,
                    maxh2cdata: 16 << 10,
                };
                self.send(now, host, socket, &PduHeader::ICResp(response), &[], 0);
                let Some(conn) = self.conn(socket) else { return };
                let IcResp { header_digest, data_digest, .. } = response;
                conn.rules = PduRules { header_digest, data_digest, ..conn.rules };
                conn.send = PduRules { header_digest, data_digest, plen_max: 1 << 24, pda: 0 };
            }
            PduHeader::CapsuleCmd(entry) => {
                assert_eq!(entry.len(), COMMAND_BYTES);
                let command = NvmeCommand::parse(&entry);
                assert!(command.has_sgl());
                let expected = match command.sgl {
                    Sgl::InCapsule { offset: 0, len } => len as usize,
                    _ => 0,
                };
                assert_eq!(data.len(), expected);
                if !self.silent {
                    self.command(now, host, socket, command, data);
                }
            }
            PduHeader::H2CData(at) => self.write_data(now, host, socket, at, data),
            PduHeader::H2CTermReq(fault) => self.terminated.push(fault),
            other => panic!("{other:?}"),
        }
    }

    fn command(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
        command: NvmeCommand,
        data: &Bytes,
    ) {
        if let Some(fabrics) = FabricsCommand::from_command(&command) {
            return self.fabrics(now, host, socket, &command, fabrics);
        }
        let qid = self.conn(socket).and_then(|conn| conn.qid).expect("connected");
        if qid == 0 {
            return self.admin(now, host, socket, &command);
        }
        self.log.push((qid, command.opcode, NvmeBlockRange::from_command(&command).slba));
        match (self.script)(qid, &command) {
            ScriptAnswer::Good => self.execute(now, host, socket, command, data),
            ScriptAnswer::Keep => self.kept.push((socket, command, data.clone())),
            ScriptAnswer::Pdus(pdus) => {
                for (header, data) in pdus {
                    self.send(now, host, socket, &header, &data, 0);
                }
            }
            ScriptAnswer::Close => host.shutdown(now, socket),
            ScriptAnswer::WrongDigests(pdus) => {
                for (header, data) in pdus {
                    self.send(now, host, socket, &header, &data, 0xffff);
                }
            }
        }
    }

    /// Executes the kept commands.
    pub(crate) fn release(&mut self, now: Instant, host: &mut Host) {
        for (socket, command, data) in core::mem::take(&mut self.kept) {
            self.execute(now, host, socket, command, &data);
        }
    }

    fn execute(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
        command: NvmeCommand,
        data: &Bytes,
    ) {
        let blocks = NvmeBlockRange::from_command(&command);
        let at = usize::try_from(blocks.slba << SHIFT).unwrap();
        let end = at + ((blocks.count as usize) << SHIFT);
        let (cid, len) = (command.cid, command.sgl.len());
        match command.opcode {
            io::READ => {
                assert_eq!(len as usize, end - at);
                let data = self.disk[at..end].to_vec();
                let header = DataPduHeader {
                    cccid: cid,
                    ttag: 0,
                    offset: 0,
                    len,
                    last: true,
                    success: true,
                };
                self.send(now, host, socket, &PduHeader::C2HData(header), &data, 0);
            }
            io::WRITE if data.is_empty() => {
                let Some(conn) = self.conn(socket) else { return };
                conn.writes.insert(cid, (command, vec![0; len as usize]));
                let r2t = R2t { cccid: cid, ttag: cid ^ 0x5555, offset: 0, len };
                self.send(now, host, socket, &PduHeader::R2T(r2t), &[], 0);
            }
            io::WRITE => {
                self.disk[at..end].copy_from_slice(data);
                self.respond(now, host, socket, cid, 0, NvmeStatus::SUCCESS);
            }
            io::COMPARE => {
                let same = self.disk[at..end] == data[..];
                let status = if same { NvmeStatus::SUCCESS } else { NvmeStatus::COMPARE_FAILURE };
                self.respond(now, host, socket, cid, 0, status);
            }
            io::WRITE_ZEROES => {
                self.disk[at..end].fill(0);
                self.respond(now, host, socket, cid, 0, NvmeStatus::SUCCESS);
            }
            io::FLUSH | io::DATASET_MANAGEMENT => {
                self.respond(now, host, socket, cid, 0, NvmeStatus::SUCCESS);
            }
            other => panic!("opcode {other:#x}"),
        }
    }

    fn write_data(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
        at: DataPduHeader,
        data: &Bytes,
    ) {
        assert!(at.len <= 16 << 10, "MAXH2CDATA");
        let Some(conn) = self.conn(socket) else { return };
        // A script may have sent the R2T.
        let Some((command, whole)) = conn.writes.get_mut(&at.cccid) else { return };
        assert_eq!(at.ttag, at.cccid ^ 0x5555);
        let from = at.offset as usize;
        whole[from..from + data.len()].copy_from_slice(data);
        assert_eq!(at.last, at.end() as usize == whole.len());
        if at.last {
            let start =
                usize::try_from(NvmeBlockRange::from_command(command).slba << SHIFT).unwrap();
            let (_, whole) = conn.writes.remove(&at.cccid).unwrap();
            self.disk[start..start + whole.len()].copy_from_slice(&whole);
            self.respond(now, host, socket, at.cccid, 0, NvmeStatus::SUCCESS);
        }
    }

    fn fabrics(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
        command: &NvmeCommand,
        what: FabricsCommand,
    ) {
        let (mut result, mut status) = (0, NvmeStatus::SUCCESS);
        match what {
            FabricsCommand::Connect(connect) => {
                let (dword0, how) = self.connect.to_completion();
                (result, status) = (u64::from(dword0), how);
                let Some(conn) = self.conn(socket) else { return };
                assert_eq!(conn.qid, None, "once");
                conn.qid = status.is_success().then_some(connect.qid);
            }
            FabricsCommand::PropertyGet(get) => match get.offset {
                property::CAP => {
                    let capabilities = ControllerCapabilities {
                        mqes: 127,
                        timeout: 4,
                        css: 1,
                        ..ControllerCapabilities::from_value(0)
                    };
                    result = capabilities.to_value();
                }
                property::CSTS => {
                    result = u64::from(self.not_ready == 0);
                    self.not_ready = self.not_ready.saturating_sub(1);
                }
                _ => result = u64::from(wire::nvme::fabrics::version::V1_4),
            },
            FabricsCommand::PropertySet(_) => {}
            other => panic!("{other:?}"),
        }
        self.respond(now, host, socket, command.cid, result, status);
    }

    fn page(&mut self, command: &NvmeCommand) -> Vec<u8> {
        let mut page = Box::new([0; identify::BYTES]);
        let IdentifyCommand { cns, .. } = IdentifyCommand::from_command(command);
        match cns {
            cns::CONTROLLER => {
                let mut controller = IdentifyController::parse(&page);
                controller.mdts = 5;
                controller.oncs = oncs::COMPARE | oncs::WRITE_ZEROES | oncs::DATASET_MANAGEMENT;
                (controller.ioccsz, controller.acl, controller.aerl) = (self.ioccsz, 3, 3);
                controller.oaes = events::NAMESPACES;
                controller.write(&mut page);
            }
            cns::ACTIVE_NAMESPACES => {
                let nsids = self.nsids.iter().copied();
                identify::write_namespaces(command.nsid, nsids, &mut page);
            }
            cns::NAMESPACE => {
                let mut namespace = identify::IdentifyNamespace::new(self.blocks, SHIFT);
                namespace.nguid = self.nguid;
                namespace.write(&mut page);
            }
            cns::NAMESPACE_DESCRIPTORS => {
                NamespaceDescriptor::write_all(self.descriptors.as_deref().unwrap(), &mut page);
            }
            other => panic!("CNS {other:#x}"),
        }
        page.to_vec()
    }

    fn admin(&mut self, now: Instant, host: &mut Host, socket: SocketId, command: &NvmeCommand) {
        let cid = command.cid;
        let give = |target: &mut Self, host: &mut Host, data: Vec<u8>| {
            let len = u32::try_from(data.len()).unwrap();
            let header =
                DataPduHeader { cccid: cid, ttag: 0, offset: 0, len, last: true, success: false };
            target.send(now, host, socket, &PduHeader::C2HData(header), &data, 0);
            target.respond(now, host, socket, cid, 0, NvmeStatus::SUCCESS);
        };
        match command.opcode {
            admin::IDENTIFY
                if IdentifyCommand::from_command(command).cns == cns::NAMESPACE
                    && !self.nsids.contains(&command.nsid) =>
            {
                let status = NvmeStatus::INVALID_NAMESPACE.do_not_retry();
                self.respond(now, host, socket, cid, 0, status);
            }
            admin::IDENTIFY
                if IdentifyCommand::from_command(command).cns == cns::NAMESPACE_DESCRIPTORS
                    && self.descriptors.is_err() =>
            {
                let status = self.descriptors.clone().unwrap_err();
                self.respond(now, host, socket, cid, 0, status);
            }
            admin::IDENTIFY => {
                let page = self.page(command);
                let list = IdentifyCommand::from_command(command).cns == cns::ACTIVE_NAMESPACES;
                if let Some(next) = list.then(|| self.nsids_next.pop_front()).flatten() {
                    self.nsids = next;
                    self.event(now, host, AsyncEvent::NAMESPACE_CHANGED);
                }
                give(self, host, page);
            }
            admin::GET_LOG_PAGE => {
                let page = GetLogPage::from_command(command);
                let from = usize::try_from(page.offset).unwrap();
                if from == 0 && self.logs.len() > 1 && page.lid == 0x70 {
                    self.logs.pop_front();
                }
                let log = self.logs.front().cloned().unwrap_or_else(|| vec![0; 4096]);
                let end = from + usize::try_from(page.len).unwrap();
                give(self, host, log[from..end].to_vec());
            }
            admin::SET_FEATURES => {
                self.respond(now, host, socket, cid, 0x0003_0003, NvmeStatus::SUCCESS)
            }
            admin::ASYNC_EVENT => {
                if let Some(conn) = self.conn(socket) {
                    conn.events.push_back(cid);
                }
            }
            admin::KEEP_ALIVE => self.respond(now, host, socket, cid, 0, NvmeStatus::SUCCESS),
            other => {
                self.admin_log.push(other);
                if other == admin::ABORT {
                    // Dword 0 is 1: the command was not aborted.
                    self.respond(now, host, socket, cid, 1, NvmeStatus::SUCCESS);
                }
            }
        }
    }

    /// Completes an asynchronous event request with an event.
    pub(crate) fn event(&mut self, now: Instant, host: &mut Host, event: AsyncEvent) {
        let asked = self.conns.iter_mut().find_map(|c| Some((c.socket, c.events.pop_front()?)));
        let (socket, cid) = asked.expect("it was asked for");
        self.respond(now, host, socket, cid, u64::from(event.to_value()), NvmeStatus::SUCCESS);
    }
}

//! An initiator that violates the protocol: its PDUs are out of order, altered, truncated or made
//! up.
//!
//! A subsystem of its own admits it, so that its commands reach the target's backend; their effects
//! there are not checked. Other initiators must not be affected, which their users check
//! ([`super::user`]). It opens connections, one after another, until the faults have ended.

use base::{Duration, Instant, Prng};
use bytes::Bytes;
use host::{Application, Host, Notice, SocketId, TlsClient};
use wire::Endpoint;
use wire::nvme::command::{NvmeBlockRange, NvmeCommand, Sgl, io};
use wire::nvme::fabrics::{
    CNTLID_DYNAMIC, ConnectCommand, ConnectData, ControllerConfiguration, FabricsCommand,
    PropertySet, property,
};
use wire::nvme::nqn::Nqn;
use wire::nvme::pdu::{DataPduHeader, IcReq, PduFault, PduHeader, PduRules};

/// Path of its namespace, and the size in bytes.
pub(crate) const PATH: &str = "rogue";
pub(crate) const BYTES: usize = 64 << 10;
/// Number in its NQNs.
pub(crate) const NUMBER: usize = 77;
/// Size of ICResp in bytes.
const SETUP_BYTES: usize = 128;

base::counters! {
    /// Counters of the rogue.
    pub(crate) struct RogueCounters {
        /// Connections opened.
        rogue_connections,
        /// Connections closed by the target.
        rogue_ended,
        /// PDUs sent.
        rogue_pdus,
        /// PDUs that were altered.
        rogue_altered,
    }
}

/// A connection.
#[derive(Debug)]
struct RogueConnection {
    socket: SocketId,
    /// The first bytes received.
    head: Vec<u8>,
    /// Number of PDUs sent, and their maximum.
    sent: u64,
    most: u64,
}

/// The rogue, with a connection for an admin queue and one for an I/O queue.
pub(crate) struct Rogue {
    remote: Endpoint,
    tls: Option<TlsClient>,
    /// Its host NQN, and its subsystem's.
    names: (Nqn, Nqn),
    rng: Prng,
    lines: [Option<RogueConnection>; 2],
    /// Data to send after its last command.
    owed: Vec<u8>,
    /// Time of its next action.
    wake: Instant,
    over: bool,
    pub(crate) counters: RogueCounters,
}

impl Rogue {
    pub(crate) fn new(
        remote: Endpoint,
        tls: Option<TlsClient>,
        names: (Nqn, Nqn),
        rng: Prng,
        start: Instant,
    ) -> Self {
        Self {
            remote,
            tls,
            names,
            rng,
            lines: [None, None],
            owed: Vec::new(),
            wake: start,
            over: false,
            counters: RogueCounters::default(),
        }
    }

    /// Ends its activity.
    pub(crate) const fn finish(&mut self) {
        self.over = true;
    }

    pub(crate) fn is_done(&self) -> bool {
        self.over && self.lines.iter().all(Option::is_none)
    }

    /// Returns the controller ID of its admin queue, from the first dword of a CapsuleResp.
    fn controller(&self) -> Option<u16> {
        let head = &self.lines[0].as_ref()?.head;
        let id = head.get(SETUP_BYTES + 8..)?.first_chunk()?;
        Some(u16::from_le_bytes(*id))
    }

    fn open(&mut self, now: Instant, host: &mut Host, index: usize) {
        let socket = match &self.tls {
            Some(tls) => host.connect_tls(now, self.remote, tls),
            None => host.connect(now, self.remote),
        };
        let Ok(socket) = socket else { return };
        self.counters.rogue_connections += 1;
        let most = self.rng.range(1, 60);
        self.lines[index] = Some(RogueConnection { socket, head: Vec::new(), sent: 0, most });
    }

    fn send(&mut self, now: Instant, host: &mut Host, index: usize) {
        let Some(line) = &self.lines[index] else { return };
        let (socket, sent, set_up) = (line.socket, line.sent, line.head.len() >= SETUP_BYTES);
        // ICReq first; the rest after the response, or rarely without waiting for it.
        let may = sent == 0 || set_up || self.rng.chance(0.02);
        if !may || !host.readiness(socket).writable {
            return;
        }
        // The admin queue is used less, so that its connection lasts longer.
        if index == 0 && sent > 2 && self.rng.chance(0.95) {
            return;
        }
        let pdu = self.next(index, sent);
        self.counters.rogue_pdus += 1;
        // Bytes that do not fit the send buffer are cut off.
        let _ = host.send(now, socket, Bytes::from(pdu));
        if let Some(line) = &mut self.lines[index] {
            line.sent += 1;
        }
    }

    fn leave(&mut self, now: Instant, host: &mut Host, index: usize) {
        // Stays silent for a while first.
        if !self.over && self.rng.chance(0.95) {
            return;
        }
        let Some(line) = self.lines[index].take() else { return };
        if self.rng.chance(0.5) {
            host.close(now, line.socket);
        } else {
            host.abort(now, line.socket);
        }
    }

    /// Returns the next PDU to send.
    fn next(&mut self, index: usize, sent: u64) -> Vec<u8> {
        let mut pdu = match sent {
            0 => self.setup(),
            1 => self.connect(index),
            2 if index == 0 => enable(),
            _ => self.any(),
        };
        if self.rng.chance(if sent < 3 { 0.02 } else { 0.08 }) {
            self.counters.rogue_altered += 1;
            match self.rng.below(3) {
                0 => pdu.truncate(self.rng.below(pdu.len() as u64 + 1) as usize),
                1 => pdu.iter_mut().take(24).for_each(|byte| *byte = 0xff),
                _ if pdu.is_empty() => {}
                _ => {
                    let at = self.rng.below(pdu.len().min(80) as u64) as usize;
                    pdu[at] ^= 1 << self.rng.below(8);
                }
            }
        }
        pdu
    }

    fn setup(&mut self) -> Vec<u8> {
        let digest = self.rng.chance(0.1);
        let hpda = if self.rng.chance(0.9) { 0 } else { self.rng.below(64) as u8 };
        let request = IcReq { pfv: 0, hpda, header_digest: digest, data_digest: digest, maxr2t: 0 };
        pdu(&PduHeader::ICReq(request), &[])
    }

    fn connect(&mut self, index: usize) -> Vec<u8> {
        let qid = if self.rng.chance(0.95) { index as u16 } else { self.rng.below(3) as u16 };
        let controller = self.controller().filter(|_| index > 0);
        let connect = ConnectCommand {
            qid,
            sqsize: self.rng.range(1, 40) as u16,
            ..ConnectCommand::default()
        };
        let (host, subsystem) = self.names;
        let cntlid = controller.unwrap_or(CNTLID_DYNAMIC);
        let cntlid = if self.rng.chance(0.95) { cntlid } else { self.rng.below(8) as u16 };
        let data =
            ConnectData { hostid: [7; 16], cntlid, subnqn: Some(subsystem), hostnqn: Some(host) };
        let data = data.to_bytes();
        let sgl = Sgl::InCapsule { offset: 0, len: data.len() as u32 };
        capsule(&FabricsCommand::Connect(connect).to_command(0, sgl), &data)
    }

    fn any(&mut self) -> Vec<u8> {
        if !self.owed.is_empty() {
            return core::mem::take(&mut self.owed);
        }
        match self.rng.below(12) {
            0..=4 => self.command(),
            5..=7 => self.data(),
            10 => self.twice(),
            11 => self.ahead(),
            8 => {
                let mut noise = vec![0; self.rng.range(1, 200) as usize];
                noise.fill_with(|| (self.rng.next_u64() & 0xff) as u8);
                noise
            }
            _ if self.rng.chance(0.7) => self.command(),
            _ => pdu(&PduHeader::H2CTermReq(PduFault::SEQUENCE), &[0; 24]),
        }
    }

    /// Returns a plausible or a random command.
    fn command(&mut self) -> Vec<u8> {
        let r = &mut self.rng;
        let cid = r.below(12) as u16;
        if r.chance(0.2) {
            let mut entry = [0; 64];
            entry.fill_with(|| (r.next_u64() & 0xff) as u8);
            (entry[1], entry[2], entry[3]) = (0x40, cid as u8, 0);
            entry[0] = r.below(0x90) as u8;
            (entry[4], entry[5], entry[6], entry[7]) = (r.below(3) as u8, 0, 0, 0);
            return pdu(&PduHeader::CapsuleCmd(entry), &[]);
        }
        let ops = [io::READ, io::WRITE, io::WRITE, io::COMPARE, io::FLUSH, io::WRITE_ZEROES];
        let opcode = ops[r.below(ops.len() as u64) as usize];
        let blocks = r.range(1, 16) as u32;
        let command = NvmeCommand::new(opcode, cid, r.below(3) as u32);
        let command = NvmeBlockRange::new(r.below(140), blocks).encode_into(command);
        let data = if r.chance(0.5) { vec![0x5a; (blocks as usize) << 9] } else { Vec::new() };
        let len = if r.chance(0.9) { blocks << 9 } else { r.next_u32() };
        let sgl = if data.is_empty() {
            Sgl::Transport { len }
        } else {
            Sgl::InCapsule { offset: 0, len }
        };
        capsule(&command.with_data(sgl), &data)
    }

    /// Returns data that the target may have requested.
    fn data(&mut self) -> Vec<u8> {
        let r = &mut self.rng;
        let len = (r.range(1, 16) as u32) << 9;
        let header = DataPduHeader {
            cccid: r.below(12) as u16,
            ttag: r.below(3) as u16,
            offset: if r.chance(0.8) { 0 } else { r.next_u32() & !3 },
            len,
            last: r.chance(0.7),
            success: false,
        };
        pdu(&PduHeader::H2CData(header), &vec![0x3c; len as usize])
    }
}

impl Application for Rogue {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let Notice::Socket(socket) = notice else { return };
        for line in &mut self.lines {
            let ended = line.as_mut().filter(|l| l.socket == socket).is_some_and(|l| l.read(host));
            if ended {
                self.counters.rogue_ended += 1;
                host.close(now, socket);
                *line = None;
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.wake = now + Duration::from_micros(self.rng.range(20, 6_000));
        for index in 0..self.lines.len() {
            match &self.lines[index] {
                Some(line) if self.over || line.sent >= line.most => self.leave(now, host, index),
                Some(_) => self.send(now, host, index),
                // An I/O queue needs a controller.
                None if !self.over && (index == 0 || self.controller().is_some()) => {
                    self.open(now, host, index);
                }
                None => {}
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (!self.is_done()).then_some(self.wake)
    }
}

impl Rogue {
    /// Returns data of a range and then of one that overlaps it.
    fn twice(&mut self) -> Vec<u8> {
        let r = &mut self.rng;
        let (cccid, ttag) = (r.below(12) as u16, r.below(3) as u16);
        let (offset, len) = ((r.below(8) as u32) << 9, (r.range(1, 8) as u32) << 9);
        [0, offset, (offset / 2) & !3]
            .into_iter()
            .flat_map(|offset| data((cccid, ttag), offset, len))
            .collect()
    }

    /// Returns a large write. The next PDU is its data, concatenated with another write and with
    /// data for that under the same tag before the R2T. If the start of the first data overtakes
    /// its header, a device that places data has a hole before the second.
    fn ahead(&mut self) -> Vec<u8> {
        let r = &mut self.rng;
        let (first, ttag) = (r.below(12) as u16, r.below(2) as u16);
        let second = (first + 1) % 12;
        let (large, small) = ((r.range(8, 33) as u32) << 9, (r.range(1, 9) as u32) << 9);
        let write = |cid, len: u32| {
            let command =
                NvmeBlockRange::new(0, len >> 9).encode_into(NvmeCommand::new(io::WRITE, cid, 1));
            capsule(&command.with_data(Sgl::Transport { len }), &[])
        };
        let data = |cid, len| data((cid, ttag), 0, len);
        self.owed = [data(first, large), write(second, small), data(second, small)].concat();
        write(first, large)
    }
}

impl RogueConnection {
    /// Reads available data. Returns whether the target has closed the connection.
    fn read(&mut self, host: &mut Host) -> bool {
        loop {
            let bytes = host.peek(self.socket);
            let len = bytes.len();
            if len == 0 {
                break;
            }
            let room = (SETUP_BYTES + 24).saturating_sub(self.head.len());
            self.head.extend_from_slice(&bytes[..len.min(room)]);
            host.consume(self.socket, len);
        }
        let ready = host.readiness(self.socket);
        ready.error.is_some() || ready.peer_closed
    }
}

/// Returns an H2CData PDU.
fn data((cccid, ttag): (u16, u16), offset: u32, len: u32) -> Vec<u8> {
    let header = DataPduHeader { cccid, ttag, offset, len, last: true, success: false };
    pdu(&PduHeader::H2CData(header), &vec![0x3c; len as usize])
}

fn enable() -> Vec<u8> {
    let set = PropertySet::new(property::CC, ControllerConfiguration::ENABLED.to_value());
    capsule(&FabricsCommand::PropertySet(set).to_command(1, Sgl::NONE), &[])
}

fn capsule(command: &NvmeCommand, data: &[u8]) -> Vec<u8> {
    pdu(&PduHeader::CapsuleCmd(command.to_bytes()), data)
}

/// Returns a PDU without digests.
fn pdu(header: &PduHeader, data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; SETUP_BYTES];
    let common = header.write(data.len() as u32, &PduRules::NONE, &mut out);
    let header_bytes = common.map_or(0, |common| common.header_bytes as usize);
    out.truncate(header_bytes);
    out.extend_from_slice(data);
    out
}

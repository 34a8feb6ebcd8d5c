//! The wire: every frame that a device sends, before the network touches it.
//!
//! Well-formed, with right checksums, no longer than the MTU; no data beyond the window that the
//! peer offered; where bytes are sent again, the same bytes; and where TLS is spoken, nothing that
//! anybody could read. It keeps each connection's stream as it was sent first, which is little in a
//! simulation.

use std::collections::BTreeMap;

use abi::port::TxFrame;
use base::{Instant, SeqNum};
use wire::checksum::pseudo_header;
use wire::frame::{Frame, IpPacket, parse, protocol};
use wire::tcp::{Flags, Segment};
use wire::{ETHERNET_BYTES, Endpoint};

use super::plaintext;
use crate::content::Catalogue;
use crate::report::{Report, StreamRow};
use crate::trace::hash_bytes;

/// One direction of a connection.
#[derive(Debug, Default)]
struct Stream {
    iss: SeqNum,
    /// Bytes as they were sent first, from behind the SYN.
    sent: Vec<u8>,
    /// Which of them were: what a device lost in a reset never left, and leaves a hole.
    known: BTreeMap<usize, usize>,
    fin_at: Option<usize>,
    /// Shift of the windows that this end offers.
    scale: u8,
    scaled: bool,
    /// Right edge of the window that this end has offered, as a position of the other's stream.
    edge: u64,
    /// Highest position of the other's stream that this end has acknowledged.
    acknowledged: u64,
}

/// A connection, by the client's end.
#[derive(Debug, Default)]
struct Flow {
    /// From the client, and from the server.
    streams: [Stream; 2],
    /// SYN-ACKs that the server sent: old copies of a SYN lead to more than one.
    offers: Vec<Segment>,
    /// The client has answered one of them.
    both: bool,
    /// The client reset it, or it was closed in both directions.
    over: bool,
}

/// Watches the wire.
#[derive(Debug)]
pub(crate) struct Wire {
    mtu: usize,
    server_port: u16,
    /// TLS is spoken.
    tls: bool,
    /// Connections are set up by cookies: while one is good, an old copy of its first segment
    /// begins a connection that only the server believes in.
    cookies: bool,
    flows: BTreeMap<Endpoint, Flow>,
    /// Packets that carried bytes that were sent before.
    pub(crate) repeated: u64,
    bytes: Vec<u8>,
}

impl Wire {
    pub(crate) const fn new(mtu: u16, server_port: u16, tls: bool, cookies: bool) -> Self {
        Self {
            mtu: mtu as usize,
            server_port,
            tls,
            cookies,
            flows: BTreeMap::new(),
            repeated: 0,
            bytes: Vec::new(),
        }
    }

    /// Bytes of the server's stream that the client acknowledged, FIN left out.
    pub(crate) fn acknowledged(&self, client: Endpoint) -> Option<u64> {
        let flow = self.flows.get(&client)?;
        let fin = flow.streams[1].fin_at.map_or(u64::MAX, |at| at as u64);
        Some(flow.streams[0].acknowledged.min(fin))
    }

    /// Whether TLS is spoken.
    pub(crate) const fn is_tls(&self) -> bool {
        self.tls
    }

    /// What each end of each connection sent, where TLS is spoken.
    pub(crate) fn streams(&self) -> Vec<StreamRow> {
        let flows = self.flows.iter().filter(|_| self.tls);
        let rows = flows.flat_map(|(&client, flow)| {
            [false, true].map(|from_server| {
                let sent = &flow.streams[usize::from(from_server)].sent;
                StreamRow { client, from_server, bytes: sent.len(), hash: hash_bytes(0, sent) }
            })
        });
        rows.collect()
    }

    /// A device sends a frame. Gives what the trace shows of it: flags, sequence and
    /// acknowledgment numbers, checksum.
    pub(crate) fn sent(
        &mut self,
        now: Instant,
        node: usize,
        frame: &TxFrame,
        known: &Catalogue,
        report: &mut Report,
    ) -> [u64; 4] {
        let mut bytes = core::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.resize(frame.len(), 0);
        frame.copy_to(&mut bytes);
        let result = self.look(node, frame, &bytes, known);
        self.bytes = bytes;
        result.unwrap_or_else(|what| {
            report.fail(now, "wire", format!("n{node} sent a frame with {what}"));
            [0; 4]
        })
    }

    fn look(
        &mut self,
        node: usize,
        frame: &TxFrame,
        bytes: &[u8],
        known: &Catalogue,
    ) -> Result<[u64; 4], String> {
        let limit = if frame.segment_size > 0 { 1 << 16 } else { self.mtu };
        if bytes.len() > limit + ETHERNET_BYTES {
            return Err(format!("{} bytes for an MTU of {}", bytes.len(), self.mtu));
        }
        let ip = match parse(bytes) {
            Ok(Frame::Ip(ip)) => ip,
            Ok(Frame::Arp { .. }) => return Ok([0, 0, 0, 1]),
            Err(error) => return Err(format!("headers that are wrong: {error:?}")),
        };
        if ip.protocol != protocol::TCP {
            return Ok([0, 0, 0, u64::from(ip.protocol)]);
        }
        let tcp = &bytes[ip.l4..ip.end];
        if !frame.checksum_partial {
            let mut sum = pseudo_header(ip.source, ip.destination, protocol::TCP, tcp.len());
            sum.add(tcp);
            if sum.finish() != 0 {
                return Err(String::from("a wrong TCP checksum"));
            }
        }
        let (segment, header) = Segment::parse(tcp).map_err(|e| format!("a TCP header: {e:?}"))?;
        if self.tls {
            plaintext::look(&tcp[header..], known)?;
        }
        let field = u64::from(u16::from_be_bytes([tcp[16], tcp[17]]));
        let seen = [segment.flags.0.into(), segment.seq.0.into(), segment.ack.0.into(), field];
        self.segment(node, &ip, &segment, &tcp[header..])?;
        Ok(seen)
    }

    fn segment(
        &mut self,
        node: usize,
        ip: &IpPacket,
        segment: &Segment,
        payload: &[u8],
    ) -> Result<(), String> {
        let from_server = node == 0 && segment.source == self.server_port;
        let (addr, port) = if from_server {
            (ip.destination, segment.destination)
        } else {
            (ip.source, segment.source)
        };
        let key = Endpoint { addr, port };
        if segment.flags.has(Flags::RST) {
            // A server's may answer somebody else's forgery.
            if let Some(flow) = self.flows.get_mut(&key).filter(|_| !from_server) {
                flow.over = true;
            }
            return Ok(());
        }
        let flow = self.flows.entry(key).or_default();
        if segment.flags.has(Flags::SYN) {
            flow.begin(from_server, segment);
            return Ok(());
        }
        if !from_server && !flow.both {
            flow.agree(segment);
        }
        if !flow.both {
            return Ok(());
        }
        flow.over |= flow.is_closed();
        let ghost = from_server && flow.over && self.cookies;
        let [client, server] = &mut flow.streams;
        let (ours, theirs) = if from_server { (server, client) } else { (client, server) };
        note_window(ours, theirs, segment);
        let Some(at) = position(ours, segment.seq) else { return Ok(()) };
        let end = at + payload.len() as u64;
        if !payload.is_empty() && end > theirs.edge + 1 && !ghost {
            // One byte more: a probe of a closed window.
            return Err(format!("bytes up to {end} for a window that ends at {}", theirs.edge));
        }
        let recorded = ours.record(at, payload, segment.flags.has(Flags::FIN));
        let repeated = if ghost { recorded.unwrap_or(false) } else { recorded? };
        self.repeated += u64::from(repeated);
        Ok(())
    }
}

impl Flow {
    /// A SYN or SYN-ACK is sent.
    fn begin(&mut self, from_server: bool, segment: &Segment) {
        if from_server {
            // A connection that exists has its numbers: another SYN-ACK answers an old copy.
            if !self.both {
                self.offers.push(*segment);
            }
        } else if self.streams[0].iss != segment.seq || self.streams[0].edge == 0 {
            *self = Self::default();
            self.streams[0] = Stream::begin(segment);
        }
    }

    /// Whether both ends have acknowledged the other's FIN.
    fn is_closed(&self) -> bool {
        let [client, server] = &self.streams;
        let done = |ours: &Stream, theirs: &Stream| {
            ours.fin_at.is_some_and(|at| theirs.acknowledged > at as u64)
        };
        done(client, server) && done(server, client)
    }

    /// The client acknowledges one of the SYN-ACKs: with that the connection has both ends.
    fn agree(&mut self, segment: &Segment) {
        let answered = |offer: &&Segment| offer.seq + 1 == segment.ack;
        if let Some(offer) = self.offers.iter().rev().find(answered) {
            self.streams[1] = Stream::begin(offer);
            self.both = true;
            self.offers = Vec::new();
        }
    }
}

/// Position of a sequence number in a stream, counted from behind the SYN; none where it lies
/// before.
fn position(stream: &Stream, seq: SeqNum) -> Option<u64> {
    u64::try_from(seq.distance(stream.iss + 1)).ok()
}

/// An end acknowledges and offers a window.
fn note_window(ours: &mut Stream, theirs: &Stream, segment: &Segment) {
    if !segment.flags.has(Flags::ACK) {
        return;
    }
    let Some(ack) = position(theirs, segment.ack) else { return };
    let scale = if ours.scaled && theirs.scaled { ours.scale } else { 0 };
    ours.acknowledged = ours.acknowledged.max(ack);
    ours.edge = ours.edge.max(ack + (u64::from(segment.window) << scale));
}

impl Stream {
    fn begin(segment: &Segment) -> Self {
        Self {
            iss: segment.seq,
            scale: segment.options.window_scale.unwrap_or(0).min(14),
            scaled: segment.options.window_scale.is_some(),
            edge: segment.window.into(),
            ..Self::default()
        }
    }

    /// Notes bytes that are sent; says whether some were sent before.
    fn record(&mut self, at: u64, payload: &[u8], fin: bool) -> Result<bool, String> {
        let at = usize::try_from(at).map_err(|e| e.to_string())?;
        let end = at + payload.len();
        if fin {
            if self.fin_at.is_some_and(|before| before != end) {
                return Err(format!("a FIN at {end} after one at {:?}", self.fin_at));
            }
            self.fin_at = Some(end);
        }
        if payload.is_empty() {
            return Ok(false);
        }
        if self.fin_at.is_some_and(|fin| end > fin) {
            return Err(format!("bytes up to {end} behind the FIN at {:?}", self.fin_at));
        }
        if self.sent.len() < end {
            self.sent.resize(end, 0);
        }
        // Ranges that overlap this one or touch it, the last first.
        let touching = self.known.range(..=end).rev().take_while(|&(_, &to)| to >= at);
        let touching: Vec<_> = touching.map(|(&from, &to)| (from, to)).collect();
        let (mut first, mut last, mut repeated) = (at, end, false);
        for (from, to) in touching {
            let (here, behind) = (from.max(at), to.min(end));
            for at_byte in here..behind {
                repeated = true;
                if self.sent[at_byte] != payload[at_byte - at] {
                    return Err(format!("other bytes than before at {at_byte}, {at}..{end}"));
                }
            }
            (first, last) = (first.min(from), last.max(to));
            self.known.remove(&from);
        }
        self.sent[at..end].copy_from_slice(payload);
        self.known.insert(first, last);
        Ok(repeated)
    }
}

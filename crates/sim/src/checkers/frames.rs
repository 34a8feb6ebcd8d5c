//! Checks every frame that a device sends, before the network affects it.
//!
//! Frames are well-formed, have right checksums and respect the MTU; no data is sent beyond the
//! window that the peer advertised; retransmissions have the same bytes; and with TLS nothing is in
//! plaintext. Each connection's stream is kept as it was first sent, which is little in a
//! simulation.
//!
//! Behind a proxy there are two connections for each of a client's. Both are watched like any other
//! while the proxy's host has them. Once its device relays between them, what it sends on one is
//! compared with what the other's peer sent: [`super::splice`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use abi::splice::{Splice, SpliceId};
use base::{Instant, SeqNum};
use wire::checksum::pseudo_header;
use wire::frame::{IpPacket, ParsedFrame, parse, protocol};
use wire::tcp::{TcpFlags, TcpHeader};
use wire::{ETHERNET_BYTES, Endpoint, UDP_BYTES};

use super::plaintext::PlaintextSearch;
use super::splice::SplicedStream;
use crate::content::VersionCatalog;
use crate::events::SentFrame;
use crate::faults::{NodeRole, Scenario};
use crate::numbers::crosses;
use crate::report::{RunReport, StreamRow};
use crate::storage::PORT as STORAGE_PORT;
use crate::trace::hash_bytes;

/// Endpoints of a connection: the opener, and the server or the proxy.
pub(super) type Ends = (Endpoint, Endpoint);

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct ObservedStream {
    iss: SeqNum,
    /// Bytes as first sent, from after the SYN.
    pub(super) sent: Vec<u8>,
    /// Ranges of `sent` that were sent: data that a device lost in a reset leaves a hole.
    known: BTreeMap<usize, usize>,
    pub(super) fin_at: Option<usize>,
    /// Shift count of the windows that this end advertises.
    scale: u8,
    scaled: bool,
    /// Right edge of the window that this end has advertised, as a position in the other's stream.
    pub(super) edge: u64,
    /// Highest position in the other's stream that this end has acknowledged.
    pub(super) acknowledged: u64,
    /// First and last TSval that this end has sent.
    stamps: Option<(u32, u32)>,
    /// TSvals that this end has sent, kept if a proxy may relay echoes of them.
    pub(super) tsvals: BTreeSet<u32>,
    /// SACK blocks that this end has sent, likewise kept, as positions in the other's stream.
    pub(super) sacked: BTreeSet<(u64, u64)>,
}

/// Most final message that an end of a connection has sent, in ascending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum LastMessage {
    /// At most a SYN.
    #[default]
    Nothing,
    /// A segment of the established connection.
    Something,
    Fin,
    Reset,
}

/// A connection.
#[derive(Debug, Default)]
pub(super) struct ObservedConnection {
    /// The client's stream, and the server's.
    pub(super) streams: [ObservedStream; 2],
    /// Role of the opener; `None` if only resets or responses to forgeries were seen.
    opened_by: Option<NodeRole>,
    /// Distinguishes successive connections with the same endpoints.
    pub(super) serial: u64,
    /// The splice, if the proxy's device relays this connection.
    pub(super) spliced: Option<SplicedStream>,
    /// SYN-ACKs of the server: old copies of a SYN cause more than one.
    offers: Vec<TcpHeader>,
    /// First numbers of server and client, by the SYN-ACK that the client has acknowledged.
    accepted: Option<(SeqNum, SeqNum)>,
    /// The client has acknowledged one of them.
    pub(super) both: bool,
    /// An end other than the proxy has reset it.
    pub(super) reset_by_peer: bool,
    /// The most final message of each end.
    said: [LastMessage; 2],
    /// The client reset it, or it was closed in both directions.
    pub(super) over: bool,
}

/// Watches the frames of all devices.
#[derive(Debug)]
pub(crate) struct FrameChecker {
    mtu: usize,
    pub(super) server_port: u16,
    /// Role of each node.
    roles: Vec<NodeRole>,
    /// The scenario uses TLS.
    tls: bool,
    /// There is a target with the server's files; true if the connections to it use TLS.
    storage_tls: Option<bool>,
    /// There is a proxy, whose device may relay.
    proxied: bool,
    /// The scenario uses QUIC.
    quic: bool,
    /// Connections are set up with SYN cookies: while a cookie is valid, an old copy of the
    /// client's first segment after the SYN begins a connection that exists only at the server.
    pub(super) cookies: bool,
    pub(super) flows: BTreeMap<Ends, ObservedConnection>,
    /// Previous connections whose endpoints were reused.
    past: Vec<(Ends, ObservedConnection)>,
    /// Number of connections seen so far.
    serials: u64,
    /// Number of pairs that the proxy's device has begun to relay.
    pub(crate) pairs: u64,
    /// Pairs that are not watched.
    pub(crate) unwatched: u64,
    /// Pairs that a peer reset, during the splice or just before it.
    pub(super) resets: BTreeSet<u64>,
    /// Payload bytes of pairs that were compared with the source.
    pub(crate) compared: u64,
    /// Packets with retransmitted bytes.
    pub(crate) repeated: u64,
    pub(crate) plaintext: PlaintextSearch,
}

impl FrameChecker {
    pub(crate) fn new(scenario: &Scenario, nodes: usize) -> Self {
        let proxied = scenario.proxied.as_ref();
        Self {
            mtu: scenario.links.mtu.into(),
            server_port: scenario.port(),
            roles: (0..nodes).map(|node| scenario.role(node)).collect(),
            tls: scenario.tls.is_some(),
            storage_tls: scenario.remote.as_ref().map(|remote| remote.tls.is_some()),
            proxied: proxied.is_some(),
            quic: scenario.quic.is_some(),
            cookies: scenario.hand_over.set_up || proxied.is_some_and(|p| p.sets_up()),
            flows: BTreeMap::new(),
            past: Vec::new(),
            serials: 0,
            pairs: 0,
            unwatched: 0,
            resets: BTreeSet::new(),
            compared: 0,
            repeated: 0,
            plaintext: PlaintextSearch::default(),
        }
    }

    fn is(&self, node: usize, role: NodeRole) -> bool {
        self.roles.get(node) == Some(&role)
    }

    /// Returns, for each connection from that endpoint, the number of bytes of the server's stream
    /// that the client acknowledged, without FIN. A port may be reused.
    pub(crate) fn acknowledged(&self, client: Endpoint) -> impl Iterator<Item = u64> + '_ {
        self.of_client(client).map(|flow| {
            let fin = flow.streams[1].fin_at.map_or(u64::MAX, |at| at as u64);
            flow.streams[0].acknowledged.min(fin)
        })
    }

    /// Returns what the server or the proxy sent on each connection from that endpoint.
    pub(crate) fn server_bytes(&self, client: Endpoint) -> impl Iterator<Item = &[u8]> {
        self.of_client(client).map(|flow| &flow.streams[1].sent[..])
    }

    /// Checks the connections of a machine that has terminated. Returns how many it has reset.
    ///
    /// # Errors
    /// A connection that its peer still has, and that ended without a FIN or a reset.
    pub(crate) fn count_notified(&self, addresses: &[IpAddr]) -> Result<u64, String> {
        let mut told = 0;
        for (&(opener, server), flow) in self.flows.iter().filter(|(_, flow)| flow.both) {
            let own = match (addresses.contains(&opener.addr), addresses.contains(&server.addr)) {
                (true, _) => 0,
                (_, true) => 1,
                _ => continue,
            };
            let (ours, theirs) = (flow.said[own], flow.said[1 - own]);
            told += u64::from(ours == LastMessage::Reset);
            if ours == LastMessage::Something && theirs != LastMessage::Reset && !flow.over {
                return Err(format!("ended, and {opener} to {server} was told nothing"));
            }
        }
        Ok(told)
    }

    /// Notes that the machine with these addresses has lost its connections without notice to their
    /// peers.
    pub(crate) fn note_killed(&mut self, addresses: &[IpAddr]) {
        for ((opener, server), flow) in &mut self.flows {
            for (end, endpoint) in [opener, server].into_iter().enumerate() {
                if addresses.contains(&endpoint.addr) {
                    flow.said[end] = LastMessage::Nothing;
                }
            }
        }
    }

    /// Calls `f` with the numbers of streams whose sequence numbers or timestamps crossed a limit.
    pub(crate) fn visit_crossings(&self, f: &mut impl FnMut(&'static str, u64)) {
        let all = self.flows.values().chain(self.past.iter().map(|(_, flow)| flow));
        let (mut sequences, mut stamps) = ([0; 2], [0; 2]);
        for (index, limit) in [0, 1 << 31].into_iter().enumerate() {
            for stream in all.clone().filter(|flow| flow.both).flat_map(|flow| &flow.streams) {
                // A sequence number is a position modulo 2^32.
                let last = stream.iss + 1 + stream.sent.len() as u32;
                sequences[index] += u64::from(crosses(stream.iss.0, last.0, limit));
                let crossed = |(first, last)| crosses(first, last, limit);
                stamps[index] += u64::from(stream.stamps.is_some_and(crossed));
            }
        }
        f("wire_sequences_wrapped", sequences[0]);
        f("wire_sequences_half", sequences[1]);
        f("wire_timestamps_wrapped", stamps[0]);
        f("wire_timestamps_half", stamps[1]);
    }

    fn of_client(&self, client: Endpoint) -> impl Iterator<Item = &ObservedConnection> {
        let all = self.flows.iter().chain(self.past.iter().map(|(ends, flow)| (ends, flow)));
        all.filter(move |((opener, _), _)| *opener == client).map(|(_, flow)| flow)
    }

    /// Returns whether the scenario uses TLS.
    pub(crate) const fn is_tls(&self) -> bool {
        self.tls
    }

    /// Returns what each end of each client's connection sent, with TLS. Connections of the proxy
    /// with servers are left out: their server and port depend on timing.
    pub(crate) fn streams(&self) -> Vec<StreamRow> {
        let theirs = |flow: &ObservedConnection| flow.opened_by == Some(NodeRole::Client);
        let flows = self.flows.iter().filter(|(_, flow)| self.tls && theirs(flow));
        let rows = flows.flat_map(|(&(client, _), flow)| {
            [false, true].map(|from_server| {
                let sent = &flow.streams[usize::from(from_server)].sent;
                StreamRow { client, from_server, bytes: sent.len(), hash: hash_bytes(0, sent) }
            })
        });
        rows.collect()
    }

    /// Returns the sequence numbers that the server and the client of a connection expect next.
    pub(crate) fn expected(&self, ends: Ends) -> Option<[SeqNum; 2]> {
        let flow = self.flows.get(&ends).filter(|flow| flow.both)?;
        let [client, server] = &flow.streams;
        // A sequence number is a position modulo 2^32.
        let next = |ours: &ObservedStream, theirs: &ObservedStream| {
            ours.iss + 1 + theirs.acknowledged as u32
        };
        Some([next(client, server), next(server, client)])
    }

    /// Notes that a proxy's device begins to relay between two connections.
    pub(crate) fn spliced(&mut self, queue: usize, splice: &Splice) {
        self.pairs += 1;
        self.unwatched += u64::from(!super::splice::begin(self, queue, splice));
    }

    /// Notes that a host was notified of the end of a pair, or of all pairs if `id` is `None`.
    pub(crate) fn splice_closed(&mut self, node: usize, queue: usize, id: Option<SpliceId>) {
        if self.is(node, NodeRole::Proxy) {
            super::splice::close(self, queue, id);
        }
    }

    /// Returns the maximum number of pairs that peers may have reset.
    pub(crate) fn pairs_reset(&self) -> u64 {
        self.resets.len() as u64 + self.unwatched
    }

    /// Checks a frame that a device sends. Returns the values that the trace records: flags,
    /// sequence number, acknowledgment number and checksum.
    pub(crate) fn sent(
        &mut self,
        now: Instant,
        node: usize,
        frame: &SentFrame,
        known: &VersionCatalog,
        report: &mut RunReport,
    ) -> [u64; 4] {
        self.check_frame(node, frame, known).unwrap_or_else(|what| {
            report.fail(now, "wire", format!("n{node} sent a frame with {what}"));
            [0; 4]
        })
    }

    fn check_frame(
        &mut self,
        node: usize,
        frame: &SentFrame,
        known: &VersionCatalog,
    ) -> Result<[u64; 4], String> {
        let bytes = &frame.bytes[..];
        let limit = if frame.segment_size > 0 { 1 << 16 } else { self.mtu };
        if bytes.len() > limit + ETHERNET_BYTES {
            return Err(format!("{} bytes for an MTU of {}", bytes.len(), self.mtu));
        }
        let ip = match parse(bytes) {
            Ok(ParsedFrame::Ip(ip)) => ip,
            Ok(ParsedFrame::Arp { .. }) => return Ok([0, 0, 0, 1]),
            Err(error) => return Err(format!("headers that are wrong: {error:?}")),
        };
        if ip.protocol == protocol::UDP {
            return self.datagram(frame, &ip, known);
        }
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
        let (segment, header) =
            TcpHeader::parse(tcp).map_err(|e| format!("a TCP header: {e:?}"))?;
        if self.storage_tls.filter(|_| is_storage(&segment)).unwrap_or(self.tls) {
            self.plaintext.search(&tcp[header..], known)?;
        }
        let field = u64::from(u16::from_be_bytes([tcp[16], tcp[17]]));
        let seen = [segment.flags.0.into(), segment.seq.0.into(), segment.ack.0.into(), field];
        self.segment(node, &ip, &segment, &tcp[header..])?;
        Ok(seen)
    }

    /// Checks a datagram: its checksum, and that it has no plaintext.
    fn datagram(
        &mut self,
        frame: &SentFrame,
        ip: &IpPacket,
        known: &VersionCatalog,
    ) -> Result<[u64; 4], String> {
        let udp = &frame.bytes[ip.l4..ip.end];
        let (Some(payload), true) = (udp.get(UDP_BYTES..), self.quic) else {
            return Ok([0, 0, 0, u64::from(ip.protocol)]);
        };
        if !frame.checksum_partial {
            let mut sum = pseudo_header(ip.source, ip.destination, protocol::UDP, udp.len());
            sum.add(udp);
            if sum.finish() != 0 {
                return Err(String::from("a wrong UDP checksum"));
            }
        }
        self.plaintext.search(payload, known)?;
        // Equal runs have equal ciphertext.
        Ok([0, 0, 0, hash_bytes(0, payload)])
    }

    fn is_from_server(&self, node: usize, segment: &TcpHeader) -> bool {
        let is_storage = self.storage_tls.is_some() && is_storage(segment);
        let port = if is_storage { STORAGE_PORT } else { self.server_port };
        !self.is(node, NodeRole::Client) && segment.source == port
    }

    fn segment(
        &mut self,
        node: usize,
        ip: &IpPacket,
        segment: &TcpHeader,
        payload: &[u8],
    ) -> Result<(), String> {
        let from_server = self.is_from_server(node, segment);
        let source = Endpoint { addr: ip.source, port: segment.source };
        let destination = Endpoint { addr: ip.destination, port: segment.destination };
        let key = if from_server { (destination, source) } else { (source, destination) };
        if segment.flags.has(TcpFlags::RST) {
            // A reset of the server may answer an attacker's forgery.
            let by_proxy = self.is(node, NodeRole::Proxy);
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.note_reset(from_server, by_proxy);
                self.resets.extend(flow.spliced.filter(|_| !by_proxy).map(|pair| pair.number));
            }
            return Ok(());
        }
        let flow = self.flows.entry(key).or_default();
        if segment.flags.has(TcpFlags::SYN) {
            if let Some(before) = flow.begin(from_server, segment) {
                self.past.extend(before.both.then_some((key, before)));
                self.serials += 1;
                flow.serial = self.serials;
                flow.opened_by = self.roles.get(node).copied();
            }
            return Ok(());
        }
        if !from_server && !flow.both {
            flow.agree(segment);
        }
        if !flow.both {
            return Ok(());
        }
        let bare = payload.is_empty() && !segment.flags.has(TcpFlags::FIN);
        flow.note_said(usize::from(from_server), segment, bare);
        flow.over |= flow.is_closed();
        let over = flow.spliced.is_some_and(|pair| pair.closed);
        let ghost = from_server && (flow.over || over) && self.cookies;
        if bare && over && self.is(node, NodeRole::Proxy) {
            return Ok(());
        }
        let side = usize::from(from_server);
        let relayed = match self.is(node, NodeRole::Proxy) {
            true => super::splice::check_segment(self, &key, side, segment, payload)?,
            false => None,
        };
        let Some(flow) = self.flows.get_mut(&key) else { return Ok(()) };
        let (ours, theirs) = flow.streams_from(from_server);
        note_window(ours, theirs, segment);
        if self.proxied {
            note_options(ours, theirs, segment);
        }
        let Some(at) = position(ours, segment.seq) else { return Ok(()) };
        let end = at + payload.len() as u64;
        if !payload.is_empty() && end > theirs.edge + 1 && !ghost && relayed.is_none() {
            // One byte more: a zero-window probe.
            return Err(format!("bytes up to {end} for a window that ends at {}", theirs.edge));
        }
        // Bytes that were acknowledged before the splice are not compared.
        let old = relayed.map_or(0, |base| base.saturating_sub(at)).min(payload.len() as u64);
        let fin = segment.flags.has(TcpFlags::FIN);
        let recorded = ours.record(at + old, &payload[old as usize..], fin);
        let repeated = if ghost { recorded.unwrap_or(false) } else { recorded? };
        self.compared += relayed.map_or(0, |_| payload.len() as u64 - old);
        self.repeated += u64::from(repeated);
        Ok(())
    }
}

/// Returns whether a segment belongs to a connection between a server and the target with its
/// files, if there is one.
fn is_storage(segment: &TcpHeader) -> bool {
    [segment.source, segment.destination].contains(&STORAGE_PORT)
}

impl ObservedConnection {
    /// Returns the stream from one side and that from the other.
    const fn streams_from(&mut self, server: bool) -> (&mut ObservedStream, &mut ObservedStream) {
        let [to_server, to_client] = &mut self.streams;
        if server { (to_client, to_server) } else { (to_server, to_client) }
    }

    /// Notes a SYN or SYN-ACK. Returns the previous state if a new connection begins.
    fn begin(&mut self, from_server: bool, segment: &TcpHeader) -> Option<Self> {
        if from_server {
            // An established connection keeps its numbers: another SYN-ACK answers an old copy of
            // the SYN.
            if !self.both {
                self.offers.push(*segment);
            }
        } else if self.streams[0].iss != segment.seq || self.streams[0].edge == 0 {
            let before = core::mem::take(self);
            self.streams[0] = ObservedStream::begin(segment);
            return Some(before);
        }
        None
    }

    /// Notes a reset by an end.
    const fn note_reset(&mut self, from_server: bool, by_proxy: bool) {
        self.said[from_server as usize] = LastMessage::Reset;
        self.over |= !from_server;
        self.reset_by_peer |= !by_proxy;
    }

    /// Notes that an end has the connection, or has sent FIN; `bare` is true without either payload
    /// or FIN.
    fn note_said(&mut self, end: usize, segment: &TcpHeader, bare: bool) {
        if end == 1 && bare && self.accepted == Some((segment.seq, segment.ack)) {
            // The numbers of the SYN-ACK: the connection may be half-open, and an attacker
            // challenged.
            return;
        }
        let said = if segment.flags.has(TcpFlags::FIN) {
            LastMessage::Fin
        } else {
            LastMessage::Something
        };
        self.said[end] = self.said[end].max(said);
    }

    /// Returns whether both ends have acknowledged the other's FIN.
    fn is_closed(&self) -> bool {
        let [client, server] = &self.streams;
        let done = |ours: &ObservedStream, theirs: &ObservedStream| {
            ours.fin_at.is_some_and(|at| theirs.acknowledged > at as u64)
        };
        done(client, server) && done(server, client)
    }

    /// Notes the client's acknowledgment of one of the SYN-ACKs, which establishes the connection.
    fn agree(&mut self, segment: &TcpHeader) {
        let answered = |offer: &&TcpHeader| offer.seq + 1 == segment.ack;
        if let Some(offer) = self.offers.iter().rev().find(answered) {
            self.streams[1] = ObservedStream::begin(offer);
            // The client may have received any of the copies.
            let stamps = self.offers.iter().filter(answered).filter_map(|o| o.options.timestamps);
            self.streams[1].tsvals.extend(stamps.map(|ts| ts.value));
            self.both = true;
            self.accepted = Some((offer.seq + 1, offer.ack));
            self.offers = Vec::new();
        }
    }
}

/// Returns the position of a sequence number in a stream, counted from after the SYN; `None` if it
/// precedes that.
pub(super) fn position(stream: &ObservedStream, seq: SeqNum) -> Option<u64> {
    u64::try_from(seq.distance(stream.iss + 1)).ok()
}

/// Notes a segment's timestamp, acknowledgment and window.
fn note_window(ours: &mut ObservedStream, theirs: &ObservedStream, segment: &TcpHeader) {
    if let Some(ts) = segment.options.timestamps {
        ours.stamps = Some((ours.stamps.map_or(ts.value, |stamps| stamps.0), ts.value));
    }
    if !segment.flags.has(TcpFlags::ACK) {
        return;
    }
    let Some(ack) = position(theirs, segment.ack) else { return };
    ours.acknowledged = ours.acknowledged.max(ack);
    ours.edge = ours.edge.max(ack + window(ours, theirs, segment));
}

/// Notes a segment's timestamp and SACK blocks.
fn note_options(ours: &mut ObservedStream, theirs: &ObservedStream, segment: &TcpHeader) {
    ours.tsvals.extend(segment.options.timestamps.map(|ts| ts.value));
    for block in segment.options.sack() {
        let edges = position(theirs, block.start).zip(position(theirs, block.end));
        ours.sacked.extend(edges);
    }
}

/// Returns the window that a segment advertises, in bytes.
pub(super) fn window(ours: &ObservedStream, theirs: &ObservedStream, segment: &TcpHeader) -> u64 {
    let scale = if ours.scaled && theirs.scaled { ours.scale } else { 0 };
    u64::from(segment.window) << scale
}

/// Returns the index of the first byte in which two slices of equal length differ.
fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b { None } else { a.iter().zip(b).position(|(a, b)| a != b) }
}

impl ObservedStream {
    fn begin(segment: &TcpHeader) -> Self {
        Self {
            iss: segment.seq,
            scale: segment.options.window_scale.unwrap_or(0).min(14),
            scaled: segment.options.window_scale.is_some(),
            edge: segment.window.into(),
            tsvals: segment.options.timestamps.iter().map(|ts| ts.value).collect(),
            ..Self::default()
        }
    }

    /// Records bytes that are sent. Returns whether some were sent before.
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
        // Gaps of bytes that were never sent are zeros.
        if self.sent.len() < at {
            self.sent.resize(at, 0);
        }
        let (again, new) = payload.split_at((self.sent.len() - at).min(payload.len()));
        self.sent.extend_from_slice(new);
        let (mut first, mut last, mut repeated) = (at, end, false);
        // Known ranges that overlap or touch this one, in descending order.
        while let Some((&from, &to)) = self.known.range(..=end).next_back() {
            if to < at {
                break;
            }
            let (here, behind) = (from.max(at), to.min(end));
            if here < behind {
                repeated = true;
                let (before, now) = (&self.sent[here..behind], &payload[here - at..behind - at]);
                if let Some(index) = first_difference(before, now) {
                    let wrong = here + index;
                    return Err(format!("other bytes than before at {wrong}, {at}..{end}"));
                }
            }
            (first, last) = (first.min(from), last.max(to));
            self.known.remove(&from);
        }
        self.sent[at..at + again.len()].copy_from_slice(again);
        self.known.insert(first, last);
        Ok(repeated)
    }
}

//! A stream of NVMe/TCP PDUs delivered in arbitrary packets, and a host model that knows the whole
//! stream and compares every claim of the device with it, byte by byte.

use abi::aligned::AlignedBuf;
use abi::crypto::CryptoProvider as _;
use abi::inspect::{InspectClaims, InspectState, InspectedContent};
use abi::l5o::{L5oCreate, L5oDirection, L5oId, L5oState, ResyncRequest};
use abi::link::RxFrame;
use abi::nvme_tcp::{
    DdpBuffer, DdpId, DdpSetup, DdpTeardownDone, NvmeRxClaims, NvmeTcpState, TlsCarrier,
};
use abi::{Checksum, Event, FlowId, Op, PacketPool, ReceivedFrame};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use base::{Prng, SeqNum};
use core::ops::Range;
use patterns::PatternSet;
use testkit::PLAIN_LINK;

use super::frames::MAC;
use super::l5o_stream::{START, frame, tuple};
use super::l5o_tx::TlsTestPeer;
use super::rig::Rig;
use crate::{DeviceConfig, L5oConfig};

pub(super) const CONTEXT: L5oId = L5oId(90);
pub(super) const TLS: L5oId = L5oId(91);
pub(super) const INSPECT: L5oId = L5oId(92);
pub(super) const FLOW: FlowId = FlowId(7);
/// Number of the first TLS record.
pub(super) const NUMBER: u64 = 5;

/// Digests of the PDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digests {
    pub(super) header: bool,
    pub(super) data: bool,
}

pub(super) const ALL: [Digests; 4] = [
    Digests { header: false, data: false },
    Digests { header: true, data: false },
    Digests { header: false, data: true },
    Digests { header: true, data: true },
];
pub(super) const BOTH: Digests = ALL[3];

/// A PDU of the stream.
#[derive(Clone, Debug)]
pub(super) struct ExpectedPdu {
    pub(super) at: Range<usize>,
    /// Tag, `DATAO` and position in the stream of its data.
    pub(super) data: Option<(u16, u32, Range<usize>)>,
}

/// A sequence of PDUs.
#[derive(Clone, Debug)]
pub(super) struct PduStream {
    pub(super) digests: Digests,
    /// Alignment of data in bytes.
    pub(super) align: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) pdus: Vec<ExpectedPdu>,
    pub(super) prng: Prng,
}

impl PduStream {
    pub(super) fn new(digests: Digests, seed: u64) -> Self {
        Self { digests, align: 4, bytes: vec![], pdus: vec![], prng: Prng::new(seed) }
    }

    pub(super) fn random(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| u8::try_from(self.prng.next_u64() % 256).unwrap()).collect()
    }

    /// Appends a PDU: type, flags without those of digests, header after the common header, data.
    /// Returns the position of the data.
    pub(super) fn push(&mut self, kind: u8, flags: u8, rest: &[u8], data: &[u8]) -> Range<usize> {
        let Digests { header, data: digest } = self.digests;
        let hlen = 8 + rest.len();
        let front = hlen + if header { 4 } else { 0 };
        let pdo = if data.is_empty() { 0 } else { front.next_multiple_of(self.align) };
        let digest = digest && !data.is_empty();
        let plen = pdo.max(front) + data.len() + if digest { 4 } else { 0 };
        let flags = flags | u8::from(header) | u8::from(digest) << 1;
        let (hlen, pdo) = (u8::try_from(hlen).unwrap(), u8::try_from(pdo).unwrap());
        let mut pdu = vec![kind, flags, hlen, pdo];
        pdu.extend(u32::try_from(plen).unwrap().to_le_bytes());
        pdu.extend(rest);
        if header {
            pdu.extend(crypto::Provider.crc32c(0, &pdu).to_le_bytes());
        }
        pdu.resize(pdu.len().max(usize::from(pdo)), 0);
        let start = self.bytes.len();
        let from = start + pdu.len();
        pdu.extend(data);
        if digest {
            pdu.extend(crypto::Provider.crc32c(0, data).to_le_bytes());
        }
        self.bytes.extend(&pdu);
        self.pdus.push(ExpectedPdu { at: start..self.bytes.len(), data: None });
        from..from + data.len()
    }

    /// Appends a C2HData for a command (`to_host`), or an H2CData for an R2T.
    pub(super) fn data_pdu(&mut self, to_host: bool, tag: u16, offset: u32, data: &[u8]) {
        let mut rest = [0; 16];
        let tag_at = if to_host { 0 } else { 2 };
        rest[tag_at..tag_at + 2].copy_from_slice(&tag.to_le_bytes());
        rest[4..8].copy_from_slice(&offset.to_le_bytes());
        rest[8..12].copy_from_slice(&u32::try_from(data.len()).unwrap().to_le_bytes());
        let range = self.push(if to_host { 7 } else { 6 }, 0, &rest, data);
        self.pdus.last_mut().unwrap().data = Some((tag, offset, range));
    }

    pub(super) fn c2h(&mut self, tag: u16, offset: u32, len: usize) {
        let data = self.random(len);
        self.data_pdu(true, tag, offset, &data);
    }

    pub(super) fn response(&mut self, tag: u16) {
        let mut rest = [0; 16];
        rest[12..14].copy_from_slice(&tag.to_le_bytes());
        self.push(5, 0, &rest, &[]);
    }

    pub(super) fn command(&mut self, len: usize) {
        let data = self.random(len);
        self.push(4, 0, &[1; 64], &data);
    }

    /// Returns `count` reads of `len` bytes, each a C2HData and a response, with consecutive tags.
    pub(super) fn reads(digests: Digests, count: usize, len: usize) -> Self {
        let mut content = Self::new(digests, 77);
        for nth in 0..count {
            let tag = u16::try_from(nth).unwrap();
            content.c2h(tag, 0, len);
            content.response(tag);
        }
        content
    }
}

/// Returns the bytes of a returned buffer.
pub(super) fn placed_bytes(done: &DdpTeardownDone) -> &[u8] {
    let DdpBuffer::Pages(pages) = &done.buffer else { panic!("of another process") };
    pages.as_slice()
}

/// Claim about a received byte: tag and `DATAO` at which the device placed it, or `None`.
type PlacementClaim = Option<(u16, u32)>;

/// Device, sender and host.
pub(super) struct NvmeRxFlow {
    pub(super) rig: Rig,
    pub(super) content: PduStream,
    /// The bytes on the link: the content, or TLS records of it.
    pub(super) wire: Vec<u8>,
    /// For each byte of `wire`, its position in the content, if it is content.
    places: Vec<Option<usize>>,
    /// For each byte of `wire`, the claim about the first copy received.
    have: Vec<Option<PlacementClaim>>,
    /// For each byte of `wire`, how many claims include it in a sum.
    summed: Vec<u8>,
    /// Positions of PDUs claimed as verified.
    pub(super) verified: Vec<usize>,
    /// TLS records, and the numbers of those claimed as verified.
    pub(super) records: Vec<Range<usize>>,
    pub(super) records_verified: Vec<u64>,
    pub(super) requests: Vec<SeqNum>,
    /// Returned buffers, and `DATAO` of the registered ones by tag.
    pub(super) returned: Vec<DdpTeardownDone>,
    pub(super) offsets: BTreeMap<u16, u32>,
    /// Claims about the last packet.
    pub(super) placed: Option<NvmeRxClaims>,
    /// Offsets of packets in the stream, each with the claims about inspected data.
    pub(super) inspected: Vec<(usize, InspectClaims)>,
    /// Claims that do not match the stream.
    pub(super) wrong: usize,
    /// Requests of the TLS context.
    pub(super) tls_requests: Vec<SeqNum>,
    pool: PacketPool,
}

pub(super) fn state(digests: Digests) -> NvmeTcpState {
    NvmeTcpState {
        header_digest: digests.header,
        data_digest: digests.data,
        pdu_bytes_max: 2 << 20,
        tls: None,
    }
}

pub(super) fn create(id: L5oId, state: NvmeTcpState) -> Op {
    Op::L5oCreate(Box::new(L5oCreate {
        context: id,
        flow: FLOW,
        direction: L5oDirection::Receive(tuple()),
        tcpsn: SeqNum(START),
        state: L5oState::NvmeTcp(state),
    }))
}

impl NvmeRxFlow {
    /// Creates a stream on plain TCP.
    pub(super) fn new(content: PduStream, config: L5oConfig) -> Self {
        let places = (0..content.bytes.len()).map(Some).collect();
        let wire = content.bytes.clone();
        let mut flow = Self::of(content, config, wire, places);
        flow.rig.op(0, create(CONTEXT, state(flow.content.digests)));
        flow
    }

    fn of(
        content: PduStream,
        config: L5oConfig,
        wire: Vec<u8>,
        places: Vec<Option<usize>>,
    ) -> Self {
        let config = DeviceConfig { l5o: Some(config), ..DeviceConfig::new(MAC) };
        Self {
            rig: Rig::with(config, PLAIN_LINK),
            content,
            wire,
            places,
            have: vec![],
            summed: vec![],
            verified: vec![],
            records: vec![],
            records_verified: vec![],
            requests: vec![],
            returned: vec![],
            offsets: BTreeMap::new(),
            placed: None,
            inspected: vec![],
            wrong: 0,
            tls_requests: vec![],
            pool: PacketPool::new(4),
        }
    }

    /// Creates a stream in TLS records with these content lengths, cyclically.
    pub(super) fn over_tls(
        content: PduStream,
        config: L5oConfig,
        peer: TlsTestPeer,
        lens: &[usize],
    ) -> Self {
        let (mut wire, mut places, mut records) = (vec![], vec![], vec![]);
        let (mut from, mut number) = (0, NUMBER);
        while from < content.bytes.len() {
            let len = lens[usize::try_from(number - NUMBER).unwrap() % lens.len()];
            let to = (from + len).min(content.bytes.len());
            let record = peer.seal(number, 23, &content.bytes[from..to]);
            let start = wire.len();
            let front = peer.framing().full_header_len();
            places.extend(vec![None; front]);
            places.extend((from..to).map(Some));
            wire.extend(&record);
            places.resize(wire.len(), None);
            records.push(start..wire.len());
            (from, number) = (to, number + 1);
        }
        let mut flow = Self::of(content, config, wire, places);
        flow.records = records;
        flow.rig.op(0, peer.create(TLS, L5oDirection::Receive(tuple()), START, NUMBER));
        let over = Some(TlsCarrier { context: TLS, first_record: NUMBER, skip: 0 });
        flow.rig.op(0, create(CONTEXT, NvmeTcpState { tls: over, ..state(flow.content.digests) }));
        flow
    }

    /// Creates a context that inspects the data of commands.
    pub(super) fn inspect(&mut self, patterns: &Arc<PatternSet>) {
        let (patterns, content) = (Arc::clone(patterns), InspectedContent::NvmeData);
        self.rig.op(
            0,
            Op::L5oCreate(Box::new(L5oCreate {
                context: INSPECT,
                flow: FLOW,
                direction: L5oDirection::Receive(tuple()),
                tcpsn: SeqNum(START),
                state: L5oState::Inspect(InspectState { patterns, content }),
            })),
        );
    }

    /// Returns the offset in the stream of packets of a byte of the content.
    pub(super) fn wire_of(&self, content: usize) -> usize {
        let mut places = self.places.iter();
        places.position(|place| *place == Some(content)).expect("content is in the stream")
    }

    /// Registers a buffer.
    pub(super) fn setup(&mut self, tag: u16, offset: u32, len: usize) {
        let buffer = DdpBuffer::Pages(AlignedBuf::new(len.div_ceil(4096)));
        let len = u32::try_from(len).unwrap();
        let (context, flow, id) = (CONTEXT, FLOW, DdpId(tag.into()));
        let setup = DdpSetup { context, flow, tag, id, offset, len, filled: 0, buffer };
        self.rig.op(0, Op::DdpSetup(Box::new(setup)));
        self.offsets.insert(tag, offset);
        self.collect();
    }

    /// Registers a buffer for each tag of the stream, for all data of the tag.
    pub(super) fn setup_all(&mut self) {
        let mut ranges: BTreeMap<u16, Range<u32>> = BTreeMap::new();
        for (tag, offset, range) in self.content.pdus.iter().filter_map(|pdu| pdu.data.clone()) {
            let end = offset + u32::try_from(range.len()).unwrap();
            let all = ranges.entry(tag).or_insert(offset..end);
            *all = all.start.min(offset)..all.end.max(end);
        }
        for (tag, range) in ranges {
            self.setup(tag, range.start, (range.end - range.start) as usize);
        }
        self.rig.moved(&[]);
    }

    pub(super) fn collect(&mut self) {
        for (_, event) in core::mem::take(&mut self.rig.events) {
            self.event(event);
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::DdpTeardownDone(done) => self.returned.push(*done),
            Event::L5oResyncRxReq { context, request, .. } => {
                let ResyncRequest::Scan { tcpsn } = request else { panic!("{request:?}") };
                if context == CONTEXT {
                    self.requests.push(tcpsn);
                } else {
                    self.tls_requests.push(tcpsn);
                }
            }
            Event::L5oRefused(refused) => panic!("{refused:?}"),
            _ => {}
        }
    }

    /// Delivers a range of the stream as one packet.
    pub(super) fn deliver(&mut self, range: Range<usize>) {
        let bytes = self.wire[range.clone()].to_vec();
        self.deliver_bytes(range.start, &bytes);
    }

    pub(super) fn deliver_in(&mut self, range: Range<usize>, step: usize) {
        for from in range.clone().step_by(step) {
            self.deliver(from..(from + step).min(range.end));
        }
    }

    /// Delivers bytes at a position of the stream; they may differ from the sender's.
    pub(super) fn deliver_bytes(&mut self, at: usize, bytes: &[u8]) {
        let seq = START.wrapping_add(u32::try_from(at).unwrap());
        let frame = frame(4, seq, bytes);
        let head = frame.len() - bytes.len();
        let packet = self.pool.copy(&frame).unwrap();
        let frame_in = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
        self.rig.device.handle_frame(self.rig.now, frame_in);
        self.rig.collect();
        self.placed = None;
        let filled_before = self.rig.events.iter().position(|e| is_done(&e.1));
        let received = self.rig.events.iter().position(|e| matches!(e.1, Event::Received(_)));
        assert!(filled_before.is_none_or(|filled| filled > received.unwrap()), "right after it");
        for (_, event) in core::mem::take(&mut self.rig.events) {
            if let Event::Received(received) = event {
                let got = received.packet.as_slice();
                assert_eq!(got[..head], frame[..head], "headers are never touched");
                assert!(received.metadata.decrypted.is_some() || got == frame, "only read");
                self.take(at, bytes.len(), received);
            } else {
                self.event(event);
            }
        }
    }

    /// Delivers bytes at any position; the claims are not checked.
    pub(super) fn deliver_unchecked(&mut self, at: usize, bytes: &[u8]) {
        let at = u32::try_from(at as u64 & u64::from(u32::MAX)).unwrap();
        let packet = self.pool.copy(&frame(4, START.wrapping_add(at), bytes)).unwrap();
        let frame = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
        self.rig.device.handle_frame(self.rig.now, frame);
        self.rig.collect();
        self.collect();
    }

    /// Receives a packet as a host that checks each claim.
    fn take(&mut self, at: usize, len: usize, received: ReceivedFrame) {
        if let Some(opened) = received.metadata.decrypted.clone() {
            self.records_verified.extend(opened.verified);
        }
        let inspected = received.metadata.inspected().cloned();
        self.inspected.extend(inspected.into_iter().map(|claims| (at, claims)));
        let mut claims: Vec<PlacementClaim> = vec![None; len];
        if let Some(placed) = received.metadata.nvme_tcp().cloned() {
            assert_eq!(placed.context, Some(CONTEXT));
            let any = [placed.placements.len(), placed.verified.len(), placed.summed.len()];
            assert_ne!(any, [0; 3]);
            let mut end = 0;
            for placement in &placed.placements {
                let range = placement.range.start as usize..placement.range.end as usize;
                assert!(range.start >= end && !range.is_empty() && range.end <= len);
                end = range.end;
                for (nth, claim) in (0_u32..).zip(&mut claims[range]) {
                    let tag = u16::try_from(placement.id.0).unwrap();
                    *claim = Some((tag, placement.offset.wrapping_add(nth)));
                }
            }
            self.summed.resize(self.summed.len().max(at + len), 0);
            for range in &placed.summed {
                let range = at + range.start as usize..at + range.end as usize;
                self.summed[range].iter_mut().for_each(|count| *count += 1);
            }
            for pos in &placed.verified {
                self.verified.push(pos.0.wrapping_sub(START) as usize);
            }
            self.placed = Some(placed);
        }
        self.have.resize(self.have.len().max(at + len), None);
        for (have, claim) in self.have[at..].iter_mut().zip(claims) {
            *have = have.or(Some(claim));
        }
    }

    /// Returns the position in the content of the first content byte at or after byte `wire` of the
    /// stream.
    pub(super) fn content_before(&self, wire: usize) -> usize {
        let next = self.places[wire..].iter().find_map(|place| *place);
        next.unwrap_or(self.content.bytes.len())
    }

    /// Answers all requests.
    pub(super) fn answers(&mut self) {
        for tcpsn in core::mem::take(&mut self.requests) {
            self.answer(tcpsn);
        }
    }

    pub(super) fn answer(&mut self, tcpsn: SeqNum) {
        let at = tcpsn.0.wrapping_sub(START) as usize;
        let number = self.content.pdus.iter().any(|pdu| pdu.at.start == at).then_some(0);
        self.rig.op(0, Op::L5oResyncRxResp { context: CONTEXT, tcpsn, number });
        self.collect();
    }

    pub(super) fn answer_tls(&mut self, tcpsn: SeqNum) {
        let at = tcpsn.0.wrapping_sub(START) as usize;
        let number = self.records.iter().position(|record| record.start == at);
        let number = number.map(|number| number as u64 + NUMBER);
        self.rig.op(0, Op::L5oResyncRxResp { context: TLS, tcpsn, number });
        self.collect();
    }

    /// Takes all buffers back, each once, and checks that every byte that the host accepts as
    /// placed is in its buffer. Returns the numbers of PDUs with data that are fully, partly and
    /// not offloaded.
    pub(super) fn check(&mut self) -> [usize; 3] {
        for tag in self.offsets.keys().copied().collect::<Vec<_>>() {
            self.rig.op(0, Op::DdpTeardown { context: CONTEXT, tag });
        }
        self.collect();
        let mut buffers = BTreeMap::new();
        for done in &self.returned {
            assert_eq!((done.context, done.flow, done.refused), (CONTEXT, FLOW, None));
            assert!(buffers.insert(done.tag, placed_bytes(done)).is_none(), "returned once");
        }
        assert!(buffers.keys().eq(self.offsets.keys()), "every one is returned");
        let wire_at: Vec<usize> =
            (0..).zip(&self.places).filter_map(|(at, place)| place.map(|_| at)).collect();
        let (mut counts, mut right) = ([0; 3], 0);
        for pdu in &self.content.pdus {
            let said = self.verified.iter().filter(|&&at| at == pdu.at.start).count();
            assert!(said <= 1, "verified once");
            let Some((tag, offset, range)) = pdu.data.clone() else { continue };
            if said == 1 && self.content.digests.data && self.records.is_empty() {
                assert!(self.summed[range.clone()].iter().all(|&count| count == 1), "summed once");
            }
            let mut placed = 0;
            for (nth, at) in (0..).zip(range.clone()) {
                let byte = wire_at[at];
                let claim = self.have.get(byte).copied().flatten().flatten();
                let believed =
                    self.record_of(byte).is_none_or(|n| self.records_verified.contains(&n));
                let Some(claim) = claim.filter(|_| believed) else { continue };
                if claim != (tag, offset + nth) {
                    continue;
                }
                let from = (offset + nth - self.offsets[&tag]) as usize;
                let is = buffers[&tag][from];
                assert_eq!(is, self.content.bytes[at], "byte {nth} of tag {tag} at {at}");
                placed += 1;
            }
            right += placed;
            let verified = said == 1 || !self.content.digests.data;
            let full = placed == range.len() && verified;
            let kind = if full {
                0
            } else if placed > 0 || said == 1 {
                1
            } else {
                2
            };
            counts[kind] += 1;
        }
        // Everything else that is claimed is wrong.
        let believed = |at: usize| {
            self.record_of(at).is_none_or(|number| self.records_verified.contains(&number))
        };
        let claimed = (0..)
            .zip(&self.have)
            .filter(|(at, claim)| claim.is_some_and(|claim| claim.is_some()) && believed(*at));
        self.wrong = claimed.count() - right;
        assert_eq!(self.rig.counter("nvme_tcp_buffers"), 0);
        assert_eq!(self.rig.counter("nvme_tcp_buffer_bytes"), 0);
        counts
    }

    /// Returns the number of the record of a byte, if there are records.
    fn record_of(&self, byte: usize) -> Option<u64> {
        let at = self.records.partition_point(|record| record.end <= byte);
        (at < self.records.len()).then_some(at as u64 + NUMBER)
    }

    pub(super) fn moved(&mut self) -> Vec<String> {
        self.rig.moved(&["rx_nvmeotcp", "nvme_tcp"])
    }
}

fn is_done(event: &Event) -> bool {
    matches!(event, Event::DdpTeardownDone(_))
}

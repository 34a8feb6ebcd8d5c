//! A stream of TLS records delivered in arbitrary packets, and a host model that verifies every
//! claim of the device.

use abi::l5o::{L5oDecrypted, L5oDirection, L5oId, ResyncMode, ResyncRequest};
use abi::link::RxFrame;
use abi::{Checksum, Event, Op, PacketPool};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use base::{Prng, SeqNum};
use core::ops::Range;
use testkit::PLAIN_LINK;
use wire::frame::protocol;
use wire::{Endpoint, Tuple};

use super::frames::{MAC, packet};
use super::l5o_tx::TlsTestPeer;
use super::rig::Rig;
use crate::{DeviceConfig, L5oConfig};

/// Sequence number of the first record.
pub(super) const START: u32 = 0xfffe_0000;
pub(super) const CONTEXT: L5oId = L5oId(80);
/// Number of the first record.
pub(super) const NUMBER: u64 = 3;

/// A record of the stream.
#[derive(Clone, Debug)]
pub(super) struct StreamRecord {
    pub(super) at: Range<usize>,
    pub(super) content: Vec<u8>,
}

/// Claim about a received byte: number and offset of the record under which it was decrypted, or
/// `None`.
type DecryptionClaim = Option<(u64, u32)>;

/// Device, sender and host.
pub(super) struct TlsRxFlow {
    pub(super) rig: Rig,
    pub(super) peer: TlsTestPeer,
    pub(super) wire: Vec<u8>,
    pub(super) records: Vec<StreamRecord>,
    /// Value and claim of each byte, from the first copy received.
    have: BTreeMap<usize, (u8, DecryptionClaim)>,
    /// Records that the device reported as verified.
    pub(super) verified: Vec<u64>,
    pub(super) requests: Vec<ResyncRequest>,
    version: u8,
    pool: PacketPool,
}

pub(super) fn tuple() -> Tuple {
    Tuple {
        local: Endpoint { addr: [10, 77, 0, 1].into(), port: 40_000 },
        remote: Endpoint { addr: [10, 77, 0, 2].into(), port: 80 },
    }
}

pub(super) fn config(out_of_order: bool, resync: ResyncMode) -> L5oConfig {
    L5oConfig { out_of_order, resync, ..L5oConfig::new(Arc::new(crypto::Provider)) }
}

impl TlsRxFlow {
    /// Creates a stream of records with contents of these lengths.
    pub(super) fn new(peer: TlsTestPeer, config: L5oConfig, lens: &[usize]) -> Self {
        let mut prng = Prng::new(5);
        let (mut wire, mut records) = (vec![], vec![]);
        for (number, &len) in (NUMBER..).zip(lens) {
            let content: Vec<u8> =
                (0..len).map(|_| u8::try_from(prng.next_u64() % 256).unwrap()).collect();
            let start = wire.len();
            wire.extend(peer.seal(number, 23, &content));
            records.push(StreamRecord { at: start..wire.len(), content });
        }
        Self::of(peer, config, wire, records)
    }

    pub(super) fn of(
        peer: TlsTestPeer,
        config: L5oConfig,
        wire: Vec<u8>,
        records: Vec<StreamRecord>,
    ) -> Self {
        let config = DeviceConfig { l5o: Some(config), ..DeviceConfig::new(MAC) };
        let mut rig = Rig::with(config, PLAIN_LINK);
        rig.op(0, peer.create(CONTEXT, L5oDirection::Receive(tuple()), START, NUMBER));
        rig.moved(&[]);
        Self {
            rig,
            peer,
            wire,
            records,
            have: BTreeMap::new(),
            verified: vec![],
            requests: vec![],
            version: 4,
            pool: PacketPool::new(4),
        }
    }

    /// Delivers a range of the stream as one packet.
    pub(super) fn deliver(&mut self, range: Range<usize>) -> Option<L5oDecrypted> {
        let bytes = self.wire[range.clone()].to_vec();
        self.deliver_bytes(range.start, &bytes)
    }

    /// Delivers bytes at a position of the stream; they may differ from the sender's.
    pub(super) fn deliver_bytes(&mut self, at: usize, bytes: &[u8]) -> Option<L5oDecrypted> {
        let seq = START.wrapping_add(u32::try_from(at).unwrap());
        let frame = frame(self.version, seq, bytes);
        let head = frame.len() - bytes.len();
        let packet = self.pool.copy(&frame).unwrap();
        let frame_in = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
        self.rig.device.handle_frame(self.rig.now, frame_in);
        self.rig.collect();
        let mut opened = None;
        for (_, event) in core::mem::take(&mut self.rig.events) {
            match event {
                Event::Received(received) => {
                    let got = received.packet.as_slice();
                    assert_eq!(got[..head], frame[..head], "headers are never touched");
                    self.take(at, bytes, &got[head..], received.metadata.decrypted.as_ref());
                    opened = received.metadata.decrypted;
                }
                Event::L5oResyncRxReq { context, request, .. } => {
                    assert_eq!(context, CONTEXT);
                    self.requests.push(request);
                }
                _ => {}
            }
        }
        opened
    }

    /// Answers a resync request: with the record's number if one begins at `tcpsn`.
    pub(super) fn answer(&mut self, tcpsn: SeqNum) {
        let at = tcpsn.0.wrapping_sub(START) as usize;
        let number = self.records.iter().position(|record| record.at.start == at);
        let number = number.map(|number| number as u64 + NUMBER);
        self.rig.op(0, Op::L5oResyncRxResp { context: CONTEXT, tcpsn, number });
    }

    /// Answers all requests.
    pub(super) fn answers(&mut self) {
        for request in core::mem::take(&mut self.requests) {
            if let ResyncRequest::Scan { tcpsn } | ResyncRequest::AsyncEnd { tcpsn } = request {
                self.answer(tcpsn);
            }
        }
    }

    /// Sends a hint if a record begins at `at`.
    pub(super) fn hint(&mut self, at: usize) {
        if self.records.iter().any(|record| record.at.start == at) {
            self.answer(SeqNum(START.wrapping_add(u32::try_from(at).unwrap())));
        }
    }

    /// Receives a packet as a host that checks each claim.
    fn take(&mut self, at: usize, sent: &[u8], got: &[u8], opened: Option<&L5oDecrypted>) {
        let range = opened.map_or(0..0, |o| o.range.start as usize..o.range.end as usize);
        assert!(range.end <= got.len());
        assert_eq!(got[..range.start], sent[..range.start], "as it came");
        assert_eq!(got[range.end..], sent[range.end..], "as it came");
        let mut under: Vec<DecryptionClaim> = vec![None; got.len()];
        if let Some(opened) = opened {
            assert!(!range.is_empty());
            let mut closed = got.to_vec();
            self.undo(opened, &mut closed, &mut under);
            assert_eq!(closed, sent, "what was opened can be closed again");
            self.verified.extend(opened.verified.clone());
        }
        for (nth, (&byte, under)) in got.iter().zip(under).enumerate() {
            self.have.entry(at + nth).or_insert((byte, under));
        }
    }

    /// Encrypts a decrypted range again, using only the device's claim, and records which bytes are
    /// text of which message.
    fn undo(&self, opened: &L5oDecrypted, bytes: &mut [u8], under: &mut [DecryptionClaim]) {
        use abi::crypto::CryptoProvider as _;
        let (framing, suite) = (self.peer.framing(), self.peer.suite);
        let key = &self.peer.key[..suite.key_bytes()];
        let key = crypto::Provider.aead(suite, key).unwrap();
        let (end, last) = (opened.range.end as usize, i64::from(opened.range.end));
        let before = i64::try_from(framing.full_header_len()).unwrap();
        let mut front = [0; 13];
        front[5..].copy_from_slice(&opened.explicit_nonce);
        let mut start = i64::from(opened.range.start) - i64::from(opened.offset);
        let (mut number, mut len) = (opened.number, opened.message_len);
        loop {
            let text = start + before..start + i64::from(len) - 16;
            let from = text.start.max(i64::from(opened.range.start)).min(last);
            let to = text.end.min(last).max(from);
            let nonce = framing.received_nonce(&self.peer.iv, number, &front);
            let offset = u64::try_from(from - text.start).unwrap_or(0);
            let range = usize::try_from(from).unwrap()..usize::try_from(to).unwrap();
            key.apply_keystream(&nonce, offset, &mut bytes[range.clone()]);
            for (at, under) in (offset..).zip(&mut under[range]) {
                *under = Some((number, u32::try_from(at).unwrap()));
            }
            start += i64::from(len);
            number = number.wrapping_add(1);
            let Ok(next) = usize::try_from(start) else { return };
            if next + framing.full_header_len() > end {
                return;
            }
            front[..framing.full_header_len()]
                .copy_from_slice(&bytes[next..next + framing.full_header_len()]);
            let header = framing.parse(*front.first_chunk().unwrap()).expect("a header");
            len = 5 + u32::from(header.len);
        }
    }

    /// Returns whether the host has the whole record as plaintext under its number.
    fn is_open(&self, nth: usize) -> bool {
        let record = &self.records[nth];
        let front = self.peer.framing().full_header_len();
        (0..record.content.len()).all(|offset| {
            let number = nth as u64 + NUMBER;
            let want = (record.content[offset], Some((number, u32::try_from(offset).unwrap())));
            self.have.get(&(record.at.start + front + offset)) == Some(&want)
        })
    }

    /// Returns the number of records that the device decrypted and verified completely. Checks that
    /// a verified record is correct if every byte of it was decrypted under its number.
    pub(super) fn offloaded(&self) -> usize {
        let mut count = 0;
        for (nth, record) in self.records.iter().enumerate() {
            let number = nth as u64 + NUMBER;
            let said = self.verified.iter().filter(|&&verified| verified == number).count();
            assert!(said <= 1, "a record is verified once");
            let front = self.peer.framing().full_header_len();
            let under = (0..record.content.len()).all(|offset| {
                let under = Some((number, u32::try_from(offset).unwrap()));
                let have = self.have.get(&(record.at.start + front + offset));
                have.is_some_and(|have| have.1 == under)
            });
            if said == 1 && under {
                assert!(self.is_open(nth), "a verified record that is wrong");
                count += 1;
            }
        }
        count
    }

    pub(super) fn moved(&mut self) -> Vec<String> {
        let moved = self.rig.moved(&["rx_tls", "l5o_"]);
        moved.into_iter().filter(|name| !name.starts_with("l5o_cache_hits")).collect()
    }
}

/// Returns a TCP packet of the peer.
pub(super) fn frame(version: u8, seq: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = packet(version, protocol::TCP, payload);
    frame[38..42].copy_from_slice(&seq.to_be_bytes());
    frame
}

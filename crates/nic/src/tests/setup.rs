//! Set-up offload as exchanges of frames: handshakes, SYNs passed to the host, floods and
//! forgeries.

use abi::link::LinkCaps;
use abi::setup::{CookieSecret, Established, HandshakeSegment, ListenId, SetupListen};
use abi::{Event, Op};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use base::{Duration, Instant, Prng, SeqNum};
use core::net::IpAddr;
use proptest::prelude::*;
use testkit::PLAIN_LINK;
use wire::emit::{EthernetAddrs, IpHeader};
use wire::frame::protocol;
use wire::segment::{HeaderLayout, tcp_packet};
use wire::tcp::{TcpFlags, TcpHeader, TcpOptions, TcpTimestamps};
use wire::{Endpoint, Tuple};

use super::frames::{MAC, bytes_of, rx_frame};
use super::rig::Rig;
use crate::{DeviceConfig, SetupConfig};

pub(super) const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const IRS: SeqNum = SeqNum(0xffff_fffe);
/// 36 s into the second epoch.
const NOW: Instant = Instant::from_millis(100_000);
/// MSS values that a cookie can encode.
const MSS: [u16; 8] = [536, 1220, 1300, 1360, 1400, 1440, 1460, 8940];
const EPOCH: Duration = Duration::from_secs(64);
/// Numbers in tests were found by search with this secret.
const SECRET: CookieSecret =
    CookieSecret([u64::from_be_bytes(*b"outboard"), u64::from_be_bytes(*b"setup ck")]);

pub(super) fn local(version: u8) -> IpAddr {
    if version == 4 { [10, 77, 0, 1].into() } else { [0xfd77, 0, 0, 0, 0, 0, 0, 1].into() }
}

pub(super) fn tuple(version: u8, port: u16) -> Tuple {
    let remote =
        if version == 4 { [10, 77, 0, 2].into() } else { [0xfd77, 0, 0, 0, 0, 0, 0, 2].into() };
    Tuple {
        local: Endpoint { addr: local(version), port: 80 },
        remote: Endpoint { addr: remote, port },
    }
}

pub(super) fn listen(id: u32) -> SetupListen {
    SetupListen {
        listener: ListenId(id),
        addrs: [local(4), local(6)].into(),
        port: 80,
        window: 64_240,
        window_scale: 5,
        mss: [1460, 1440],
        sack: true,
        ecn: true,
        defer_accept: false,
        secret: SECRET,
    }
}

pub(super) fn rig_with(queues: usize, listeners_max: u32, wire: LinkCaps) -> Rig {
    let mut config = DeviceConfig::new(MAC);
    (config.file, config.queues) = (None, queues);
    config.setup = Some(SetupConfig { listeners_max });
    let mut rig = Rig::with(config, wire);
    rig.now = NOW;
    rig
}

/// Returns a device with one queue that listens.
pub(super) fn rig(listen: SetupListen) -> Rig {
    let mut rig = rig_with(1, 4, PLAIN_LINK);
    rig.op(0, Op::Listen(Box::new(listen)));
    assert!(rig.events.is_empty());
    rig
}

pub(super) fn segment(tuple: &Tuple, flags: TcpFlags, seq: SeqNum, ack: SeqNum) -> TcpHeader {
    let (source, destination) = (tuple.remote.port, tuple.local.port);
    let mut segment =
        TcpHeader { source, destination, seq, ack, flags, window: 502, ..TcpHeader::default() };
    segment.options.timestamps = Some(TcpTimestamps { value: 5000, echo: 0 });
    segment
}

/// Returns a SYN as sent by Linux.
pub(super) fn syn(tuple: &Tuple) -> TcpHeader {
    let mut syn = segment(tuple, TcpFlags::SYN, IRS, SeqNum(0));
    let options = &mut syn.options;
    (options.mss, options.window_scale, options.sack_permitted) = (Some(1460), Some(7), true);
    syn
}

/// Returns the peer's acknowledgment of a SYN-ACK.
pub(super) fn ack(tuple: &Tuple, syn_ack: &TcpHeader) -> TcpHeader {
    let mut ack = segment(tuple, TcpFlags::ACK, syn_ack.ack, syn_ack.seq + 1);
    let echo = syn_ack.options.timestamps.expect("timestamps").value;
    ack.options.timestamps = Some(TcpTimestamps { value: 5001, echo });
    ack
}

/// Returns a frame from the peer.
pub(super) fn frame(tuple: &Tuple, segment: &TcpHeader, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = (tuple.remote.addr, tuple.local.addr);
    let ip = IpHeader { source, destination, protocol: protocol::TCP, ecn: 0, hop_limit: 61 };
    tcp_packet(&EthernetAddrs { source: PEER, destination: MAC }, &ip, segment, payload)
}

/// Result of a received frame.
#[derive(Debug, PartialEq)]
pub(super) enum SetupOutcome {
    /// Passed to this queue, as received.
    Passed(usize),
    Established(usize, Established),
    /// Passed to this queue, marked as a segment after the first.
    Later(usize),
    Answered(Vec<u8>),
    Dropped,
}

pub(super) fn deliver_bytes(rig: &mut Rig, bytes: &[u8]) -> SetupOutcome {
    let frame = rx_frame(rig.device.pool(), bytes);
    rig.device.handle_frame(rig.now, frame);
    rig.collect();
    let (sent, events) = (core::mem::take(&mut rig.sent), core::mem::take(&mut rig.events));
    match (&sent[..], &events[..]) {
        ([], []) => SetupOutcome::Dropped,
        ([answer], []) => SetupOutcome::Answered(bytes_of(answer)),
        ([], [(queue, Event::Received(received))]) => {
            assert_eq!(received.packet.as_slice(), bytes, "as it came");
            assert_eq!(received.metadata.decrypted, None);
            match received.handshake {
                Some(HandshakeSegment::First(established)) => {
                    SetupOutcome::Established(*queue, established)
                }
                Some(HandshakeSegment::Later) => SetupOutcome::Later(*queue),
                None => SetupOutcome::Passed(*queue),
            }
        }
        other => panic!("{other:?}"),
    }
}

pub(super) fn deliver(
    rig: &mut Rig,
    tuple: &Tuple,
    segment: &TcpHeader,
    payload: &[u8],
) -> SetupOutcome {
    deliver_bytes(rig, &frame(tuple, segment, payload))
}

/// Sends a SYN and returns the SYN-ACK.
pub(super) fn send_syn(rig: &mut Rig, tuple: &Tuple, syn: &TcpHeader) -> TcpHeader {
    let SetupOutcome::Answered(bytes) = deliver(rig, tuple, syn, b"") else { panic!("no answer") };
    let l4 = if tuple.local.addr.is_ipv4() { 34 } else { 54 };
    let (answer, len) = TcpHeader::parse(&bytes[l4..]).unwrap();
    assert_eq!(bytes.len(), l4 + len);
    answer
}

pub(super) fn moved(rig: &mut Rig) -> Vec<String> {
    rig.moved(&["setup_"])
}

fn established() -> Established {
    Established {
        listener: ListenId(9),
        peer_mss: 1460,
        peer_scale: Some(7),
        sack: true,
        ecn: false,
    }
}

#[test]
fn a_handshake_byte_by_byte() {
    for version in [4, 6] {
        let (mut rig, tuple) = (rig(listen(9)), tuple(version, 0x9c40));
        moved(&mut rig);
        let SetupOutcome::Answered(bytes) = deliver(&mut rig, &tuple, &syn(&tuple), b"") else {
            panic!()
        };
        let ip: &[u8] = match version {
            4 => &[
                0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, bytes[24], bytes[25], 10, 77, 0, 1, 10, 77,
                0, 2,
            ],
            _ => &[
                0x60, 0, 0, 0, 0, 40, 6, 64, 0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
                0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
            ],
        };
        let mut expected = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        expected.extend(if version == 4 { [8, 0] } else { [0x86, 0xdd] });
        expected.extend(ip);
        let tcp = &bytes[14 + ip.len()..];
        expected.extend([0, 80, 0x9c, 0x40]);
        // Epoch 2, and MSS 1460 or the next lower one in the table.
        assert_eq!(tcp[4], 2 << 3 | 6, "{version}");
        expected.extend(&tcp[4..8]);
        expected.extend([0xff, 0xff, 0xff, 0xff, 0xa0, 0x12, 0xfa, 0xf0]);
        expected.extend([tcp[16], tcp[17], 0, 0]);
        expected.extend([2, 4, 5, if version == 4 { 0xb4 } else { 0xa0 }, 4, 2, 8, 10]);
        expected.extend(&tcp[28..32]);
        // SACK and window scale 7.
        assert_eq!(tcp[31] & 63, 0b01_0111);
        expected.extend([0, 0, 0x13, 0x88, 1, 3, 3, 5]);
        assert_eq!(bytes, expected, "{version}");
        assert_eq!(moved(&mut rig), ["setup_syns_answered +1"]);

        let (syn_ack, _) = TcpHeader::parse(tcp).unwrap();
        let fate = deliver(&mut rig, &tuple, &ack(&tuple, &syn_ack), b"");
        assert_eq!(fate, SetupOutcome::Established(0, established()));
        assert_eq!(moved(&mut rig), ["setup_established +1"]);
    }
}

/// The first segment is lost and later ones arrive, among them the acknowledgment of a second
/// SYN-ACK: they are marked, so that the host does not reset the connection.
#[test]
fn segments_after_a_lost_first_one_are_marked() {
    for version in [4, 6] {
        let tuple = tuple(version, 0x9c40);
        let mut rig = rig(SetupListen { defer_accept: true, ..listen(9) });
        let syn_ack = send_syn(&mut rig, &tuple, &syn(&tuple));
        let first = ack(&tuple, &syn_ack);
        assert_eq!(deliver(&mut rig, &tuple, &first, b""), SetupOutcome::Dropped);
        // A copy of the SYN; the peer answers the second SYN-ACK after it has sent "first".
        let _ = send_syn(&mut rig, &tuple, &syn(&tuple));
        moved(&mut rig);
        let later = TcpHeader { seq: first.seq + 5, ..first };
        assert_eq!(deliver(&mut rig, &tuple, &later, b""), SetupOutcome::Later(0));
        assert_eq!(deliver(&mut rig, &tuple, &later, b"second"), SetupOutcome::Later(0));
        assert_eq!(moved(&mut rig), ["setup_later_acks +2"]);
        let echo = TcpTimestamps { echo: 0, ..later.options.timestamps.unwrap() };
        let foreign = TcpOptions { timestamps: Some(echo), ..later.options };
        let foreign = TcpHeader { options: foreign, ..later };
        assert_eq!(deliver(&mut rig, &tuple, &foreign, b"second"), SetupOutcome::Passed(0));
        let of_data = TcpHeader { ack: later.ack + 1, ..later };
        assert_eq!(deliver(&mut rig, &tuple, &of_data, b"second"), SetupOutcome::Passed(0));
        assert_eq!(moved(&mut rig), ["setup_passed_acks +2"]);
        let outcome = deliver(&mut rig, &tuple, &first, b"first");
        assert!(matches!(outcome, SetupOutcome::Established(0, _)), "{outcome:?}");
    }
}

#[test]
fn segment_sizes_at_the_edges_of_the_table() {
    let (mut rig, tuple) = (rig(listen(9)), tuple(4, 1));
    let mut recovered = |mss: Option<u16>| {
        let mut syn = syn(&tuple);
        syn.options.mss = mss;
        let syn_ack = send_syn(&mut rig, &tuple, &syn);
        match deliver(&mut rig, &tuple, &ack(&tuple, &syn_ack), b"") {
            SetupOutcome::Established(_, established) => established.peer_mss,
            fate => panic!("{fate:?}"),
        }
    };
    for (at, &mss) in MSS.iter().enumerate() {
        assert_eq!(recovered(Some(mss)), mss);
        assert_eq!(recovered(Some(mss + 1)), mss);
        if let Some(&next) = MSS.get(at + 1) {
            assert_eq!(recovered(Some(next - 1)), mss);
        }
    }
    assert_eq!((recovered(Some(u16::MAX)), recovered(None)), (8940, 536));
    for mss in [535, 1, 0] {
        let mut syn = syn(&tuple);
        syn.options.mss = Some(mss);
        moved(&mut rig);
        assert_eq!(deliver(&mut rig, &tuple, &syn, b""), SetupOutcome::Passed(0));
        assert_eq!(moved(&mut rig), ["setup_passed_small_mss +1"]);
    }
}

/// A SYN with arbitrary options, and the listener that receives it.
#[derive(Clone, Debug)]
struct AnyHandshake {
    v6: bool,
    port: u16,
    seq: u32,
    mss: Option<u16>,
    scale: Option<u8>,
    sack: bool,
    /// Its ECE and CWR flags.
    ecn: TcpFlags,
    listen: SetupListen,
    /// Time of arrival in milliseconds.
    ms: u64,
}

prop_compose! {
    fn any_listener()(
        sack: bool,
        ecn: bool,
        defer: bool,
        window_scale in 0..=14_u8,
    ) -> SetupListen {
        SetupListen { sack, ecn, defer_accept: defer, window_scale, ..listen(9) }
    }
}

prop_compose! {
    fn any_handshake()(
        v6: bool,
        port in 1_u16..,
        seq: u32,
        mss in proptest::option::of(536_u16..),
        scale: Option<u8>,
        sack: bool,
        ecn in any::<u8>().prop_map(|flags| TcpFlags(flags & 0xc0)),
        listen in any_listener(),
        ms in 0..u64::MAX / 2_000_000,
    ) -> AnyHandshake {
        AnyHandshake { v6, port, seq, mss, scale, sack, ecn, listen, ms }
    }
}

proptest! {
    /// The options of a SYN are recovered from the cookie, as the listener allows.
    #[test]
    fn options_there_and_back(handshake in any_handshake()) {
        let AnyHandshake { v6, port, seq, mss, scale, sack, ecn: syn_ecn, listen, ms } = handshake;
        let tuple = tuple(if v6 { 6 } else { 4 }, port);
        let mut rig = rig(listen.clone());
        rig.now = Instant::from_millis(ms);
        let mut syn = syn(&tuple);
        syn.seq = SeqNum(seq);
        syn.flags = TcpFlags::SYN.with(syn_ecn);
        (syn.options.mss, syn.options.window_scale) = (mss, scale);
        syn.options.sack_permitted = sack;
        let ecn = syn_ecn == TcpFlags::ECE.with(TcpFlags::CWR) && listen.ecn;

        let answer = send_syn(&mut rig, &tuple, &syn);
        let ece = if ecn { TcpFlags::ECE } else { TcpFlags::NONE };
        prop_assert_eq!(answer.flags, TcpFlags::SYN.with(TcpFlags::ACK).with(ece));
        prop_assert_eq!((answer.ack, answer.window), (SeqNum(seq) + 1, 64_240));
        let stamp = answer.options.timestamps.unwrap().value;
        prop_assert_eq!(answer.options, TcpOptions {
            mss: Some(if v6 { 1440 } else { 1460 }),
            window_scale: scale.map(|_| listen.window_scale),
            sack_permitted: sack && listen.sack,
            timestamps: Some(TcpTimestamps { value: stamp, echo: 5000 }),
            ..TcpOptions::default()
        });
        rig.now += EPOCH;
        let SetupOutcome::Established(0, got) =
            deliver(&mut rig, &tuple, &ack(&tuple, &answer), b"x")
        else { panic!("not established") };
        let fits = MSS.into_iter().filter(|&m| m <= mss.unwrap_or(536));
        let peer_mss = fits.max().unwrap();
        prop_assert_eq!(got, Established {
            listener: ListenId(9), peer_mss, peer_scale: scale.map(|s| s.min(14)),
            sack: sack && listen.sack, ecn,
        });
    }

    /// Arbitrary and nearly valid segments are answered, dropped or passed on unchanged, and each
    /// result is counted once.
    #[test]
    fn total_on_any_bytes(
        v6: bool, kind in 0..4_u8, defer: bool,
        damage in proptest::collection::vec((14..90_usize, any::<u8>()), 0..6),
        cut in proptest::option::of(14..90_usize), payload in 0..4_usize,
    ) {
        let tuple = tuple(if v6 { 6 } else { 4 }, 40_000);
        let mut rig = rig(SetupListen { defer_accept: defer, ..listen(9) });
        rig.lenient = true;
        let syn_ack = send_syn(&mut rig, &tuple, &syn(&tuple));
        moved(&mut rig);
        let sent = match kind {
            0 => syn(&tuple),
            1 => ack(&tuple, &syn_ack),
            2 => segment(&tuple, TcpFlags::RST, syn_ack.ack, syn_ack.seq + 1),
            _ => segment(&tuple, TcpFlags::SYN.with(TcpFlags::ACK), syn_ack.ack, syn_ack.seq + 1),
        };
        let mut bytes = frame(&tuple, &sent, &[7; 4][..payload]);
        for (at, byte) in damage {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        bytes.truncate(cut.unwrap_or(bytes.len()));
        // As if the checksum matched the damaged bytes.
        let mut frame = rx_frame(rig.device.pool(), &bytes);
        frame.checksum = abi::Checksum::Good;
        rig.device.handle_frame(rig.now, frame);
        rig.collect();
        let counted = moved(&mut rig);
        prop_assert!(counted.len() <= 1, "{counted:?}");
        let mark = rig.events.iter().find_map(|(_, e)| match e {
            Event::Received(received) => received.handshake,
            _ => None,
        });
        prop_assert_eq!(mark.is_some(), match mark {
            Some(HandshakeSegment::Later) => counted == ["setup_later_acks +1"],
            _ => counted == ["setup_established +1"],
        });
        prop_assert_eq!(rig.sent.len() == 1, counted == ["setup_syns_answered +1"]);
    }
}

/// Every reason for which a SYN is passed to the host.
#[test]
fn syns_a_cookie_cannot_encode_are_passed_on() {
    let tuple = tuple(4, 40_000);
    let with = |f: &dyn Fn(&mut TcpHeader)| {
        let mut syn = syn(&tuple);
        f(&mut syn);
        frame(&tuple, &syn, b"")
    };
    let options = |bytes: &[u8]| {
        // Replaces SACK-permitted, a window scale and padding.
        let mut frame = frame(&tuple, &syn(&tuple), b"");
        frame[34 + 20..34 + 20 + bytes.len()].copy_from_slice(bytes);
        HeaderLayout::of(&frame, 14, 34).unwrap().complete(&mut frame, 0);
        frame
    };
    let edited = |f: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = with(&|_| ());
        f(&mut bytes);
        bytes
    };
    let from = |addr: [u8; 4]| {
        let mut tuple = tuple;
        tuple.remote.addr = addr.into();
        frame(&tuple, &syn(&tuple), b"")
    };
    let flagged = |flag: TcpFlags| with(&|syn| syn.flags = syn.flags.with(flag));
    let cases = [
        ("no_timestamps", with(&|syn| syn.options.timestamps = None)),
        ("payload", frame(&tuple, &syn(&tuple), b"GET /")),
        ("fast_open", options(&[34, 2, 1, 1])),
        ("fast_open", options(&[34, 4, 1, 2])),
        ("fast_open", options(&[254, 4, 0xf9, 0x89])),
        ("small_mss", with(&|syn| syn.options.mss = Some(535))),
        ("odd_flags", flagged(TcpFlags::FIN)),
        ("odd_flags", flagged(TcpFlags::RST)),
        ("odd_flags", flagged(TcpFlags::URG)),
        ("malformed", options(&[2, 3, 5, 0])),
        ("malformed", options(&[77, 0, 5, 0])),
        ("malformed", options(&[77, 1, 5, 0])),
        ("malformed", options(&[77, 41, 5, 0])),
        ("malformed", with(&|syn| syn.source = 0)),
        ("bad_source", from([224, 0, 0, 1])),
        ("bad_source", from([0, 0, 0, 0])),
        ("bad_source", from([255, 255, 255, 255])),
        ("bad_source", from([127, 0, 0, 1])),
        ("bad_source", from([10, 77, 0, 1])),
        ("bad_source", edited(&|bytes| bytes[0] = 0xff)),
        ("bad_source", edited(&|bytes| bytes[6] |= 1)),
        ("vlan", edited(&|bytes| drop(bytes.splice(12..12, [0x81, 0, 0, 42])))),
    ];
    let mut rig = rig(listen(9));
    moved(&mut rig);
    for (why, bytes) in cases {
        assert_eq!(deliver_bytes(&mut rig, &bytes), SetupOutcome::Passed(0), "{why}");
        assert_eq!(moved(&mut rig), [alloc::format!("setup_passed_{why} +1")]);
    }
    // Passed without being counted: the segment cannot begin a connection here, or its checksum is
    // wrong.
    let silent = [
        flagged(TcpFlags::ACK),
        with(&|syn| syn.flags = TcpFlags::NONE),
        with(&|syn| syn.flags = TcpFlags::RST),
        with(&|syn| syn.flags = TcpFlags::RST.with(TcpFlags::ACK)),
        edited(&|bytes| bytes[14 + 20 + 15] ^= 1),
    ];
    for bytes in silent {
        assert_eq!(deliver_bytes(&mut rig, &bytes), SetupOutcome::Passed(0));
        assert_eq!(moved(&mut rig), [""; 0]);
    }
    // PSH has no meaning on a SYN, and an unknown option is skipped.
    for bytes in [flagged(TcpFlags::PSH), options(&[254, 4, 0, 0])] {
        assert!(matches!(deliver_bytes(&mut rig, &bytes), SetupOutcome::Answered(_)));
        assert_eq!(moved(&mut rig), ["setup_syns_answered +1"]);
    }
}

#[test]
fn payload_completes_a_handshake_whose_ack_was_lost() {
    let (mut rig, tuple) = (rig(listen(9)), tuple(4, 40_000));
    let syn_ack = send_syn(&mut rig, &tuple, &syn(&tuple));
    moved(&mut rig);
    let data = ack(&tuple, &syn_ack);
    let expected = || SetupOutcome::Established(0, established());
    assert_eq!(deliver(&mut rig, &tuple, &data, b"GET /"), expected());
    assert_eq!(deliver(&mut rig, &tuple, &data, b"GET /"), expected(), "again, and the host copes");
    assert_eq!(moved(&mut rig), ["setup_established +2"]);
    // Later segments have advanced numbers, from which the peer's initial number cannot be
    // recovered.
    let mut next = data;
    next.seq += 5;
    assert_eq!(deliver(&mut rig, &tuple, &next, b"more"), SetupOutcome::Later(0));
    let mut answered = data;
    answered.ack += 100;
    assert_eq!(deliver(&mut rig, &tuple, &answered, b""), SetupOutcome::Passed(0));
    assert_eq!(moved(&mut rig), ["setup_later_acks +1", "setup_passed_acks +1"]);
    // The peer closes without sending data.
    let mut fin = data;
    fin.flags = fin.flags.with(TcpFlags::FIN);
    assert_eq!(deliver(&mut rig, &tuple, &fin, b""), expected());
    // Resets are never accepted here.
    let mut reset = data;
    reset.flags = reset.flags.with(TcpFlags::RST);
    assert_eq!(deliver(&mut rig, &tuple, &reset, b""), SetupOutcome::Passed(0));
    assert_eq!(moved(&mut rig), ["setup_established +1"]);
}

#[test]
fn defer_accept_drops_the_bare_acknowledgment() {
    let (mut rig, tuple) = (rig(SetupListen { defer_accept: true, ..listen(9) }), tuple(6, 40_000));
    let syn_ack = send_syn(&mut rig, &tuple, &syn(&tuple));
    moved(&mut rig);
    let bare = ack(&tuple, &syn_ack);
    assert_eq!(deliver(&mut rig, &tuple, &bare, b""), SetupOutcome::Dropped);
    assert_eq!(deliver(&mut rig, &tuple, &bare, b""), SetupOutcome::Dropped);
    assert_eq!(moved(&mut rig), ["setup_deferred +2"]);
    assert_eq!(deliver(&mut rig, &tuple, &bare, b"G"), SetupOutcome::Established(0, established()));
    let mut fin = bare;
    fin.flags = fin.flags.with(TcpFlags::FIN);
    assert_eq!(deliver(&mut rig, &tuple, &fin, b""), SetupOutcome::Established(0, established()));
    assert_eq!(moved(&mut rig), ["setup_established +2"]);
}

#[test]
fn a_syn_that_comes_again_gets_the_same_number() {
    let (mut rig, tuple) = (rig(listen(9)), tuple(4, 40_000));
    let first = send_syn(&mut rig, &tuple, &syn(&tuple));
    rig.now += Duration::from_secs(1);
    let second = send_syn(&mut rig, &tuple, &syn(&tuple));
    assert_eq!(first.seq, second.seq);
    let value = |s: &TcpHeader| s.options.timestamps.unwrap().value;
    assert_eq!(value(&second).wrapping_sub(value(&first)) & !63, 1000 & !63);
    for syn_ack in [first, second] {
        let fate = deliver(&mut rig, &tuple, &ack(&tuple, &syn_ack), b"");
        assert_eq!(fate, SetupOutcome::Established(0, established()));
    }
}

/// In the published code the time bits were not checked, so a cookie was valid forever.
#[test]
fn cookies_expire() {
    let (mut rig, tuple) = (rig(listen(9)), tuple(4, 40_000));
    let end = Instant::from_millis(128_000);
    let ms = Duration::from_millis(1);
    for made in [Instant::from_millis(64_000), NOW, Instant::from_millis(127_999)] {
        rig.now = made;
        let answer = ack(&tuple, &send_syn(&mut rig, &tuple, &syn(&tuple)));
        moved(&mut rig);
        for good in [made, Instant::from_millis(127_999), end, end + EPOCH.saturating_sub(ms)] {
            rig.now = good;
            let fate = deliver(&mut rig, &tuple, &answer, b"");
            assert_eq!(fate, SetupOutcome::Established(0, established()), "{made:?} {good:?}");
        }
        assert_eq!(moved(&mut rig), ["setup_established +4"]);
        for bad in [end + EPOCH, end + EPOCH * 2, end + EPOCH * 29] {
            rig.now = bad;
            assert_eq!(deliver(&mut rig, &tuple, &answer, b""), SetupOutcome::Passed(0));
        }
        assert_eq!(moved(&mut rig), ["setup_passed_acks +3"]);
        // The five time bits wrap; the MAC covers the whole epoch number.
        for bad in [end + EPOCH * 31, end + EPOCH * 32, end + EPOCH * 31 * 32] {
            rig.now = bad;
            assert_eq!(deliver(&mut rig, &tuple, &answer, b""), SetupOutcome::Passed(0));
        }
        assert_eq!(moved(&mut rig), ["setup_passed_acks +3"]);
        rig = self::rig(listen(9));
    }
}

#[test]
fn a_cookie_is_for_one_connection() {
    let (mut rig, one) = (rig(listen(9)), tuple(4, 40_000));
    let other = SetupListen { port: 81, ..listen(10) };
    rig.op(0, Op::Listen(Box::new(other)));
    let syn_ack = send_syn(&mut rig, &one, &syn(&one));
    let good = ack(&one, &syn_ack);
    moved(&mut rig);
    let mut tuples = [one; 4];
    tuples[0].remote.port += 1;
    tuples[1].remote.addr = [10, 77, 0, 3].into();
    tuples[2].local.port = 81;
    tuples[3] = tuple(6, 40_000);
    for other in tuples {
        let mut replayed = good;
        (replayed.source, replayed.destination) = (other.remote.port, other.local.port);
        assert_eq!(deliver(&mut rig, &other, &replayed, b""), SetupOutcome::Passed(0), "{other:?}");
    }
    let changed: [fn(&mut TcpHeader); 4] = [
        |ack| ack.ack += 1,
        |ack| ack.ack += 1 << 24,
        |ack| ack.ack = ack.ack - (1 << 27),
        // Two minutes: not the cookie's own time, though the options are the same.
        |ack| ack.options.timestamps.as_mut().unwrap().echo -= 64_000,
    ];
    for change in changed {
        let mut ack = good;
        change(&mut ack);
        assert_eq!(deliver(&mut rig, &one, &ack, b""), SetupOutcome::Passed(0));
    }
    assert_eq!(moved(&mut rig), ["setup_passed_acks +8"]);
    for seq in [good.seq + 1, good.seq - 1] {
        let other = TcpHeader { seq, ..good };
        assert_eq!(deliver(&mut rig, &one, &other, b""), SetupOutcome::Later(0));
    }
    assert_eq!(moved(&mut rig), ["setup_later_acks +2"]);
    let mut plain = good;
    plain.options.timestamps = None;
    assert_eq!(deliver(&mut rig, &one, &plain, b""), SetupOutcome::Passed(0));
    assert_eq!(moved(&mut rig), ["setup_acks_no_timestamps +1"]);
    assert_eq!(deliver(&mut rig, &one, &good, b""), SetupOutcome::Established(0, established()));
}

/// In the published code the number was a checksum of the tuple, which anyone could compute.
#[test]
fn a_cookie_needs_the_secret() {
    let tuple = tuple(4, 40_000);
    let device = |seed| {
        let mut config = DeviceConfig::new(MAC);
        config.file = None;
        let mut rig = Rig::with(config, PLAIN_LINK);
        rig.now = NOW;
        let secret = CookieSecret([seed, 2]);
        rig.op(0, Op::Listen(Box::new(SetupListen { secret, ..listen(9) })));
        rig
    };
    let answer = send_syn(&mut device(1), &tuple, &syn(&tuple));
    for seed in [1, 2, u64::MAX] {
        let fate = deliver(&mut device(seed), &tuple, &ack(&tuple, &answer), b"");
        // Devices with the same secret accept each other's cookies.
        let expected = if seed == 1 {
            SetupOutcome::Established(0, established())
        } else {
            SetupOutcome::Passed(0)
        };
        assert_eq!(fate, expected, "{seed}");
        let other = send_syn(&mut device(seed), &tuple, &syn(&tuple));
        assert_eq!(other.seq == answer.seq, seed == 1);
    }
}

/// In the published code a MAC of all ones never matched, because the carry went into the bits
/// above it.
#[test]
fn a_number_of_all_ones_wraps() {
    let (mut rig, tuple) = (rig(listen(9)), tuple(4, 40_022));
    rig.now = Instant::from_millis(30 * 64_000);
    let mut syn = syn(&tuple);
    // Found by search.
    (syn.options.mss, syn.seq) = (Some(9000), SeqNum(1_049_019));
    let syn_ack = send_syn(&mut rig, &tuple, &syn);
    assert_eq!(syn_ack.seq, SeqNum(u32::MAX), "as it was found");
    let answer = ack(&tuple, &syn_ack);
    assert_eq!(answer.ack, SeqNum(0));
    let fate = deliver(&mut rig, &tuple, &answer, b"");
    assert_eq!(fate, SetupOutcome::Established(0, Established { peer_mss: 8940, ..established() }));
}

/// Attackers that know everything but the secrets, including the time.
#[test]
fn forged_acknowledgments_make_no_connection() {
    const N: u32 = 60_000;
    let (mut rig, mut prng) = (rig(listen(9)), Prng::new(7));
    moved(&mut rig);
    let mut of_epoch = 0;
    for i in 0..N {
        let mut tuple = tuple(4, 1 + u16::try_from(prng.below(65_535)).unwrap());
        tuple.remote.addr = prng.next_u32().to_be_bytes().into();
        let (seq, mut ack) = (SeqNum(prng.next_u32()), SeqNum(prng.next_u32()));
        if i % 2 == 0 {
            ack = SeqNum(ack.0 & 0x07ff_ffff | 2 << 27);
        }
        of_epoch += u64::from([1, 2].contains(&((ack - 1).0 >> 27)));
        let mut forged = segment(&tuple, TcpFlags::ACK, seq, ack);
        let echo = if i % 3 == 0 { 100_000 - (prng.next_u32() & 0xffff) } else { prng.next_u32() };
        forged.options.timestamps = Some(TcpTimestamps { value: 1, echo });
        let payload: &[u8] = if i % 5 == 0 { b"x" } else { b"" };
        assert_eq!(deliver(&mut rig, &tuple, &forged, payload), SetupOutcome::Passed(0));
    }
    assert!((10_000..50_000).contains(&of_epoch), "both checks were made: {of_epoch}");
    assert_eq!(moved(&mut rig), [alloc::format!("setup_passed_acks +{N}")]);
}

/// No state is kept for a connection under any flood; queues are bounded and drain again.
#[test]
fn floods_leave_nothing_behind() {
    const N: u16 = 5_000;
    let mut rig = rig(listen(9));
    moved(&mut rig);
    // The link takes nothing.
    for port in 1..=N {
        let tuple = tuple(4, port);
        let frame = rx_frame(rig.device.pool(), &frame(&tuple, &syn(&tuple), b""));
        rig.device.handle_frame(rig.now, frame);
    }
    assert_eq!(rig.counter("tx_runs"), 4096);
    assert_eq!(moved(&mut rig), ["setup_syns_answered +4096", "setup_syns_dropped +904"]);
    rig.collect();
    assert_eq!((rig.sent.len(), rig.events.len()), (4096, 0));
    rig.sent.clear();
    let floods: [(TcpFlags, &[&str]); 4] = [
        (TcpFlags::RST, &[]),
        (TcpFlags::RST.with(TcpFlags::ACK), &[]),
        (TcpFlags::SYN.with(TcpFlags::ACK), &[]),
        (TcpFlags::ACK, &["setup_passed_acks +5000"]),
    ];
    for (flags, counted) in floods {
        for port in 1..=N {
            let tuple = tuple(4, port);
            let number = SeqNum(2 << 27 | 6 << 24 | u32::from(port) << 4);
            let fate = deliver(&mut rig, &tuple, &segment(&tuple, flags, IRS + 1, number), b"");
            assert_eq!(fate, SetupOutcome::Passed(0));
        }
        assert_eq!(moved(&mut rig), counted);
    }
    assert_eq!((rig.counter("tx_runs"), rig.counter("setup_listeners")), (0, 1));
    let (other, port) = (tuple(4, 40_000), tuple(4, 1));
    for tuple in [other, port] {
        let syn_ack = send_syn(&mut rig, &tuple, &syn(&tuple));
        let fate = deliver(&mut rig, &tuple, &ack(&tuple, &syn_ack), b"");
        assert_eq!(fate, SetupOutcome::Established(0, established()), "it continues");
    }
}

//! Batches that are encrypted, and transmits that are dropped because they cannot be.

use abi::crypto::Suite;
use abi::quic::{QuicFailure, QuicRekey, QuicTxPacket};
use abi::{
    FileExtent, FileFault, FileId, FlowId, Op, Refusal, Transmit, TransmitOutcome, TransmitPart,
};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use testkit::PLAIN_LINK;
use wire::frame::{ParsedFrame, parse};

use super::frames::{bytes_of, tcp_header, udp_header};
use super::quic::*;
use super::rig::{Rig, content};

const CHACHA: Suite = Suite::ChaCha20Poly1305;
/// Bytes of a packet around its body, with a packet number of two bytes.
const AROUND: usize = 1 + 8 + 2 + 16;

/// Returns a packet in plaintext, with room for its tag.
pub(super) fn roomy(phase: bool, number: u64, len: usize, body: &[u8]) -> Vec<u8> {
    [&plain(&ID, phase, number, len, body)[..], &[0; 16]].concat()
}

/// Returns the UDP payloads of the frames sent since the last call; the rig has verified the
/// checksums.
fn sent(rig: &mut Rig) -> Vec<Vec<u8>> {
    rig.sent
        .drain(..)
        .map(|frame| {
            let bytes = bytes_of(&frame);
            let Ok(ParsedFrame::Ip(ip)) = parse(&bytes) else { panic!("well-formed") };
            let len = u16::from_be_bytes([bytes[ip.l4 + 4], bytes[ip.l4 + 5]]);
            assert_eq!(usize::from(len), ip.end - ip.l4);
            bytes[ip.l4 + 8..].to_vec()
        })
        .collect()
}

fn body(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i as u64 * 7 + number) % 251).unwrap()).collect()
}

/// A packet number has 62 bits in the nonce and at most 32 in the header: rustls, with its own
/// nonces, decrypts packets on both sides of each power of two.
#[test]
fn large_packet_numbers() {
    for suite in SUITES {
        for power in [31, 32, 33, 40, 48, 61] {
            let begin = (1_u64 << power) - 2;
            let (peer, mut rig) = (RustlsQuicPeer::new(suite, 0), rig(send(suite, begin)));
            for number in begin..begin + 4 {
                let body = body(number, 100);
                let packets = [Some(at(number, 4))];
                rig.send(0, batch(&[host(&roomy(false, number, 4, &body))], 0, &packets));
                let sent = sent(&mut rig);
                let (_, opened) = peer.open(sent[0].clone(), ID.len(), number);
                assert_eq!(opened, body, "{number:#x}");
            }
        }
    }
}

/// Every suite, every length of packet number, batches whose last datagram is shorter: rustls
/// decrypts them.
#[test]
fn batches_are_encrypted() {
    for suite in SUITES {
        for version in [4, 6] {
            let (peer, mut rig) = (RustlsQuicPeer::new(suite, 0), rig(send(suite, 100)));
            let mut number = 100;
            for len in 1..=4_u8 {
                let bodies = [1000, 1000, 1000, 13].map(|bytes| {
                    number += 3;
                    (number, body(number, bytes))
                });
                let plain: Vec<u8> = bodies
                    .iter()
                    .flat_map(|(number, body)| roomy(false, *number, len.into(), body))
                    .collect();
                let packets = bodies.each_ref().map(|(number, _)| Some(at(*number, len)));
                // Parts whose boundaries are not those of datagrams.
                let parts: Vec<TransmitPart> = plain.chunks(777).map(host).collect();
                let size = u16::try_from(1000 + AROUND - 2 + usize::from(len)).unwrap();
                let transmit = batch(&parts, size, &packets);
                rig.send(0, Transmit { header: udp_header(version), ..transmit });
                let sent = sent(&mut rig);
                assert_eq!(sent.len(), 4);
                for ((number, body), datagram) in bodies.iter().zip(sent) {
                    let (first, opened) = peer.open(datagram, ID.len(), *number);
                    assert_eq!((first, &opened), (0x40 | (len - 1), body));
                }
            }
            assert_eq!(
                sorted(rig.moved(&["quic_tx", "tx_t", "tx_d", "tx_packets"])),
                [
                    "quic_tx_sealed +16",
                    "quic_tx_sealed_bytes +12492",
                    "tx_packets +16",
                    "tx_transmits +4",
                    "tx_tso_transmits +4"
                ]
            );
        }
    }
}

/// RFC 9001 section A.5.
#[test]
fn encryption_and_decryption_agree() {
    let (mut sender, mut receiver) = (rig(send(CHACHA, 0)), rig(receive(CHACHA, None)));
    sender.send(0, batch(&[host(&roomy(false, 7, 1, b"frames"))], 0, &[Some(at(7, 1))]));
    let datagram = sent(&mut sender).remove(0);
    assert_eq!(datagram, RustlsQuicPeer::new(CHACHA, 0).seal(false, 7, 1, b"frames"));
    assert_eq!(order(&burst(&mut receiver, &[frame(&datagram)])), [7]);
}

/// After a long-header packet in one datagram, and next to datagrams encrypted by the host.
#[test]
fn packets_share_datagrams_and_batches() {
    let (peer, mut rig) = (RustlsQuicPeer::new(CHACHA, 0), rig(send(CHACHA, 0)));
    let long = [0xe3; 40];
    let first = [&long[..], &roomy(false, 7, 2, &body(7, 60))].concat();
    let second = vec![0x55; first.len()];
    let third = roomy(false, 9, 2, &body(9, 20));
    let size = u16::try_from(first.len()).unwrap();
    let packets = [Some(QuicTxPacket { begin: 40, ..at(7, 2) }), None, Some(at(9, 2))];
    rig.send(0, batch(&[host(&first), host(&second), host(&third)], size, &packets));
    let sent = sent(&mut rig);
    assert_eq!((&sent[0][..40], &sent[1]), (&long[..], &second));
    assert_eq!(peer.open(sent[0][40..].to_vec(), 8, 7).1, body(7, 60));
    assert_eq!(peer.open(sent[2].clone(), 8, 9).1, body(9, 20));
    assert_eq!(
        sorted(rig.moved(&["quic_tx_sealed"])),
        ["quic_tx_sealed +2", "quic_tx_sealed_bytes +174"]
    );
}

/// A batch without packets to encrypt is plain UDP segmentation, and needs no entry.
#[test]
fn a_batch_encrypted_by_the_host() {
    let mut rig = Rig::with(config(), PLAIN_LINK);
    rig.send(0, batch(&[host(&[0x66; 250])], 100, &[None, None, None]));
    assert_eq!(sent(&mut rig), [vec![0x66; 100], vec![0x66; 100], vec![0x66; 50]]);
    assert_eq!(sorted(rig.moved(&["quic_", "tx_dropped"])), [""; 0]);
}

/// Nothing of these leaves, not even the packets before the invalid one.
#[test]
fn an_unencryptable_batch_is_dropped_whole() {
    let good = roomy(false, 10, 2, &body(10, 100));
    let second = roomy(false, 11, 2, &body(11, 100));
    let size = u16::try_from(good.len()).unwrap();
    let two = |packets: &[Option<QuicTxPacket>]| {
        let parts = [host(&good), host(&second)];
        batch(&parts, size, packets)
    };
    let changed = |at: usize, mask: u8| {
        let mut second = second.clone();
        second[at] ^= mask;
        batch(&[host(&good), host(&second)], size, &[Some(self::at(10, 2)), Some(self::at(11, 2))])
    };
    let first = Some(at(10, 2));
    let tcp = Transmit {
        header: tcp_header(4, 1, wire::tcp::TcpFlags::ACK),
        ..two(&[first, Some(at(11, 2))])
    };
    let mut short = second.clone();
    short.truncate(8 + 1 + 19);
    let cases = [
        (two(&[first, Some(at(10, 2))]), "number"),
        (two(&[Some(at(9, 2)), Some(at(8, 2))]), "number"),
        (two(&[first, Some(at(1 << 62, 2))]), "number"),
        (two(&[first, Some(QuicTxPacket { begin: 200, ..at(11, 2) })]), "malformed"),
        (two(&[first, Some(QuicTxPacket { begin: 110, ..at(11, 2) })]), "malformed"),
        (two(&[first, Some(QuicTxPacket { pn_offset: 0, ..at(11, 2) })]), "malformed"),
        (two(&[first, Some(QuicTxPacket { pn_len: 0, ..at(11, 2) })]), "malformed"),
        (two(&[first, Some(QuicTxPacket { pn_len: 5, ..at(11, 2) })]), "malformed"),
        (two(&[first, Some(at(11, 1))]), "malformed"),
        (two(&[first, Some(at(12, 2))]), "malformed"),
        (two(&[first]), "malformed"),
        (two(&[first, None, None]), "malformed"),
        (batch(&[host(&good), host(&short)], size, &[first, Some(at(11, 2))]), "malformed"),
        (batch(&[], size, &[first]), "malformed"),
        (batch(&[host(&[0x40; 1600])], 0, &[Some(at(11, 1))]), "malformed"),
        (tcp, "malformed"),
        (changed(0, 0x80), "malformed"),
        (changed(0, 0x08), "malformed"),
        (changed(10, 0x01), "malformed"),
        (changed(0, 0x04), "keys"),
    ];
    for (index, (transmit, why)) in cases.into_iter().enumerate() {
        let mut rig = rig(send(CHACHA, 9));
        rig.moved(&["tx_"]);
        rig.send(0, Transmit { echo: Some(3), ..transmit });
        assert!(rig.sent.is_empty(), "case {index}");
        let refused = alloc::format!("quic_tx_refused_{why} +1");
        assert_eq!(
            sorted(rig.moved(&["quic_", "tx_"])),
            [&*refused, "tx_dropped_quic +1"],
            "case {index}"
        );
        let outcome = TransmitOutcome::Dropped(FileFault::Refused(Refusal::DoesNotFit));
        let done = rig.events.iter().find_map(|(_, event)| match event {
            abi::Event::TransmitDone(done) => Some((done.tag, done.outcome)),
            _ => None,
        });
        assert_eq!(done, Some((3, outcome)));
        assert_eq!(troubles(&mut rig), [(QUIC, FLOW, QuicFailure::NotEncrypted)]);
    }
}

#[test]
fn a_number_is_used_once() {
    let (peer, mut rig) = (RustlsQuicPeer::new(CHACHA, 0), rig(send(CHACHA, 5)));
    let one = |number: u64| {
        batch(&[host(&roomy(false, number, 2, &body(number, 50)))], 0, &[Some(at(number, 2))])
    };
    rig.send(0, one(4));
    assert_eq!(sorted(rig.moved(&["quic_"])), ["quic_tx_refused_number +1"]);
    rig.send(0, one(5));
    rig.send(0, one(5));
    rig.send(0, one(7));
    rig.send(0, one(6));
    assert_eq!(
        sorted(rig.moved(&["quic_tx"])),
        ["quic_tx_refused_number +2", "quic_tx_sealed +2", "quic_tx_sealed_bytes +154"]
    );
    let sent = sent(&mut rig);
    assert_eq!(sent.len(), 2);
    for (number, datagram) in [5, 7].into_iter().zip(sent) {
        assert_eq!(peer.open(datagram, 8, number).1, body(number, 50));
    }
    // Receive entries and entries of another host encrypt nothing.
    rig.send(1, one(8));
    rig.op(0, Op::QuicRemove { quic: QUIC });
    rig.send(0, one(8));
    rig.op(0, Op::QuicAdd(Box::new(receive(CHACHA, None))));
    rig.send(0, one(8));
    assert_eq!(
        sorted(rig.moved(&["quic_added", "quic_removed", "quic_tx"])),
        ["quic_added +1", "quic_removed +1", "quic_tx_refused_unknown +3"]
    );
    assert!(rig.sent.is_empty());
}

/// The key phase bit of each packet selects the keys.
#[test]
fn a_key_update_in_a_batch() {
    let mut rig = rig(send(CHACHA, 0));
    let keys = keys_of(&secrets(CHACHA, 1), true);
    rig.op(0, Op::QuicRekey(Box::new(QuicRekey { quic: QUIC, keys })));
    let plain = [roomy(false, 1, 2, &body(1, 50)), roomy(true, 2, 2, &body(2, 50))];
    let size = u16::try_from(plain[0].len()).unwrap();
    rig.send(0, batch(&plain.each_ref().map(|p| host(p)), size, &[Some(at(1, 2)), Some(at(2, 2))]));
    let sent = sent(&mut rig);
    assert_eq!(RustlsQuicPeer::new(CHACHA, 0).open(sent[0].clone(), 8, 1), (0x41, body(1, 50)));
    assert_eq!(RustlsQuicPeer::new(CHACHA, 1).open(sent[1].clone(), 8, 2), (0x45, body(2, 50)));
}

fn extent(offset: u64, len: u32) -> TransmitPart {
    TransmitPart::File(FileExtent { file: FileId(5), offset, len })
}

/// IO-QUIC (IO-TCP, appendix A): the body of a STREAM frame comes from a file.
fn with_file(number: u64, offset: u64, len: u32) -> ([TransmitPart; 3], usize) {
    let front = [&plain(&ID, false, number, 2, &[])[..], &[0x08, 4]].concat();
    let size = front.len() + len as usize + 16;
    ([host(&front), extent(offset, len), host(&[0; 16])], size)
}

#[test]
fn file_extents_inside_of_packets() {
    let (peer, mut rig) = (RustlsQuicPeer::new(CHACHA, 0), rig(send(CHACHA, 0)));
    rig.put("f", 100_000, 1);
    rig.open(0, 5, "f").unwrap();
    rig.moved(&["quic_", "tx_", "file_"]);
    let batches = [(1, 70_000, 1200), (2, 71_200, 1200), (3, 72_400, 300)];
    let all = batches.map(|(number, offset, len)| with_file(number, offset, len));
    let parts: Vec<TransmitPart> =
        all.iter().flat_map(|(parts, _)| parts.iter().cloned()).collect();
    let size = u16::try_from(all[0].1).unwrap();
    rig.send(0, batch(&parts, size, &[1, 2, 3].map(|number| Some(at(number, 2)))));
    assert!(rig.sent.is_empty(), "the disk has not answered");
    // A later transmit waits behind the first, and keys removed meanwhile are kept for both.
    rig.send(0, batch(&[host(&roomy(false, 4, 2, b"later"))], 0, &[Some(at(4, 2))]));
    let keys = keys_of(&secrets(CHACHA, 1), true);
    rig.op(0, Op::QuicRekey(Box::new(QuicRekey { quic: QUIC, keys })));
    let keys = keys_of(&secrets(CHACHA, 2), false);
    rig.op(0, Op::QuicRekey(Box::new(QuicRekey { quic: QUIC, keys })));
    rig.op(0, Op::QuicRemove { quic: QUIC });
    rig.complete_all();
    let sent = sent(&mut rig);
    assert_eq!(sent.len(), 4);
    for ((number, offset, len), datagram) in batches.into_iter().zip(&sent) {
        let (_, opened) = peer.open(datagram.clone(), 8, number);
        assert_eq!(opened[..2], [0x08, 4]);
        let offset = usize::try_from(offset).unwrap();
        assert_eq!(opened[2..], content(1, offset, len as usize));
        let frames: Vec<_> = wire::quic::QuicFrames::new(&opened).collect();
        let stream =
            wire::quic::QuicStreamFrame { id: 4, offset: 0, fin: false, data: 2..opened.len() };
        assert_eq!(frames, [Ok(wire::quic::QuicFrame::Stream(stream))]);
    }
    assert_eq!(peer.open(sent[3].clone(), 8, 4).1, b"later");
    assert_eq!(
        sorted(rig.moved(&["quic_tx"])),
        ["quic_tx_sealed +4", "quic_tx_sealed_bytes +2819"]
    );
}

/// A file that cannot be read drops its transmit; QUIC packets are independent, so those after it
/// leave.
#[test]
fn a_file_that_fails() {
    let (peer, mut rig) = (RustlsQuicPeer::new(CHACHA, 0), rig(send(CHACHA, 0)));
    rig.put("f", 100_000, 1);
    rig.open(0, 5, "f").unwrap();
    rig.disk.fail_reads = true;
    let (parts, _) = with_file(1, 0, 1000);
    let broken = batch(&parts, 0, &[Some(at(1, 2))]);
    rig.send(0, Transmit { echo: Some(1), ..broken });
    let later = batch(&[host(&roomy(false, 2, 2, b"later"))], 0, &[Some(at(2, 2))]);
    rig.send(0, Transmit { echo: Some(2), ..later });
    rig.complete_all();
    let outcomes = rig.outcomes();
    assert_eq!(outcomes[0], (1, TransmitOutcome::Dropped(FileFault::Io)));
    assert_eq!(outcomes[1], (2, TransmitOutcome::Sent));
    assert_eq!(peer.open(sent(&mut rig).remove(0), 8, 2).1, b"later");
    // An error in the file's batch that shows only once the file was read has the same effect.
    rig.disk.fail_reads = false;
    rig.moved(&["quic_", "tx_d"]);
    let (mut parts, _) = with_file(3, 0, 1000);
    parts[0] = host(&plain(&ID, true, 3, 2, &[0x08, 4]));
    let wrong = batch(&parts, 0, &[Some(at(3, 2))]);
    rig.send(0, Transmit { flow: FlowId(8), ..wrong });
    let later = batch(&[host(&roomy(false, 4, 2, b"later"))], 0, &[Some(at(4, 2))]);
    rig.send(0, Transmit { flow: FlowId(8), ..later });
    rig.complete_all();
    assert_eq!(troubles(&mut rig), [(QUIC, FlowId(8), QuicFailure::NotEncrypted)]);
    assert_eq!(sent(&mut rig).len(), 1);
    assert_eq!(
        sorted(rig.moved(&["quic_", "tx_d"])),
        [
            "quic_tx_refused_keys +1",
            "quic_tx_sealed +1",
            "quic_tx_sealed_bytes +32",
            "tx_dropped_quic +1"
        ]
    );
}

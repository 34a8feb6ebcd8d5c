//! NVMe/TCP on receive: in order, cut at every position, permuted, damaged; and figure 8 of the
//! paper as exact exchanges.

use abi::l5o::ResyncMode;
use abi::nvme_tcp::{DdpId, DdpPlacement};
use alloc::vec;
use alloc::vec::Vec;

use super::l5o_stream::config as l5o_config;
use super::nvme_stream::{ALL, BOTH, Digests, NvmeRxFlow, PduStream};
use crate::L5oConfig;

pub(super) fn config(out_of_order: bool) -> L5oConfig {
    l5o_config(out_of_order, ResyncMode::StreamScan)
}

/// All kinds of PDUs that a host receives, with data of several commands interleaved.
fn to_host(digests: Digests) -> PduStream {
    let mut content = PduStream::new(digests, 3);
    content.c2h(1, 0, 700);
    content.c2h(2, 512, 333);
    content.response(9);
    content.c2h(1, 700, 300);
    content.push(9, 0, &[0; 16], &[]);
    content.c2h(2, 0, 512);
    content.response(1);
    content.response(2);
    content
}

fn to_controller(digests: Digests) -> PduStream {
    let mut content = PduStream::new(digests, 4);
    content.command(0);
    for (tag, offset, len) in [(1, 0, 500), (2, 4096, 96), (1, 500, 12)] {
        let data = content.random(len);
        content.data_pdu(false, tag, offset, &data);
        content.command(130);
    }
    content
}

#[test]
fn in_order_in_packets_of_every_size() {
    for (digests, out_of_order) in ALL.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        for align in [4, 64, 128] {
            for step in [1, 2, 3, 5, 7, 8, 23, 24, 28, 31, 100, 257, 1448, 5000] {
                for content in [to_host, to_controller] {
                    let mut made = PduStream { align, ..content(digests) };
                    made.bytes.clear();
                    let mut made = PduStream { pdus: vec![], ..made };
                    let plain = content(digests);
                    for pdu in &plain.pdus {
                        rebuild(&mut made, &plain, pdu);
                    }
                    let case = (digests, out_of_order, align, step);
                    in_order(made, out_of_order, step, &alloc::format!("{case:?}"));
                }
            }
        }
    }
}

/// Appends the same PDU with another alignment.
fn rebuild(made: &mut PduStream, plain: &PduStream, pdu: &super::nvme_stream::ExpectedPdu) {
    let bytes = &plain.bytes[pdu.at.clone()];
    let header = usize::from(bytes[2]);
    let data = match &pdu.data {
        Some((_, _, range)) => plain.bytes[range.clone()].to_vec(),
        None if bytes[3] > 0 => {
            let end = bytes.len() - if plain.digests.data { 4 } else { 0 };
            bytes[usize::from(bytes[3])..end].to_vec()
        }
        None => vec![],
    };
    let range = made.push(bytes[0], 0, &bytes[8..header], &data);
    let data = pdu.data.as_ref().map(|(tag, offset, _)| (*tag, *offset, range));
    made.pdus.last_mut().unwrap().data = data;
}

fn in_order(content: PduStream, out_of_order: bool, step: usize, case: &str) {
    let digests = content.digests;
    let mut flow = NvmeRxFlow::new(content, config(out_of_order));
    flow.setup_all();
    let tags = flow.offsets.len();
    flow.deliver_in(0..flow.wire.len(), step);
    assert_eq!(flow.returned.len(), tags, "{case}: unasked, since full");
    let has = |pdu: &super::nvme_stream::ExpectedPdu| {
        let data = flow.content.bytes[pdu.at.start + 3] > 0;
        digests.header || digests.data && data
    };
    let expected: Vec<usize> =
        flow.content.pdus.iter().filter(|pdu| has(pdu)).map(|pdu| pdu.at.start).collect();
    assert_eq!(flow.verified, expected, "{case}");
    let with_data = flow.content.pdus.iter().filter(|pdu| pdu.data.is_some()).count();
    assert_eq!(flow.check(), [with_data, 0, 0], "{case}");
    assert_eq!(flow.wrong, 0);
    for zero in ["nvme_tcp_pdus_open", "nvme_tcp_pdus_given_up", "rx_nvmeotcp_drop"] {
        assert_eq!(flow.rig.counter(zero), 0, "{case}: {zero}");
    }
    assert_eq!(flow.rig.counter("nvme_tcp_out_of_order_bytes"), 0);
    assert!(flow.requests.is_empty());
}

#[test]
fn claims_and_counters_of_two_packets() {
    for out_of_order in [false, true] {
        let mut flow = NvmeRxFlow::new(to_host(BOTH), config(out_of_order));
        flow.setup_all();
        flow.deliver(0..800);
        let placed = flow.placed.clone().unwrap();
        // 24 bytes of header and 4 of digest; the next PDU begins after 700 bytes of data and 4 of
        // digest.
        let expected = [
            DdpPlacement { range: 28..728, id: DdpId(1), offset: 0 },
            DdpPlacement { range: 760..800, id: DdpId(2), offset: 512 },
        ];
        assert_eq!(placed.placements[..], expected);
        assert_eq!(flow.verified, [0]);
        assert_eq!(
            flow.moved(),
            [
                "rx_nvmeotcp_packets +1",
                "rx_nvmeotcp_bytes +740",
                "nvme_tcp_pdus_verified +1",
                "nvme_tcp_pdus_open +1",
            ]
        );
        // Bytes received before are left as they are.
        flow.deliver(0..800);
        assert_eq!(flow.placed, None);
        assert_eq!(flow.moved(), [""; 0]);
        flow.deliver(800..flow.wire.len());
        assert_eq!(
            flow.moved(),
            [
                "rx_nvmeotcp_packets +1",
                "rx_nvmeotcp_bytes +1105",
                "nvme_tcp_pdus_verified +7",
                "nvme_tcp_buffers_filled +2",
            ]
        );
        assert_eq!(flow.check(), [4, 0, 0]);
    }
}

/// Every order of a few packets, after the one with the first PDU's header.
#[test]
fn every_order_of_few_packets() {
    for digests in ALL {
        let mut content = PduStream::new(digests, 8);
        content.c2h(4, 0, 500);
        content.c2h(4, 500, 100);
        let end = content.bytes.len();
        let mut order: Vec<usize> = vec![1, 2, 3, 4, 5];
        permutations(&mut order, 0, &mut |order| {
            let mut flow = NvmeRxFlow::new(content.clone(), config(true));
            flow.setup_all();
            let cuts = [0, 40, 100, 260, 400, 470, end];
            flow.deliver(0..cuts[1]);
            for &nth in order {
                flow.deliver(cuts[nth]..cuts[nth + 1]);
            }
            let full = flow.check();
            // The last packet has the whole last PDU, whose position is known from the first PDU
            // on.
            assert_eq!(full, [2, 0, 0], "{order:?}");
            assert_eq!(flow.wrong, 0);
            assert_eq!(flow.rig.counter("nvme_tcp_pdus_open"), 0);
            let late = flow.rig.counter("nvme_tcp_out_of_order_bytes");
            assert_eq!(late > 0, *order != [1, 2, 3, 4, 5], "{order:?}");
        });
    }
}

/// Every order of all packets: claims are correct.
#[test]
fn every_order_at_all() {
    for (digests, out_of_order) in ALL.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        let content = to_host(digests);
        let end = content.bytes.len();
        let mut order: Vec<usize> = (0..6).collect();
        permutations(&mut order, 0, &mut |order| {
            let mut flow = NvmeRxFlow::new(content.clone(), config(out_of_order));
            flow.setup_all();
            let cuts = [0, 13, 300, 736, 1100, 1500, end];
            for &nth in order {
                flow.deliver(cuts[nth]..cuts[nth + 1]);
                flow.answers();
            }
            flow.check();
            assert_eq!(flow.wrong, 0, "{order:?}");
            let starts: Vec<usize> = flow.content.pdus.iter().map(|pdu| pdu.at.start).collect();
            assert!(flow.verified.iter().all(|at| starts.contains(at)), "{order:?}");
        });
    }
}

fn permutations(order: &mut Vec<usize>, from: usize, f: &mut dyn FnMut(&[usize])) {
    if from == order.len() {
        return f(order);
    }
    for at in from..order.len() {
        order.swap(from, at);
        permutations(order, from + 1, f);
        order.swap(from, at);
    }
}

#[test]
fn a_changed_byte_is_never_verified() {
    for out_of_order in [false, true] {
        for step in [37, 400] {
            let mut content = PduStream::new(BOTH, 5);
            content.c2h(1, 0, 64);
            content.response(1);
            content.c2h(2, 0, 40);
            let len = content.bytes.len();
            for bad in 0..len {
                let mut flow = NvmeRxFlow::new(content.clone(), config(out_of_order));
                flow.setup_all();
                flow.wire[bad] ^= 0x10;
                flow.deliver_in(0..len, step);
                let wrong = flow.content.pdus.iter().find(|pdu| pdu.at.contains(&bad)).unwrap();
                let (wrong, data) = (wrong.at.start, wrong.data.clone());
                assert!(!flow.verified.contains(&wrong), "{bad}");
                // A changed header may change a length, and the position of the rest is lost then.
                let header = data.is_none_or(|(_, _, range)| bad < range.start);
                let errors = flow.rig.counter("nvme_tcp_digest_errors");
                assert!(header || errors == 1, "{bad}");
                assert!(header || flow.verified.len() == 2, "{bad}");
            }
        }
    }
}

/// Figure 8: (a) a retransmission, (b) a hole before the next header, (c) a hole that includes it.
#[test]
fn the_papers_figure_8() {
    let content = PduStream::reads(BOTH, 6, 3000);
    let starts: Vec<usize> = content.pdus.iter().map(|pdu| pdu.at.start).collect();
    let mut flow = NvmeRxFlow::new(content, config(false));
    flow.setup_all();
    flow.deliver(0..1000);
    // (b): 1000..2000 is late; the packet with the next header is not offloaded, later ones are.
    flow.deliver(2000..2800);
    assert_eq!(flow.placed, None);
    flow.deliver(2800..4000);
    assert_eq!(flow.placed, None, "the next header is seen");
    // (a): a retransmission is not offloaded.
    flow.deliver(1000..2000);
    assert_eq!(flow.placed, None);
    flow.deliver(4000..starts[3]);
    let placed = flow.placed.clone().unwrap();
    assert_eq!(placed.placements.len(), 1);
    assert_eq!((placed.placements[0].id, placed.placements[0].range.start), (DdpId(1), 0));
    assert_eq!(flow.verified, [0; 0], "of PDUs with a part that was not summed nothing is said");
    flow.moved();
    // (c): the header is lost.
    let (third, fourth) = (starts[4] + 500, starts[6] + 500);
    flow.deliver(third..third + 100);
    flow.deliver(third + 100..fourth);
    assert_eq!((flow.placed.clone(), flow.requests.len()), (None, 1));
    assert_eq!(
        flow.moved(),
        ["rx_nvmeotcp_drop +2", "rx_nvmeotcp_resync +1", "nvme_tcp_pdus_open +1"]
    );
    // The found header is tracked until the host has confirmed it.
    flow.deliver(fourth..fourth + 500);
    assert_eq!(flow.placed, None);
    flow.answers();
    flow.deliver(fourth + 500..fourth + 600);
    assert_eq!(flow.placed.clone().unwrap().placements[0].range, 0..100);
    flow.deliver(fourth + 600..flow.wire.len());
    assert_eq!(
        flow.moved()[..3],
        ["rx_nvmeotcp_packets +2", "rx_nvmeotcp_bytes +8028", "nvme_tcp_pdus_verified +5",]
    );
    assert_eq!(flow.check(), [2, 3, 1], "as the paper has it");
    assert_eq!(flow.wrong, 0);
}

/// The host denies that a PDU begins at the found header.
#[test]
fn a_denied_header_is_searched_for_again() {
    for out_of_order in [false, true] {
        let content = PduStream::reads(ALL[2], 40, 900);
        let mut flow = NvmeRxFlow::new(content, config(out_of_order));
        flow.setup_all();
        flow.deliver(0..500);
        flow.deliver(1100..2500);
        let asked = flow.requests.pop().unwrap();
        flow.rig.op(
            0,
            abi::Op::L5oResyncRxResp {
                context: super::nvme_stream::CONTEXT,
                tcpsn: asked,
                number: None,
            },
        );
        assert_eq!(flow.rig.counter("nvme_tcp_guesses_wrong"), 1);
        flow.deliver(2500..4000);
        assert_eq!(flow.requests.len(), 1, "another one is found");
        flow.answers();
        assert_eq!(flow.rig.counter("nvme_tcp_guesses_right"), 1);
        flow.deliver_in(4000..flow.wire.len(), 1448);
        let counts = flow.check();
        assert!(counts[0] >= 35, "{counts:?}");
        // An answer without a request.
        flow.answer(asked);
        assert_eq!(flow.rig.counter("nvme_tcp_resync_res_skip"), 1);
    }
}

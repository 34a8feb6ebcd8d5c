//! NVMe/TCP from malicious peers: data full of forged PDUs, invalid streams, invalid operations. No
//! correctly placed byte is lost, every buffer is returned, and nothing panics.

use abi::aligned::AlignedBuf;
use abi::l5o::{L5oId, ResyncMode};
use abi::link::RxFrame;
use abi::nvme_tcp::{DdpBuffer, DdpId, DdpSetup, NvmeTcpState, TlsCarrier};
use abi::{Checksum, Event, FlowId, Op, PacketPool};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use base::{Prng, SeqNum};
use proptest::prelude::*;
use testkit::PLAIN_LINK;

use super::frames::MAC;
use super::l5o_disorder::{FaultyNetwork, arrivals};
use super::l5o_stream::{START, frame};
use super::nvme_disorder::run;
use super::nvme_rx::config;
use super::nvme_stream::{ALL, Digests, NvmeRxFlow, PduStream, create};
use super::rig::Rig;
use crate::{DeviceConfig, L5oConfig};

/// Reads whose data is full of plausible PDUs for registered buffers.
fn forged(digests: Digests, count: u16, len: usize) -> PduStream {
    let mut content = PduStream::new(digests, 21);
    for tag in 0..count {
        let mut data = vec![];
        while data.len() < len {
            let mut inner = PduStream::new(digests, u64::from(tag));
            let other = (tag + u16::try_from(inner.prng.next_u64() % 8).unwrap()) % count;
            let at = u32::try_from(data.len() % (len / 2)).unwrap() & !3;
            inner.c2h(other, at, 120 + 4 * usize::from(tag % 7));
            inner.response(other);
            data.extend(inner.bytes);
        }
        data.truncate(len);
        content.data_pdu(true, tag, 0, &data);
        content.response(tag);
    }
    content
}

#[test]
fn forged_pdus_corrupt_nothing() {
    let (mut wrong, mut right) = (0, 0);
    for (digests, out_of_order) in ALL.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        for (lost, late) in [(0, 0), (30, 0), (0, 50), (50, 50)] {
            let mut flow = NvmeRxFlow::new(forged(digests, 40, 6000), config(out_of_order));
            flow.setup_all();
            let network = FaultyNetwork { lost, late, twice: 5 };
            let packets = arrivals(flow.wire.len(), 1448, network, &mut Prng::new(2));
            run(&mut flow, &packets);
            // `check` compares each byte that the host accepts as placed.
            let [full, ..] = flow.check();
            assert!(lost + late > 0 || full == 40 && flow.wrong == 0);
            assert!(out_of_order || flow.wrong == 0, "what the host has not confirmed is not used");
            wrong += flow.wrong;
            right += full;
        }
    }
    assert!(wrong > 0 && right > 400, "{wrong} {right}");
}

/// A peer that forges PDUs cannot make the device search and ask without bound.
#[test]
fn forged_pdus_lead_nowhere() {
    let mut flow = NvmeRxFlow::new(forged(ALL[0], 60, 20_000), config(false));
    flow.setup_all();
    flow.deliver(0..1000);
    let mut asked = 0;
    for from in (30_000..flow.wire.len() - 1448).step_by(1448) {
        // Skips packets with a real header.
        let headers = flow.content.pdus.iter().map(|pdu| pdu.at.start..pdu.at.start + 24);
        if headers.clone().any(|h| h.start < from + 1448 && h.end > from) {
            continue;
        }
        flow.deliver(from..from + 1448);
        asked += flow.requests.len();
        flow.answers();
    }
    assert!(asked > 3 && asked < 40, "{asked}");
    flow.check();
    assert_eq!(flow.wrong, 0);
}

/// Bytes with a meaning in a PDU.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        3 => prop::sample::select(vec![0, 1, 2, 3, 4, 5, 6, 7, 9, 24, 28, 72, 76, 128]),
        1 => any::<u8>(),
    ]
}

fn state() -> impl Strategy<Value = NvmeTcpState> {
    let most = prop_oneof![0..200_u32, any::<u32>()];
    let over = prop::option::of((0..3_u64, any::<u64>(), number()));
    (any::<bool>(), any::<bool>(), most, over).prop_map(|(header, data, most, over)| NvmeTcpState {
        header_digest: header,
        data_digest: data,
        pdu_bytes_max: most,
        tls: over.map(|(id, number, skip)| TlsCarrier {
            context: L5oId(id),
            first_record: number,
            skip,
        }),
    })
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0..300_u32, any::<u32>()]
}

fn op() -> impl Strategy<Value = Op> {
    let id = || (0..3_u64).prop_map(L5oId);
    let there = prop_oneof![Just(0), number()];
    let setup = (id(), 0..4_u16, number(), number(), there, 1..3_usize).prop_map(
        |(context, tag, offset, len, there, pages)| {
            let buffer = DdpBuffer::Pages(AlignedBuf::new(pages));
            let (flow, id) = (FlowId(u64::from(tag)), DdpId(offset));
            Op::DdpSetup(Box::new(DdpSetup {
                context,
                flow,
                tag,
                id,
                offset,
                len,
                filled: there,
                buffer,
            }))
        },
    );
    prop_oneof![
        2 => (id(), state()).prop_map(|(id, state)| create(id, state)),
        4 => setup,
        2 => (id(), 0..4_u16).prop_map(|(context, tag)| Op::DdpTeardown { context, tag }),
        1 => id().prop_map(|context| Op::L5oDestroy { context }),
        2 => (id(), number(), prop::option::of(any::<u64>())).prop_map(|(context, at, number)| {
            Op::L5oResyncRxResp { context, tcpsn: SeqNum(START.wrapping_add(at)), number }
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    /// Arbitrary frames and operations: every buffer is returned once, and claims lie within their
    /// frames.
    #[test]
    fn any_frames_and_operations(
        out_of_order: bool,
        steps in prop::collection::vec(
            prop_oneof![
                1 => op().prop_map(Ok),
                3 => (prop_oneof![0..400_u32, any::<u32>()], prop::collection::vec(byte(), 1..200))
                    .prop_map(Err),
            ],
            1..80,
        ),
        reset: bool,
    ) {
        let l5o = config(out_of_order);
        let l5o = L5oConfig { ddp_buffers_max: 6, ddp_buffer_bytes_max: 40_000, ..l5o };
        let config = DeviceConfig { l5o: Some(l5o), ..DeviceConfig::new(MAC) };
        let mut rig = Rig::with(config, PLAIN_LINK);
        let mut pool = PacketPool::new(4);
        let (mut given, mut back) = (0_u64, 0_u64);
        for step in steps {
            match step {
                Ok(op) => {
                    given += u64::from(matches!(op, Op::DdpSetup(_)));
                    rig.op(0, op);
                }
                Err((at, bytes)) => {
                    let frame = frame(4, START.wrapping_add(at), &bytes);
                    let packet = pool.copy(&frame).unwrap();
                    let frame = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
                    rig.device.handle_frame(rig.now, frame);
                    rig.collect();
                }
            }
            for (_, event) in core::mem::take(&mut rig.events) {
                match event {
                    Event::DdpTeardownDone(_) => back += 1,
                    Event::Received(received) => {
                        let most = received.packet.as_slice().len();
                        let placed = received.metadata.nvme_tcp();
                        for placement in placed.iter().flat_map(|placed| &placed.placements) {
                            prop_assert!(placement.range.end as usize <= most);
                        }
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(rig.counter("nvme_tcp_buffers"), given - back);
            prop_assert!(rig.counter("nvme_tcp_buffer_bytes") <= 40_000);
        }
        if reset {
            rig.device.reset();
        } else {
            (0..3).for_each(|id| rig.op(0, Op::L5oDestroy { context: L5oId(id) }));
        }
        rig.collect();
        let is_done = |event: &&(usize, Event)| matches!(event.1, Event::DdpTeardownDone(_));
        back += rig.events.iter().filter(is_done).count() as u64;
        prop_assert_eq!((given, rig.counter("nvme_tcp_pdus_open")), (back, 0));
    }

    /// A valid stream with bytes changed, in any order: correctly claimed bytes are in their
    /// buffers.
    #[test]
    fn a_damaged_stream(
        which in 0..4_usize,
        out_of_order: bool,
        commands in prop::collection::vec((1..300_u16, 0..5_u16), 1..8),
        damage in prop::collection::vec((any::<u32>(), byte()), 0..12),
        order in prop::collection::vec(any::<u16>(), 5..60),
        seed: u64,
    ) {
        let content = super::nvme_disorder::mixed(which, &commands, seed);
        let mut flow = NvmeRxFlow::new(content, config(out_of_order));
        flow.setup_all();
        let len = flow.wire.len();
        for (at, byte) in damage {
            // Buffers are compared with the changed bytes.
            let at = at as usize % len;
            flow.wire[at] = byte;
            flow.content.bytes[at] = byte;
        }
        let step = len.div_ceil(order.len());
        let by: BTreeMap<(usize, usize), usize> =
            (0..).zip(&order).map(|(nth, key)| ((usize::from(*key % 8) + nth, nth), nth)).collect();
        for nth in by.into_values() {
            let from = (nth * step).min(len);
            if from < len {
                flow.deliver(from..(from + step).min(len));
                flow.answers();
            }
        }
        flow.check();
    }
}

/// In the modes in which TLS contexts do not scan, NVMe/TCP contexts scan and ask all the same.
#[test]
fn other_modes_ask_by_scan() {
    for resync in [ResyncMode::NextHint, ResyncMode::Async] {
        let l5o = L5oConfig { resync, ..config(true) };
        let mut flow = NvmeRxFlow::new(PduStream::reads(ALL[2], 20, 900), l5o);
        flow.setup_all();
        flow.deliver(0..500);
        flow.deliver(1000..3000);
        assert_eq!(flow.requests.len(), 1);
        flow.answers();
        assert_eq!(flow.rig.counter("nvme_tcp_guesses_right"), 1);
    }
}

//! Registered buffers of NVMe/TCP: refused registrations, returns, limits, reset.

use abi::aligned::AlignedBuf;
use abi::l5o::L5oId;
use abi::nvme_tcp::{DdpBuffer, DdpId, DdpSetup, DdpTeardownDone};
use abi::{Event, FlowId, Op, Refusal};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use base::SeqNum;
use core::ops::Range;
use proptest::prelude::*;
use testkit::PLAIN_LINK;

use super::frames::MAC;
use super::nvme_rx::config;
use super::nvme_stream::{
    ALL, BOTH, CONTEXT, ExpectedPdu, FLOW, NvmeRxFlow, PduStream, create, placed_bytes, state,
};
use super::rig::Rig;
use crate::{DeviceConfig, L5oConfig};

fn setup(context: L5oId, tag: u16, offset: u32, len: u32, pages: usize) -> Op {
    let buffer = DdpBuffer::Pages(AlignedBuf::new(pages));
    let (flow, id) = (FLOW, DdpId(tag.into()));
    Op::DdpSetup(Box::new(DdpSetup { context, flow, tag, id, offset, len, filled: 0, buffer }))
}

/// The same registration with `filled` bytes already in the buffer.
fn with_filled(mut op: Op, there: u32) -> Op {
    let Op::DdpSetup(setup) = &mut op else { panic!("{op:?}") };
    setup.filled = there;
    op
}

/// Returns the buffers returned since the last call.
fn done(rig: &mut Rig) -> Vec<DdpTeardownDone> {
    let done = |(queue, event)| match event {
        Event::DdpTeardownDone(done) => {
            assert_eq!(queue, 0);
            Some(*done)
        }
        _ => None,
    };
    core::mem::take(&mut rig.events).into_iter().filter_map(done).collect()
}

fn rig(l5o: Option<L5oConfig>) -> Rig {
    let mut rig = Rig::with(DeviceConfig { l5o, queues: 2, ..DeviceConfig::new(MAC) }, PLAIN_LINK);
    rig.moved(&[]);
    rig
}

#[test]
fn limits_are_announced() {
    let l5o = L5oConfig { nvme_tcp_rx: false, ..config(true) };
    assert!(!rig(Some(l5o)).device.capabilities().l5o.unwrap().nvme_tcp.rx);
    let limits = rig(Some(config(true))).device.capabilities().l5o.unwrap().nvme_tcp;
    assert!(limits.rx);
    assert_eq!((limits.buffers_max, limits.buffer_bytes_max), (4096, 256 << 20));
    assert_eq!(limits.io_threshold, 4096);
}

#[test]
fn a_bad_set_up_comes_back_at_once() {
    let l5o = L5oConfig {
        ddp_buffers_max: 2,
        ddp_buffer_bytes_max: 5 * 4096,
        contexts_max: 1,
        ..config(true)
    };
    let mut rig = rig(Some(l5o));
    rig.op(0, create(CONTEXT, state(BOTH)));
    rig.op(0, setup(CONTEXT, 1, 0, 4096, 1));
    assert!(done(&mut rig).is_empty());
    rig.moved(&[]);
    let cases = [
        (setup(L5oId(3), 2, 0, 4096, 1), Refusal::Ended),
        (setup(CONTEXT, 2, 0, 0, 1), Refusal::DoesNotFit),
        (setup(CONTEXT, 2, 0, 4097, 1), Refusal::DoesNotFit),
        (setup(CONTEXT, 2, u32::MAX - 100, 200, 1), Refusal::DoesNotFit),
        (setup(CONTEXT, 1, 4096, 4096, 1), Refusal::DoesNotFit),
        (with_filled(setup(CONTEXT, 2, 0, 4096, 1), 4096), Refusal::DoesNotFit),
        (setup(CONTEXT, 2, 0, 4096, 5), Refusal::TableFull),
    ];
    for (op, why) in cases {
        rig.op(0, op);
        let back = done(&mut rig);
        assert_eq!(back.len(), 1);
        assert_eq!((back[0].refused, back[0].flow), (Some(why), FLOW));
        assert_eq!(rig.moved(&["rx_nvme", "nvme_"]), ["rx_nvmeotcp_ddp_setup_fail +1"]);
    }
    // A context of another queue is unknown.
    rig.op(1, setup(CONTEXT, 2, 0, 4096, 1));
    assert!(matches!(
        &rig.events[..],
        [(1, Event::DdpTeardownDone(done))] if done.refused == Some(Refusal::Ended)
    ));
    rig.events.clear();
    rig.op(0, setup(CONTEXT, 2, 0, 4096, 4));
    assert!(done(&mut rig).is_empty());
    rig.op(0, setup(CONTEXT, 3, 0, 4096, 1));
    assert_eq!(done(&mut rig)[0].refused, Some(Refusal::TableFull));
    assert_eq!(rig.counter("nvme_tcp_buffers"), 2);
    assert_eq!(rig.counter("nvme_tcp_buffer_bytes"), 5 * 4096);
    // Neither a second context nor one with the same number.
    rig.op(0, create(L5oId(3), state(BOTH)));
    assert!(
        matches!(&rig.events[..], [(0, Event::L5oRefused(r))] if r.reason == Refusal::TableFull)
    );
    assert_eq!(rig.counter("rx_nvmeotcp_sk_add_fail"), 1);
}

#[test]
fn a_disabled_engine_refuses() {
    for (l5o, why) in [
        (None, Refusal::Disabled),
        (Some(L5oConfig { nvme_tcp_rx: false, ..config(true) }), Refusal::Ended),
    ] {
        let mut rig = rig(l5o);
        rig.op(0, setup(CONTEXT, 1, 0, 4096, 1));
        assert_eq!(done(&mut rig)[0].refused, Some(why));
        rig.op(0, Op::DdpTeardown { context: CONTEXT, tag: 1 });
        rig.op(0, create(CONTEXT, state(BOTH)));
        assert!(matches!(&rig.events[..], [(0, Event::L5oRefused(_))]));
    }
}

#[test]
fn buffers_come_back_once() {
    let mut rig = rig(Some(config(true)));
    rig.op(0, create(CONTEXT, state(BOTH)));
    for tag in 0..6 {
        rig.op(0, setup(CONTEXT, tag, 0, 4096, 1));
    }
    rig.op(0, Op::DdpTeardown { context: CONTEXT, tag: 4 });
    rig.op(0, Op::DdpTeardown { context: CONTEXT, tag: 4 });
    rig.op(0, Op::DdpTeardown { context: CONTEXT, tag: 9 });
    rig.op(1, Op::DdpTeardown { context: CONTEXT, tag: 5 });
    let back = done(&mut rig);
    assert_eq!(back.len(), 1);
    assert_eq!((back[0].tag, back[0].refused), (4, None));
    // The tag is free again.
    rig.op(0, setup(CONTEXT, 4, 0, 4096, 1));
    // A context that replaces the first, and one that is destroyed.
    rig.op(0, create(L5oId(3), state(BOTH)));
    let mut tags: Vec<u16> = done(&mut rig).iter().map(|done| done.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 3, 4, 5]);
    rig.op(0, setup(L5oId(3), 7, 0, 4096, 1));
    rig.op(0, Op::L5oDestroy { context: L5oId(3) });
    assert_eq!(done(&mut rig)[0].context, L5oId(3));
    assert_eq!(
        rig.moved(&["rx_nvme", "nvme_"]),
        [
            "rx_nvmeotcp_sk_add +2",
            "rx_nvmeotcp_sk_del +2",
            "rx_nvmeotcp_ddp_setup +8",
            "rx_nvmeotcp_ddp_teardown +1",
        ]
    );
    assert_eq!((rig.counter("nvme_tcp_buffers"), rig.counter("l5o_contexts")), (0, 0));
}

/// A reset returns every buffer, including those in queued events.
#[test]
fn a_reset_gives_all_back() {
    let mut flow = NvmeRxFlow::new(PduStream::reads(BOTH, 10, 5000), config(true));
    flow.setup_all();
    flow.deliver(0..7000);
    flow.rig.collect();
    assert_eq!(flow.returned.len(), 1);
    // This buffer is in a queued event.
    flow.rig.device.handle_op(flow.rig.now, 0, Op::DdpTeardown { context: CONTEXT, tag: 1 });
    flow.rig.device.reset();
    flow.rig.collect();
    let events = core::mem::take(&mut flow.rig.events);
    assert!(matches!(events[0].1, Event::Reset), "before the buffers");
    let mut tags: Vec<u16> = events
        .into_iter()
        .skip(1)
        .map(|(_, event)| match event {
            Event::DdpTeardownDone(done) => {
                assert_eq!((done.context, done.flow, done.refused), (CONTEXT, FLOW, None));
                done.tag
            }
            other => panic!("{other:?}"),
        })
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, (1..10).collect::<Vec<_>>());
    for zero in
        ["nvme_tcp_buffers", "nvme_tcp_buffer_bytes", "nvme_tcp_contexts", "nvme_tcp_pdus_open"]
    {
        assert_eq!(flow.rig.counter(zero), 0, "{zero}");
    }
    flow.moved();
    flow.deliver(7000..9000);
    assert_eq!((flow.placed.clone(), flow.moved().len()), (None, 0));
    // After a new registration the device works again.
    flow.returned.clear();
    flow.offsets.clear();
    flow.rig.op(0, create(CONTEXT, state(BOTH)));
    flow.setup(0, 0, 5000);
    flow.deliver(0..6000);
    assert_eq!(flow.returned.len(), 1);
    assert_eq!(placed_bytes(&flow.returned[0])[..5000], flow.wire[28..5028]);
}

/// Data is placed only if all data of the PDU lies within a buffer.
#[test]
fn data_that_does_not_fit_is_left() {
    let mut content = PduStream::new(BOTH, 1);
    content.c2h(1, 0, 400);
    content.c2h(1, 4000, 400);
    content.c2h(2, 396, 8);
    content.c2h(2, 400, 100);
    content.c2h(2, 496, 8);
    content.c2h(3, 0, 100);
    for out_of_order in [false, true] {
        let mut flow = NvmeRxFlow::new(content.clone(), config(out_of_order));
        flow.setup(1, 0, 4096);
        flow.setup(2, 400, 100);
        flow.deliver(0..flow.wire.len());
        let placed: Vec<(u32, u32)> =
            flow.placed.as_ref().unwrap().placements.iter().map(|p| (p.id.0, p.offset)).collect();
        assert_eq!(placed, [(1, 0), (2, 400)]);
        assert_eq!(flow.verified.len(), 6, "digests are checked all the same");
        assert_eq!(flow.returned.len(), 1);
        assert_eq!(
            placed_bytes(&flow.returned[0])[..100],
            flow.wire[flow.content.pdus[3].data.clone().unwrap().2]
        );
        assert_eq!(placed_bytes(&flow.returned[0])[100..], [0; 3996]);
    }
}

/// The same range of a buffer again: bytes already placed are not overwritten.
#[test]
fn nothing_is_written_twice() {
    let mut content = PduStream::new(BOTH, 1);
    content.c2h(1, 100, 100);
    content.c2h(1, 48, 200);
    content.c2h(1, 100, 100);
    let mut flow = NvmeRxFlow::new(content, config(true));
    flow.setup(1, 0, 4096);
    flow.deliver(0..flow.wire.len());
    let placed: Vec<(u32, u32)> = flow
        .placed
        .as_ref()
        .unwrap()
        .placements
        .iter()
        .map(|p| (p.offset, p.range.end - p.range.start))
        .collect();
    assert_eq!(placed, [(100, 100), (48, 52), (200, 48)]);
    assert_eq!(flow.verified.len(), 3);
    flow.rig.op(0, Op::DdpTeardown { context: CONTEXT, tag: 1 });
    let back = done(&mut flow.rig);
    let first = flow.content.pdus[0].data.clone().unwrap().2;
    assert_eq!(placed_bytes(&back[0])[100..200], flow.wire[first]);
    assert_eq!(back[0].flow, FlowId(7));
}

/// A retransmission with other bytes changes no placed byte, and is not claimed as placed: the host
/// copies it from its frame, if it keeps that copy. Both frames are delivered as received.
#[test]
fn a_changed_retransmission_is_left_to_the_host() {
    for (digests, out_of_order) in ALL.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        let mut flow = NvmeRxFlow::new(PduStream::reads(digests, 1, 8000), config(out_of_order));
        flow.setup_all();
        let (_, _, data) = flow.content.pdus[0].data.clone().unwrap();
        flow.deliver(0..3000);
        let placed = flow.placed.clone().unwrap();
        let claimed: u32 = placed.placements.iter().map(|p| p.range.end - p.range.start).sum();
        assert_eq!(claimed as usize, 3000 - data.start);
        // Old bytes alone, and before new ones.
        for end in [2000, 4000] {
            let mut changed = flow.wire[1000..end].to_vec();
            let old = 3000.min(end) - 1000;
            changed[..old].iter_mut().for_each(|byte| *byte ^= 0xff);
            flow.deliver_bytes(1000, &changed);
            let claims = flow.placed.take().map(|placed| placed.placements).unwrap_or_default();
            let claims: Vec<(u32, u32)> =
                claims.iter().map(|p| (p.range.start, p.range.end)).collect();
            let expected = if end > 3000 { vec![(2000, 3000)] } else { vec![] };
            assert_eq!(claims, expected, "{digests:?} {out_of_order}");
        }
        flow.deliver(4000..flow.wire.len());
        let [back] = &flow.returned[..] else { panic!("it is full") };
        assert!(placed_bytes(back)[..8000] == flow.wire[data], "the first copy of each byte");
        assert_eq!(flow.rig.counter("rx_nvmeotcp_bytes"), 8000);
        assert_eq!(flow.rig.counter("nvme_tcp_digest_errors"), 0);
    }
}

/// A resync request does not take the last place in the event queue from its frame, so placed bytes
/// are always delivered.
#[test]
fn placed_bytes_are_never_dropped() {
    let content = PduStream::reads(ALL[2], 6, 900);
    let mut flow = NvmeRxFlow::new(content, config(true));
    let l5o = Some(config(true));
    let tight = DeviceConfig { l5o, queue_events_max: 1, ..DeviceConfig::new(MAC) };
    flow.rig = Rig::with(tight, PLAIN_LINK);
    flow.rig.op(0, create(CONTEXT, state(ALL[2])));
    flow.setup_all();
    flow.deliver(0..500);
    flow.deliver(1100..4000);
    assert_eq!(flow.requests.len(), 1);
    assert!(flow.placed.is_some());
    assert_eq!(flow.rig.counter("rx_dropped_overrun"), 0);
    flow.deliver_in(4000..flow.wire.len(), 500);
    let [full, ..] = flow.check();
    assert_eq!((full, flow.wrong), (4, 0));
}

/// If a buffer has more separate ranges than the device tracks, further ranges are left to the host
/// to copy, and placed bytes stay placed.
#[test]
fn many_separate_ranges() {
    let mut content = PduStream::new(BOTH, 1);
    for nth in 0..10 {
        content.c2h(1, nth * 200, 100);
    }
    content.c2h(1, 1600, 100);
    let mut flow = NvmeRxFlow::new(content, config(true));
    flow.setup(1, 0, 2000);
    flow.deliver(0..flow.wire.len());
    let offsets: Vec<u32> =
        flow.placed.as_ref().unwrap().placements.iter().map(|p| p.offset).collect();
    assert_eq!(offsets, (0..8).map(|nth| nth * 200).collect::<Vec<_>>());
    assert_eq!(flow.verified.len(), 11);
    flow.rig.op(0, Op::DdpTeardown { context: CONTEXT, tag: 1 });
    let back = done(&mut flow.rig);
    for (nth, pdu) in flow.content.pdus.iter().enumerate().take(8) {
        let bytes = flow.wire[pdu.data.clone().unwrap().2].to_vec();
        assert_eq!(placed_bytes(&back[0])[nth * 200..nth * 200 + 100], bytes);
    }
    assert_eq!(placed_bytes(&back[0])[1600..2000], [0; 400]);
}

/// Answers from another queue or to another context have no effect.
#[test]
fn answers_to_unknown_contexts_are_ignored() {
    let mut rig = rig(Some(config(true)));
    rig.op(0, create(CONTEXT, state(BOTH)));
    rig.moved(&[]);
    for (queue, context) in [(1, CONTEXT), (0, L5oId(1)), (0, CONTEXT)] {
        let tcpsn = SeqNum(4);
        rig.op(queue, Op::L5oResyncRxResp { context, tcpsn, number: Some(0) });
    }
    assert_eq!(
        rig.moved(&["rx_", "nvme_"]),
        ["rx_tls_resync_res_skip +2", "nvme_tcp_resync_res_skip +1"]
    );
}

/// Bytes already in the buffer are not written and not expected.
#[test]
fn a_partly_filled_buffer() {
    for out_of_order in [false, true] {
        let mut content = PduStream::new(BOTH, 5);
        for (offset, len) in [(0, 500), (500, 500), (1000, 24)] {
            content.c2h(1, offset, len);
        }
        let data = content.pdus.iter().filter_map(|pdu| pdu.data.clone()).collect::<Vec<_>>();
        let mut flow = NvmeRxFlow::new(content, config(out_of_order));
        flow.rig.op(0, with_filled(setup(CONTEXT, 1, 0, 1024, 1), 600));
        flow.offsets.insert(1, 0);
        flow.deliver_in(0..flow.wire.len(), 100);
        assert_eq!(flow.rig.counter("rx_nvmeotcp_bytes"), 424);
        assert_eq!(flow.verified.len(), 3, "digests are checked all the same");
        let [back] = &flow.returned[..] else { panic!("{:?}", flow.returned) };
        let memory = placed_bytes(back);
        assert!(memory[..600].iter().all(|&byte| byte == 0), "as they were");
        let text = |nth: usize| &flow.content.bytes[data[nth].2.clone()];
        assert!(memory[600..1000] == text(1)[100..]);
        assert!(memory[1000..1024] == *text(2));
    }
}

/// Placements of a PDU's data on both sides of placed bytes have the right positions in the packet.
#[test]
fn free_parts_are_placed() {
    let mut content = PduStream::new(BOTH, 1);
    for (offset, len) in [(100, 100), (48, 200), (0, 300)] {
        content.c2h(1, offset, len);
    }
    let mut flow = NvmeRxFlow::new(content, config(true));
    flow.setup(1, 0, 300);
    flow.deliver(0..flow.wire.len());
    let placed: Vec<(u32, u32, u32)> = flow
        .placed
        .as_ref()
        .unwrap()
        .placements
        .iter()
        .map(|p| (p.offset, p.range.end - p.range.start, p.range.start))
        .collect();
    let expected = [(100, 100, 28), (48, 52, 160), (200, 48, 312), (0, 48, 392), (248, 52, 640)];
    assert_eq!(placed, expected);
    let [back] = &flow.returned[..] else { panic!("it is full") };
    let mut memory = [0; 300];
    for pdu in flow.content.pdus.iter().rev() {
        let (_, offset, data) = pdu.data.clone().unwrap();
        memory[offset as usize..offset as usize + data.len()].copy_from_slice(&flow.wire[data]);
    }
    assert_eq!(placed_bytes(back)[..300], memory);
}

/// Expected content of a buffer: for each byte the value that was written first.
struct DdpBufferModel {
    base: u32,
    owner: Vec<Option<u8>>,
}

impl DdpBufferModel {
    fn ranges(&self) -> usize {
        let starts =
            |at: &usize| self.owner[*at].is_some() && (*at == 0 || self.owner[*at - 1].is_none());
        (0..self.owner.len()).filter(starts).count()
    }

    /// Returns the position in the buffer of a byte of the stream, if it is data.
    fn place(&self, pdus: &[ExpectedPdu], at: usize) -> Option<usize> {
        let (_, offset, data) = pdus.iter().find(|pdu| pdu.at.contains(&at))?.data.clone()?;
        let nth = at.checked_sub(data.start).filter(|_| at < data.end)?;
        Some((offset - self.base) as usize + nth)
    }

    /// Returns the bytes of a packet that go to free positions, and whether the device can track
    /// them all.
    fn free(&self, pdus: &[ExpectedPdu], packet: Range<usize>) -> (Vec<usize>, bool) {
        let mut then = Self { base: self.base, owner: self.owner.clone() };
        let (mut free, mut room) = (vec![], true);
        for at in packet {
            let Some(place) = self.place(pdus, at) else { continue };
            if then.owner[place].is_none() {
                then.owner[place] = Some(0);
                free.push(at);
                room &= then.ranges() <= 8;
            }
        }
        (free, room)
    }
}

/// Cuts a stream into packets, some of them swapped with the next one if they lie in the data of a
/// PDU.
fn packets(pdus: &[ExpectedPdu], cuts: &[(usize, bool)], swaps: bool) -> Vec<Range<usize>> {
    let len = pdus.last().unwrap().at.end;
    let (mut from, mut packets) = (0, vec![]);
    for &(step, _) in cuts.iter().cycle() {
        let to = (from + step).min(len);
        packets.push(from..to);
        from = to;
        if from == len {
            break;
        }
    }
    let behind_header = |packet: &Range<usize>| {
        let inside = |pdu: &&ExpectedPdu| {
            pdu.data
                .as_ref()
                .is_some_and(|(_, _, data)| data.start <= packet.start && packet.end <= pdu.at.end)
        };
        pdus.iter().find(inside).is_some()
    };
    let mut at = 0;
    while swaps && at + 1 < packets.len() {
        if cuts[at % cuts.len()].1 && behind_header(&packets[at]) {
            packets.swap(at, at + 1);
            at += 1;
        }
        at += 1;
    }
    packets
}

/// Data for a buffer, with overlaps.
#[derive(Clone, Debug)]
struct OverlappingData {
    /// Index into [`ALL`].
    which: usize,
    out_of_order: bool,
    /// If true, the buffer is not at the beginning of the command's data.
    far: bool,
    /// Length of the buffer in bytes.
    len: u32,
    /// Bytes already in the buffer, modulo its length.
    there: u32,
    /// Offset and length of each PDU's data, modulo the buffer.
    pdus: Vec<(u32, u32)>,
    /// Length of each packet, and whether it arrives after the next one.
    cuts: Vec<(usize, bool)>,
    seed: u64,
}

prop_compose! {
    fn any_data()(
        which in 0..ALL.len(),
        out_of_order: bool,
        far: bool,
        len in 1..2000_u32,
        there: u32,
        pdus in prop::collection::vec((any::<u32>(), any::<u32>()), 1..13),
        cuts in prop::collection::vec((1..700_usize, any::<bool>()), 1..20),
        seed: u64,
    ) -> OverlappingData {
        OverlappingData { which, out_of_order, far, len, there, pdus, cuts, seed }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    /// With arbitrary overlaps a byte of a buffer is the one that arrived first, and claims match
    /// the bytes written.
    #[test]
    fn overlapping_data_is_placed_once(data in any_data()) {
        let OverlappingData { which, out_of_order, far, len, there, pdus, cuts, seed } = data;
        let (base, there) = (if far { 4096 } else { 0 }, there % len);
        let mut content = PduStream::new(ALL[which], seed);
        for (at, bytes) in pdus {
            let at = (at % len) & !3;
            content.c2h(1, base + at, (1 + bytes % (len - at)) as usize);
        }
        let pdus = content.pdus.clone();
        let mut flow = NvmeRxFlow::new(content, config(out_of_order));
        let mut op = with_filled(setup(CONTEXT, 1, base, len, 1), there);
        if let Op::DdpSetup(setup) = &mut op {
            let len = setup.buffer.len();
            setup.buffer.write(0, &vec![0xa5; len]);
        }
        flow.rig.op(0, op);
        let owner = (0..len).map(|at| (at < there).then_some(0xa5)).collect();
        let (mut model, mut claimed) = (DdpBufferModel { base, owner }, 0);
        for packet in packets(&pdus, &cuts, out_of_order) {
            let (free, room) = model.free(&pdus, packet.clone());
            flow.deliver(packet.clone());
            let mut claims = vec![];
            for p in flow.placed.take().map(|placed| placed.placements).unwrap_or_default() {
                for (nth, at) in (0_usize..).zip(p.range) {
                    let at = packet.start + at as usize;
                    let place = (p.offset - base) as usize + nth;
                    prop_assert_eq!(model.place(&pdus, at), Some(place));
                    prop_assert_eq!(model.owner[place].replace(flow.wire[at]), None);
                    claims.push(at);
                }
            }
            claimed += claims.len() as u64;
            prop_assert!(!room || claims == free, "{:?} {:?}", claims, free);
        }
        prop_assert_eq!(flow.rig.counter("rx_nvmeotcp_bytes"), claimed);
        let full = model.owner.iter().all(Option::is_some);
        prop_assert_eq!(flow.returned.len(), usize::from(full));
        flow.rig.op(0, Op::DdpTeardown { context: CONTEXT, tag: 1 });
        flow.collect();
        let [back] = &flow.returned[..] else { panic!("once") };
        let memory: Vec<u8> = model.owner.iter().map(|byte| byte.unwrap_or(0xa5)).collect();
        prop_assert_eq!(&placed_bytes(back)[..len as usize], &memory[..]);
        prop_assert!(placed_bytes(back)[len as usize..].iter().all(|&byte| byte == 0xa5));
        let all = pdus.iter().filter(|_| ALL[which] != ALL[0]).map(|pdu| pdu.at.start);
        flow.verified.sort_unstable();
        prop_assert_eq!(&flow.verified, &all.collect::<Vec<_>>());
        prop_assert_eq!(flow.rig.counter("nvme_tcp_digest_errors"), 0);
    }
}

//! The memory limit of the file engine: back-pressure, eviction and progress.

use abi::aligned::PAGE_BYTES;
use abi::link::TxFrame;
use abi::{FileExtent, FileFault, FileId, FileLimits, Op, TransmitOutcome, TransmitPart};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

use super::rig::{Rig, content, extent};
use crate::FileConfig;

/// Blocks of one page, and the least memory that the largest transmit needs: [`TINY_PAGES`].
fn tiny() -> FileConfig {
    FileConfig {
        memory_bytes_max: 0,
        block_pages: 1,
        read_ahead_blocks: 0,
        reads_in_flight_max: 4,
        ..FileConfig::default()
    }
}

/// Fifteen pages of content, and two for each extent.
const TINY_PAGES: u64 = 15 + 2 * FileLimits::EXTENTS_PER_TRANSMIT_MAX as u64;
/// Pages that the tests share.
const FREE_PAGES: u64 = 31;

/// Returns a device with [`FREE_PAGES`], and frames whose blocks occupy the others.
fn rig() -> (Rig, Vec<TxFrame>) {
    let mut rig = Rig::new(tiny());
    rig.put("a", 100 * PAGE_BYTES, 1);
    rig.open(0, 1, "a").unwrap();
    let others = TINY_PAGES - FREE_PAGES;
    rig.put("b", usize::try_from(page(others)).unwrap(), 2);
    rig.open(0, 2, "b").unwrap();
    let mut frames = vec![];
    for at in 0..others {
        let transmit = extent(99, 99, 2, page(at), 4096);
        rig.device.handle_op(rig.now, 0, Op::Transmit(transmit));
        rig.requests.extend(rig.device.poll_disk());
        complete_without_polling(&mut rig);
        while let Some(frame) = rig.next_frame() {
            frames.push(frame);
        }
    }
    assert_eq!(rig.counter("file_memory_bytes"), page(others));
    rig.moved(&[]);
    rig.events.clear();
    (rig, frames)
}

fn page(at: u64) -> u64 {
    at * PAGE_BYTES as u64
}

#[test]
fn transmits_wait_in_order_for_memory() {
    let (mut rig, _others) = rig();
    // 14 pages each: two fit into 31, the third waits with a part of the blocks that it needs.
    for i in 0..4_u32 {
        rig.send(0, extent(u64::from(i), i, 1, page(u64::from(i) * 14), 14 * 4096));
    }
    assert_eq!(
        rig.moved(&["file_memory_"]),
        [
            "file_memory_waits +1",
            alloc::format!("file_memory_bytes +{}", page(FREE_PAGES)).as_str(),
        ]
    );
    rig.complete_all();
    let tags: Vec<u32> = rig.outcomes().into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, [0, 1, 2, 3], "and all are sent");
    assert!(rig.counter("file_memory_bytes") <= page(TINY_PAGES));
    assert_eq!(rig.counter("file_memory_waits"), 2);
}

#[test]
fn unheld_blocks_are_evicted_first() {
    let (mut rig, _others) = rig();
    rig.send(0, extent(1, 1, 1, 0, 10 * 4096));
    rig.complete_all();
    rig.send(0, extent(1, 2, 1, page(20), 10 * 4096));
    rig.complete_all();
    rig.ack(0, 1, page(20), 10 * 4096);
    rig.send(0, extent(1, 3, 1, page(40), 15 * 4096));
    rig.complete_all();
    assert_eq!(rig.moved(&["file_evicted", "file_held_e"]), ["file_evicted +4"]);
    rig.send(0, extent(1, 4, 1, page(60), 15 * 4096));
    rig.complete_all();
    // Six more free ones, then nine that are held for retransmissions.
    assert_eq!(
        rig.moved(&["file_evicted", "file_held_e"]),
        ["file_evicted +15", "file_held_evicted +9",]
    );
    let mut again = extent(1, 5, 1, 0, 4096);
    again.retransmission = true;
    rig.seqs();
    rig.send(0, again);
    rig.complete_all();
    let bytes: Vec<u8> = rig.packets().into_iter().flat_map(|p| p.1).collect();
    assert!(bytes == content(1, 0, 4096), "read again");
}

#[test]
fn an_evicted_block_of_a_changed_file_is_not_sent_again() {
    let (mut rig, others) = rig();
    drop(others);
    rig.send(0, extent(1, 1, 1, 0, 4096));
    rig.complete_all();
    for i in 1..6 {
        rig.send(0, extent(1, 2, 1, page(i * 15), 15 * 4096));
        rig.complete_all();
    }
    assert_eq!(rig.counter("file_held_bytes"), page(TINY_PAGES));
    rig.put("a", 100 * PAGE_BYTES, 2);
    rig.outcomes();
    let mut again = extent(1, 9, 1, 0, 4096);
    again.retransmission = true;
    rig.send(0, again);
    rig.complete_all();
    assert_eq!(rig.outcomes(), [(9, TransmitOutcome::Dropped(FileFault::Changed))]);
}

#[test]
fn frames_in_flight_keep_their_blocks() {
    let (mut rig, _others) = rig();
    rig.device.handle_op(rig.now, 0, Op::Transmit(extent(1, 1, 1, 0, 15 * 4096)));
    let poll = |rig: &mut Rig| rig.requests.extend(rig.device.poll_disk());
    // Completes reads without polling frames, as if the link were blocked.
    let mut kept: Vec<TxFrame> = vec![];
    for _ in 0..15 {
        poll(&mut rig);
        complete_without_polling(&mut rig);
    }
    while let Some(frame) = rig.next_frame() {
        kept.push(frame);
    }
    rig.device.handle_op(rig.now, 0, Op::Transmit(extent(2, 2, 1, page(20), 15 * 4096)));
    for _ in 0..15 {
        poll(&mut rig);
        complete_without_polling(&mut rig);
    }
    while let Some(frame) = rig.next_frame() {
        kept.push(frame);
    }
    rig.device.handle_op(rig.now, 0, Op::Transmit(extent(3, 3, 1, page(40), 15 * 4096)));
    poll(&mut rig);
    complete_without_polling(&mut rig);
    assert!(rig.device.poll_disk().is_none(), "one page was left; the others are on their way");
    assert_eq!(rig.device.poll_timeout(rig.now), Some(rig.now + base::Duration::from_millis(1)));
    let bytes: Vec<u8> =
        kept.iter().flat_map(|f| super::frames::bytes_of(f)[66..].to_vec()).collect();
    let mut expected = content(1, 0, 15 * 4096);
    expected.extend(content(1, 20 * 4096, 15 * 4096));
    assert!(bytes == expected, "wrong bytes");
    kept.clear();
    rig.collect();
    rig.complete_all();
    assert_eq!(rig.device.poll_timeout(rig.now), None);
    assert_eq!(rig.packets().iter().map(|p| p.1.len()).sum::<usize>(), 15 * 4096);
}

/// Two bytes around the end of page `at`, which need two blocks.
fn straddle(at: u64) -> TransmitPart {
    let offset = page(at + 1) - 1;
    TransmitPart::File(FileExtent { file: FileId(1), offset, len: 2 })
}

/// A later transmit of a flow finds its blocks in memory while an earlier one waits for memory. If
/// it took them, the two would wait for each other.
#[test]
fn transmits_waiting_for_memory_keep_order() {
    let (mut rig, _others) = rig();
    let straddles = |tag: u32, flow: u64, first: u64, n: u64| {
        let mut t = super::rig::echoed(flow, tag);
        t.parts.extend((0..n).map(|i| straddle(first + 2 * i)));
        t
    };
    // 16 and 5 blocks are being read; 10 are left of the 16 that the first transmit of flow 9
    // needs.
    rig.send(0, straddles(1, 7, 0, 8));
    rig.send(0, extent(8, 2, 1, page(20), 5 * 4096));
    rig.send(0, straddles(3, 9, 30, 8));
    assert_eq!(rig.counter("file_memory_waits"), 1);
    for _ in 0..15 {
        rig.complete(0);
    }
    for _ in 0..4 {
        rig.complete(1);
    }
    let mut hits = straddles(4, 9, 0, 7);
    hits.parts.extend(extent(0, 0, 1, page(14), 4096).parts);
    rig.send(0, hits);
    rig.send(0, extent(9, 5, 1, page(20), 4 * 4096));
    rig.complete_all();
    let tags: Vec<u32> = rig.outcomes().into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, [1, 2, 3, 4, 5]);
    assert_eq!(rig.counter("tx_pending_transmits"), 0);
}

/// Completes the oldest read without polling anything.
fn complete_without_polling(rig: &mut Rig) {
    let request = rig.requests.remove(0);
    if let Some(completion) = rig.disk.execute(request) {
        rig.device.handle_disk(rig.now, completion);
    }
}

#[derive(Clone, Debug)]
enum MemoryStep {
    Send { flow: u64, file: u32, extents: Vec<(u16, u16)>, again: bool },
    Ack { file: u32, offset: u16, len: u16 },
    Complete { which: usize },
    Break(bool),
    Rewrite,
    Reopen { file: u32 },
}

fn step() -> impl Strategy<Value = MemoryStep> {
    let extents = proptest::collection::vec(any::<(u16, u16)>(), 1..5);
    prop_oneof![
        8 => (0..4_u64, 0..4_u32, extents, any::<bool>())
            .prop_map(|(flow, file, extents, again)|
                MemoryStep::Send { flow, file, extents, again }),
        3 => (0..4_u32, any::<u16>(), any::<u16>())
            .prop_map(|(file, offset, len)| MemoryStep::Ack { file, offset, len }),
        12 => any::<usize>().prop_map(|which| MemoryStep::Complete { which }),
        1 => any::<bool>().prop_map(MemoryStep::Break),
        1 => Just(MemoryStep::Rewrite),
        1 => (0..4_u32).prop_map(|file| MemoryStep::Reopen { file }),
    ]
}

/// Size of each file of the property test: 50 pages and 77 bytes.
const FILE_BYTES: usize = 50 * PAGE_BYTES + 77;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// With any sequence of transmits, acknowledgments, failures and rewrites, and any order of
    /// completions: memory stays within its limit, every transmit ends exactly once, the bytes sent
    /// are those of the file, each flow is in order, and in the end nothing waits and nothing is
    /// held.
    #[test]
    fn makes_progress_within_the_limit(
        steps in proptest::collection::vec(step(), 1..120), read_ahead in 0..4_u32,
    ) {
        let mut rig = Rig::new(FileConfig { read_ahead_blocks: read_ahead, ..tiny() });
        // Files 0 and 1 have the same content.
        let paths = ["a", "a", "b", "c"];
        let mut versions = [1_u64, 1, 2, 3];
        for (id, path) in (0..).zip(paths) {
            rig.put(path, FILE_BYTES, versions[id as usize]);
            rig.open(0, id, path).unwrap();
        }
        rig.events.clear();
        let mut expected: Vec<Expected> = vec![];
        let mut next_version = 4;
        let mut rewritten = false;
        for step in steps {
            match step {
                MemoryStep::Send { flow, file, extents, again } => {
                    let tag = u32::try_from(expected.len()).unwrap() * 0x1_0000;
                    let mut t = super::rig::echoed(flow, tag);
                    let mut bytes = vec![];
                    for (offset, len) in extents {
                        let offset = usize::from(offset) * 3;
                        let len = 1 + usize::from(len) / 4;
                        bytes.extend(content(versions[file as usize], offset, len));
                        let len = u32::try_from(len).unwrap();
                        t.parts.extend(extent(0, 0, file, offset as u64, len).parts);
                    }
                    t.retransmission = again;
                    prop_assert!(t.parts.iter().all(|p| matches!(p, TransmitPart::File(_))));
                    expected.push(Expected { flow, bytes, seen: vec![] });
                    rig.send(0, t);
                }
                MemoryStep::Ack { file, offset, len } => {
                    rig.ack(0, file, u64::from(offset) * 3, u32::from(len));
                }
                MemoryStep::Complete { which } if !rig.requests.is_empty() => {
                    rig.complete(which % rig.requests.len());
                }
                MemoryStep::Complete { .. } => {}
                MemoryStep::Break(broken) => rig.disk.fail_reads = broken,
                MemoryStep::Rewrite => {
                    rig.put("c", FILE_BYTES, next_version);
                    next_version += 1;
                    rewritten = true;
                }
                MemoryStep::Reopen { file } => {
                    rig.complete_all();
                    rig.close(0, file);
                    rig.open(0, file, paths[file as usize]).unwrap();
                    versions[file as usize] = rig.disk.file(paths[file as usize]).stat.version;
                }
            }
            prop_assert!(rig.counter("file_memory_bytes") <= page(TINY_PAGES));
        }
        rig.complete_all();
        prop_assert_eq!(rig.counter("tx_pending_transmits"), 0);
        prop_assert_eq!(rig.counter("file_waiting_transmits"), 0);
        prop_assert_eq!(rig.counter("file_reads_in_flight"), 0);
        check_outcome(&mut rig, &mut expected);
        // One acknowledgment for each of up to four extents of each transmit.
        for file in (0..4).flat_map(|file| core::iter::repeat_n(file, 4 * expected.len())) {
            rig.ack(0, file, 0, u32::MAX);
        }
        // Blocks of a version that is no longer open are held until they are evicted.
        prop_assert!(rewritten || rig.counter("file_held_bytes") == 0);
        for file in 0..4 {
            rig.close(0, file);
        }
        prop_assert!(rig.disk.open_handles() == 0);
    }
}

/// A transmit of the property test.
struct Expected {
    flow: u64,
    bytes: Vec<u8>,
    seen: Vec<u8>,
}

/// Checks that every transmit ended once and that those sent have their bytes, each flow in order.
fn check_outcome(rig: &mut Rig, expected: &mut [Expected]) {
    let mut ended = vec![None; expected.len()];
    for (tag, outcome) in rig.outcomes() {
        let at = (tag / 0x1_0000) as usize;
        assert_eq!(ended[at].replace(outcome), None, "ended twice");
    }
    let mut last_of_flow = [0; 4];
    for (seq, payload) in rig.packets() {
        let at = (seq / 0x1_0000) as usize;
        let flow = usize::try_from(expected[at].flow).unwrap();
        assert!(last_of_flow[flow] <= at, "order within a flow");
        last_of_flow[flow] = at;
        expected[at].seen.extend(payload);
    }
    for (transmit, outcome) in expected.iter().zip(ended) {
        match outcome.expect("it ended") {
            TransmitOutcome::Sent => assert!(transmit.bytes == transmit.seen, "wrong bytes"),
            TransmitOutcome::Dropped(_) => assert!(transmit.seen.is_empty(), "dropped and sent"),
        }
    }
}

//! Files: opening and closing, sharing, acknowledgments, changes during a transfer, reset.

use abi::disk::{DiskCompletion, DiskRequest};
use abi::link::LinkCaps;
use abi::steering::{FlowSteering, OwnQueue};
use abi::{
    Event, FileAccess, FileFault, FileId, FileKind, FileLimits, FlowId, Op, Refusal,
    TransmitOutcome,
};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use base::Instant;
use testkit::PLAIN_LINK;

use super::frames::MAC;
use super::rig::{Rig, content, extent, plain};
use crate::{DeviceConfig, FileConfig};

const SENT: TransmitOutcome = TransmitOutcome::Sent;

fn dropped(fault: FileFault) -> TransmitOutcome {
    TransmitOutcome::Dropped(fault)
}

/// A file of 200,000 bytes, open as 1 on queue 0 and as 5 on queue 1.
fn rig(read_ahead_blocks: u32) -> Rig {
    let mut rig = Rig::new(FileConfig { read_ahead_blocks, ..FileConfig::default() });
    rig.put("a", 200_000, 1);
    rig.open(0, 1, "a").unwrap();
    rig.open(1, 5, "a").unwrap();
    rig.moved(&[]);
    rig.events.clear();
    rig
}

#[test]
fn two_flows_share_one_read() {
    let mut rig = rig(0);
    rig.send(0, extent(7, 10, 1, 0, 60_000));
    rig.send(1, extent(8, 20, 5, 100, 1000));
    assert_eq!(rig.reads(), [(0, 65_536)]);
    rig.complete_all();
    rig.send(1, extent(8, 1020, 5, 1100, 1000));
    assert_eq!(
        rig.moved(&["file_"]),
        [
            "file_transmits +3",
            "file_bytes +62000",
            "file_disk_reads +1",
            "file_disk_read_bytes +65536",
            "file_block_hits +1",
            "file_block_shared_waits +1",
            "file_blocks +1",
            "file_memory_bytes +65536",
            "file_held_bytes +62000",
        ]
    );
    let packets = rig.packets();
    let first: Vec<u8> = packets[..42].iter().flat_map(|p| p.1.clone()).collect();
    assert!(first == content(1, 0, 60_000), "wrong bytes");
    assert_eq!(packets[42], (20, content(1, 100, 1000)));
    assert_eq!(packets[43], (1020, content(1, 1100, 1000)));
}

#[test]
fn the_tail_of_a_file_is_read_to_its_last_page() {
    let mut rig = rig(0);
    rig.send(0, extent(7, 10, 1, 199_000, 1000));
    // 200,000 bytes end in the block that begins at 196,608: 3,392 bytes, one page.
    assert_eq!(rig.reads(), [(196_608, 4096)]);
    rig.complete_all();
    assert_eq!(rig.packets(), [(10, content(1, 199_000, 1000))]);
}

#[test]
fn held_bytes_return_to_nothing() {
    let mut rig = rig(0);
    rig.send(0, extent(7, 10, 1, 60_000, 60_000));
    rig.complete_all();
    assert_eq!(rig.counter("file_held_bytes"), 60_000);
    let mut again = extent(7, 10, 1, 60_000, 60_000);
    again.retransmission = true;
    rig.send(0, again);
    assert_eq!(rig.counter("file_held_bytes"), 60_000, "held no second time");
    rig.ack(0, 1, 60_000, 10_000);
    assert_eq!(rig.counter("file_held_bytes"), 50_000);
    rig.ack(0, 1, 70_000, 50_000);
    rig.ack(0, 1, 70_000, 50_000);
    assert_eq!(rig.counter("file_held_bytes"), 0);
    rig.ack(0, 99, 0, 1);
    assert_eq!(rig.counter("file_acks"), 4);
    assert_eq!(rig.counter("file_unknown"), 1);
}

/// The host reads by itself what it had queued, and acknowledges it before the disk answers.
#[test]
fn canceled_transmits_hold_no_buffers() {
    for cancelled in [false, true] {
        let mut rig = rig(0);
        rig.send(0, extent(7, 10, 1, 0, 1000));
        rig.send(0, extent(7, 1010, 1, 1000, 1000));
        rig.send(0, extent(8, 20, 1, 0, 500));
        if cancelled {
            rig.op(0, Op::Cancel { flow: FlowId(7) });
            let gone = dropped(FileFault::FlowFailed);
            assert_eq!(rig.outcomes(), [(10, gone), (1010, gone)]);
        }
        rig.ack(0, 1, 0, 2000);
        rig.complete_all();
        assert_eq!(rig.outcomes().last(), Some(&(20, SENT)));
        assert_eq!(rig.counter("file_held_bytes"), if cancelled { 500 } else { 2500 });
        assert_eq!(rig.counter("file_waiting_transmits"), 0);
    }
}

#[test]
fn opening_says_what_is_wrong() {
    let mut rig = rig(0);
    assert_eq!(rig.open(0, 2, "none"), Err(FileFault::NotFound));
    assert_eq!(rig.open(0, 1, "a"), Err(FileFault::BadExtent), "the id is in use");
    assert_eq!(rig.open(0, 2, &String::from("x").repeat(4097)), Err(FileFault::BadPath));
    assert_eq!(rig.moved(&["file_open"]), ["file_opens +3", "file_open_failures +3"]);
    let mut rig = Rig::new(FileConfig { files_max: 1, ..FileConfig::default() });
    rig.put("a", 10, 1);
    assert!(rig.open(0, 1, "a").is_ok());
    assert_eq!(rig.open(0, 2, "a"), Err(FileFault::Refused(Refusal::TableFull)));
    rig.close(0, 1);
    assert!(rig.open(0, 2, "a").is_ok());
    assert_eq!(rig.disk.open_handles(), 1);
}

#[test]
fn only_regular_files_are_sent() {
    let mut rig = rig(0);
    rig.put("d", 4096, 9);
    rig.disk.file("d").stat.kind = FileKind::Directory;
    assert_eq!(rig.open(0, 2, "d").unwrap().kind, FileKind::Directory);
    rig.events.clear();
    rig.send(0, extent(7, 10, 2, 0, 100));
    assert_eq!(rig.outcomes(), [(10, dropped(FileFault::BadExtent))]);
}

#[test]
fn nonexistent_extents_are_refused() {
    let mut rig = rig(0);
    for (tag, file, offset, len) in [
        (1, 9, 0, 1),
        (2, 5, 0, 1),
        (3, 1, 0, 0),
        (4, 1, 199_999, 2),
        (5, 1, u64::MAX, 1),
        (6, 1, u64::MAX - 10, 65_000),
    ] {
        rig.send(0, extent(7, tag, file, offset, len));
        assert_eq!(rig.outcomes(), [(tag, dropped(FileFault::BadExtent))]);
    }
    let mut many = extent(7, 7, 1, 0, 1);
    for _ in 0..FileLimits::EXTENTS_PER_TRANSMIT_MAX {
        many.parts.push(many.parts[0].clone());
    }
    rig.send(0, many);
    assert_eq!(rig.outcomes(), [(7, dropped(FileFault::BadExtent))], "an extent too many");
    assert_eq!(rig.moved(&["file_", "tx_"]), ["tx_dropped_file +7", "file_bad_extents +7"]);
}

#[test]
fn a_closed_file_is_sent_to_the_end() {
    let mut rig = rig(0);
    rig.send(0, extent(7, 10, 1, 0, 100));
    rig.close(0, 1);
    rig.close(0, 1);
    rig.send(0, extent(8, 20, 1, 0, 100));
    assert_eq!(rig.outcomes(), [(20, dropped(FileFault::BadExtent))]);
    assert_eq!(rig.disk.open_handles(), 2);
    rig.complete_all();
    assert_eq!(rig.outcomes(), [(10, SENT)]);
    assert_eq!((rig.disk.open_handles(), rig.counter("file_open_files")), (1, 1));
    assert_eq!(rig.counter("file_unknown"), 1);
}

#[test]
fn a_file_closed_while_it_opens_is_not_leaked() {
    let mut rig = rig(0);
    rig.op(0, Op::FileOpen { file: FileId(2), path: b"a"[..].into(), access: FileAccess::Content });
    rig.close(0, 2);
    rig.complete_all();
    assert!(rig.events.is_empty(), "no host waits for the answer");
    assert_eq!((rig.disk.open_handles(), rig.counter("file_open_files")), (2, 2));
}

#[test]
fn a_rewritten_file_is_never_mixed() {
    let mut rig = rig(0);
    rig.send(0, extent(7, 10, 1, 0, 100));
    rig.complete_all();
    rig.send(0, extent(7, 20, 1, 70_000, 100));
    rig.send(0, plain(7, 30, b"behind"));
    rig.send(1, extent(8, 40, 5, 70_000, 100));
    rig.outcomes();
    rig.put("a", 200_000, 2);
    rig.complete_all();
    let told = |e: &(usize, Event)| matches!(e, (_, Event::FileChanged(_)));
    assert_eq!(rig.events.iter().filter(|e| told(e)).count(), 2, "each who has it open");
    let mut outcomes = rig.outcomes();
    outcomes.sort_by_key(|o| o.0);
    assert_eq!(
        outcomes,
        [
            (20, dropped(FileFault::Changed)),
            (30, dropped(FileFault::FlowFailed)),
            (40, dropped(FileFault::Changed)),
        ]
    );
    rig.send(0, extent(9, 50, 1, 0, 100));
    assert_eq!(rig.outcomes(), [(50, dropped(FileFault::Changed))], "even what is in memory");
    assert_eq!(rig.counter("file_changed"), 1);
    assert_eq!(rig.seqs(), [10]);
    rig.close(0, 1);
    rig.open(0, 1, "a").unwrap();
    rig.send(0, extent(9, 60, 1, 0, 100));
    rig.complete_all();
    assert_eq!(rig.packets(), [(60, content(2, 0, 100))], "the new content has its own blocks");
}

#[test]
fn a_truncated_file_is_noticed_by_length_alone() {
    let mut rig = rig(0);
    rig.disk.file("a").read_bytes_max = Some(1000);
    rig.send(0, extent(7, 10, 1, 0, 100));
    rig.complete_all();
    assert_eq!(rig.outcomes(), [(10, dropped(FileFault::Changed))]);
    assert_eq!(rig.counter("file_blocks"), 0, "never cached");
}

#[test]
fn a_read_error_fails_all_who_wait_and_is_tried_again() {
    let mut rig = rig(0);
    rig.send(0, extent(7, 10, 1, 0, 100));
    rig.send(1, extent(8, 20, 5, 0, 100));
    rig.disk.fail_reads = true;
    rig.complete_all();
    let io = dropped(FileFault::Io);
    assert_eq!(rig.outcomes().iter().map(|o| o.1).collect::<Vec<_>>(), [io, io]);
    rig.disk.fail_reads = false;
    rig.send(0, extent(7, 30, 1, 0, 100));
    rig.complete_all();
    assert_eq!(rig.outcomes(), [(30, SENT)]);
    assert_eq!(rig.counter("file_read_errors"), 1);
}

#[test]
fn a_sequential_reader_is_read_ahead_of() {
    let mut rig = rig(2);
    rig.send(0, extent(7, 10, 1, 0, 1000));
    assert_eq!(rig.reads(), [(0, 65_536), (65_536, 65_536), (131_072, 65_536)]);
    rig.complete_all();
    rig.send(0, extent(7, 20, 1, 1000, 1000));
    assert_eq!(rig.reads(), [], "the same block again");
    rig.send(0, extent(7, 30, 1, 2000, 64_000));
    assert_eq!(rig.reads(), [(196_608, 4096)], "the last one, cut to a page");
    rig.complete_all();
    assert_eq!(rig.outcomes(), [(10, SENT), (20, SENT), (30, SENT)]);
    assert_eq!(
        rig.moved(&["file_disk_reads", "file_read", "file_block_"]),
        [
            "file_disk_reads +4",
            "file_reads_of_pages +1",
            "file_read_ahead +3",
            "file_block_hits +3",
        ]
    );
    let mut rig = self::rig(2);
    rig.send(0, extent(7, 10, 1, 70_000, 1000));
    assert_eq!(rig.reads(), [(69_632, 4096)], "a jump into the middle");
    rig.complete_all();
    rig.send(0, extent(7, 20, 1, 71_000, 10_000));
    assert_eq!(rig.reads(), [(69_632, 12_288)], "and on from there");
    rig.complete_all();
    let sent: Vec<u8> = rig.packets().into_iter().flat_map(|p| p.1).collect();
    assert!(sent == content(1, 70_000, 11_000), "wrong bytes");
}

/// Read-ahead grows with the run, and is never more than what the run has read.
#[test]
fn a_run_is_read_ahead_of_as_far_as_it_is_long() {
    let mut rig = Rig::new(FileConfig { block_pages: 4, ..FileConfig::default() });
    rig.put("n", 2 << 20, 1);
    rig.open_for(0, 1, "n", FileAccess::Namespace).unwrap();
    let mut reads = Vec::new();
    for tag in 0..16 {
        rig.send(0, extent(7, tag, 1, (1 << 20) + u64::from(tag) * 8192, 8192));
        reads.push(rig.reads().iter().map(|(_, len)| len / 4096).collect::<Vec<_>>());
        rig.complete_all();
    }
    // Two pages are read at a time up to a block, then whole blocks of four pages: each first use
    // of one reads ahead by the bytes of the run, up to four blocks.
    assert_eq!(reads[..4], [vec![2], vec![2], vec![4, 4], vec![]]);
    assert_eq!(reads[4..10], [vec![4, 4], vec![], vec![4, 4], vec![], vec![4, 4], vec![]]);
    let sent: Vec<u8> = rig.packets().into_iter().flat_map(|p| p.1).collect();
    assert!(sent == content(1, 1 << 20, 16 * 8192), "wrong bytes");
}

/// Random reads take the pages that they need, and find them again; acknowledged and invalid bytes
/// leave all blocks of their name.
#[test]
fn random_reads_take_only_their_pages() {
    const READS: u32 = 2000;
    let mut rig = Rig::new(FileConfig::default());
    let pages = 16_384_u32;
    rig.put("n", pages as usize * 4096, 1);
    rig.open_for(0, 1, "n", FileAccess::Namespace).unwrap();
    let mut prng = base::Prng::new(9);
    for tag in 0..READS {
        let offset = prng.below(pages.into()) * 4096;
        rig.send(0, extent(7, tag, 1, offset, 4096));
        rig.complete_all();
        let sent: Vec<u8> = rig.packets().into_iter().flat_map(|p| p.1).collect();
        assert!(sent == content(1, usize::try_from(offset).unwrap(), 4096), "at {offset}");
    }
    let [read, sent] = ["file_disk_read_bytes", "file_bytes"].map(|name| rig.counter(name));
    assert_eq!(sent, u64::from(READS) * 4096);
    assert!(read <= sent + sent / 10, "{read} bytes read for {sent}");
    assert!(rig.counter("file_reads_of_pages") > u64::from(READS) * 8 / 10);
    // Unaligned ranges across pages and blocks, twice.
    let held = rig.counter("file_held_bytes");
    for tag in [READS, READS + 1] {
        rig.send(0, extent(7, tag, 1, 20 * 65_536 - 5000, 6000));
        rig.complete_all();
        let sent: Vec<u8> = rig.packets().into_iter().flat_map(|p| p.1).collect();
        assert!(sent == content(1, 20 * 65_536 - 5000, 6000), "wrong bytes");
    }
    assert_eq!(rig.counter("file_held_bytes"), held + 12_000);
    let reads = rig.counter("file_disk_reads");
    rig.send(0, extent(7, READS + 2, 1, 20 * 65_536 - 4096, 5000));
    rig.complete_all();
    assert_eq!(rig.counter("file_disk_reads"), reads, "all pages are in memory");
    rig.op(0, Op::FileInvalidate { file: FileId(1), offset: 0, len: u64::MAX });
    assert_eq!((rig.counter("file_blocks"), rig.counter("file_held_bytes")), (0, 0));
}

#[test]
fn reads_in_flight_are_limited() {
    let file = FileConfig { reads_in_flight_max: 2, read_ahead_blocks: 0, ..Default::default() };
    let mut rig = Rig::new(file);
    rig.put("a", 300_000, 1);
    rig.open(0, 1, "a").unwrap();
    for (flow, block) in (0..4).zip([0, 65_536, 131_072, 196_608]) {
        rig.send(0, extent(flow, 10, 1, block, 100));
    }
    assert_eq!(rig.reads().len(), 2);
    rig.complete(0);
    assert_eq!(rig.reads().len(), 2);
    rig.complete_all();
    assert_eq!(rig.seqs().len(), 4);
}

#[test]
fn a_reset_forgets_everything_and_leaks_nothing() {
    let mut rig = rig(0);
    rig.send(0, extent(7, 10, 1, 0, 100));
    rig.complete_all();
    rig.send(0, extent(7, 20, 1, 70_000, 100));
    rig.send(0, plain(7, 30, b"behind"));
    rig.op(0, Op::FileOpen { file: FileId(2), path: b"a"[..].into(), access: FileAccess::Content });
    rig.events.clear();
    rig.seqs();
    rig.device.reset();
    rig.collect();
    let resets = rig.events.iter().filter(|e| matches!(e.1, Event::Reset)).count();
    assert_eq!((resets, rig.events.len()), (2, 2), "one for each queue and nothing else");
    // The read was in flight when its file was closed.
    let stat = rig.disk.file("a").stat;
    let DiskRequest::Read { id, buf, .. } = rig.requests.remove(0) else { panic!("a read") };
    let result = Ok((u32::try_from(buf.len()).unwrap(), stat));
    rig.device.handle_disk(rig.now, DiskCompletion::Read { id, buf, result });
    rig.complete_all();
    assert_eq!(rig.seqs(), []);
    assert_eq!(rig.disk.open_handles(), 0, "all closed");
    for gauge in ["file_blocks", "file_held_bytes", "file_open_files", "tx_pending_transmits"] {
        assert_eq!(rig.counter(gauge), 0, "{gauge}");
    }
    assert_eq!(rig.counter("file_stale_completions"), 2);
    rig.open(0, 1, "a").unwrap();
    rig.events.clear();
    rig.send(0, extent(7, 40, 1, 0, 100));
    rig.complete_all();
    assert_eq!(rig.outcomes(), [(40, SENT)], "it continues");
    assert_eq!(rig.counter("file_memory_bytes"), 65_536 + 4096, "the old buffers are used again");
}

#[test]
fn a_reset_drops_requests_not_sent_to_the_disk() {
    let file = FileConfig { reads_in_flight_max: 1, read_ahead_blocks: 0, ..Default::default() };
    let mut rig = Rig::new(file);
    rig.put("a", 200_000, 1);
    rig.open(0, 1, "a").unwrap();
    for (flow, offset) in [(1, 0), (2, 65_536), (3, 131_072)] {
        rig.device.handle_op(rig.now, 0, Op::Transmit(extent(flow, 10, 1, offset, 100)));
    }
    let polled = rig.device.poll_disk().unwrap();
    assert!(rig.device.poll_disk().is_none(), "two wait");
    rig.device.reset();
    rig.device.unpoll_disk(polled);
    rig.collect();
    assert!(rig.requests.is_empty() && rig.disk.open_handles() == 0);
    assert_eq!(rig.counter("file_reads_in_flight"), 0);
    rig.open(0, 1, "a").unwrap();
    for (flow, offset) in [(1, 0), (2, 65_536), (3, 131_072)] {
        rig.send(0, extent(flow, 20, 1, offset, 100));
    }
    rig.complete_all();
    assert_eq!(rig.seqs(), [20, 20, 20]);
    assert_eq!(rig.counter("file_memory_bytes"), 65_536 + 2 * 4096, "the same three buffers");
}

#[test]
fn unpolled_output_is_polled_again() {
    let mut rig = rig(0);
    rig.device.handle_op(rig.now, 0, Op::Transmit(plain(7, 10, &[1; 2000])));
    let (queue, event) = rig.device.poll_event().unwrap();
    rig.device.unpoll_event(queue, event);
    let first = rig.next_frame().unwrap();
    rig.device.unpoll_frame(first);
    rig.device.handle_op(rig.now, 0, Op::Transmit(extent(8, 20, 1, 0, 100)));
    let read = rig.device.poll_disk().unwrap();
    rig.device.unpoll_disk(read);
    rig.collect();
    rig.complete_all();
    assert_eq!(rig.seqs(), [10, 1458, 20]);
    assert_eq!(rig.outcomes(), [(10, SENT), (20, SENT)]);
    assert_eq!(rig.counter("tx_packets"), 3, "counted once");
}

#[test]
fn a_run_too_long_for_the_link_is_cut() {
    let config = DeviceConfig {
        transmit_bytes_max: 200_000,
        run_bytes_max: 200_000,
        ..DeviceConfig::new(MAC)
    };
    let wire = LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1500 };
    let mut rig = Rig::with(config, wire);
    assert_eq!(rig.device.capabilities().transmit_bytes_max, 200_000);
    let now = Instant::ZERO;
    rig.device.handle_op(now, 0, Op::Transmit(plain(7, 10, &[0; 150_000])));
    let long = rig.next_frame().unwrap();
    assert_eq!(long.payload_len(), 150_000);
    rig.device.unpoll_long_frame(long);
    rig.collect();
    let lens: Vec<_> = rig.sent.iter().map(|frame| frame.payload_len()).collect();
    assert_eq!(lens, [65_160, 65_160, 19_680]);
    assert_eq!(rig.counter("tx_packets"), 104, "counted once");
    assert_eq!(rig.counter("tx_bytes"), 104 * 66 + 150_000);
    assert_eq!(rig.counter("tx_long_runs_refused"), 1);
    // The device remembers the limit.
    rig.send(0, plain(7, 20, &[0; 70_000]));
    assert_eq!(rig.sent.len(), 5);
}

/// Hosts learn of another MTU, also by a reset in between. Their transmits of the old size are
/// already on the way and are taken.
#[test]
fn hosts_learn_of_another_mtu() {
    let config = DeviceConfig { queues: 2, ..DeviceConfig::new(MAC) };
    let mut rig = Rig::with(config, PLAIN_LINK);
    rig.device.handle_link_change(1200);
    rig.collect();
    let told = |event: &(usize, Event)| match event {
        (queue, Event::LinkChanged { mtu }) => Some((*queue, *mtu)),
        _ => None,
    };
    let mut all: Vec<_> = rig.events.drain(..).filter_map(|event| told(&event)).collect();
    all.sort_unstable();
    assert_eq!((all, rig.device.capabilities().mtu), (vec![(0, 1200), (1, 1200)], 1200));
    rig.send(0, plain(7, 10, &[0; 1448]));
    assert_eq!(rig.sent.len(), 1);
    rig.device.handle_link_change(1500);
    rig.device.reset();
    rig.collect();
    let mut all: Vec<_> = rig.events.drain(..).filter_map(|event| told(&event)).collect();
    all.sort_unstable();
    assert_eq!(all, [(0, 1500), (1, 1500)]);
    // A device of one queue tells its own host only.
    let own = OwnQueue { steering: Arc::new(FlowSteering::new(1, 2)), index: 1 };
    let config = DeviceConfig { own_queue: Some(own), ..DeviceConfig::new(MAC) };
    let mut rig = Rig::with(config, PLAIN_LINK);
    rig.device.handle_link_change(1200);
    rig.collect();
    let all: Vec<_> = rig.events.drain(..).filter_map(|event| told(&event)).collect();
    assert_eq!(all, [(1, 1200)]);
}

/// A host that takes the place of another one finds no state and no event of it, but hears of
/// changes of the link and of the load.
#[test]
fn the_next_host_finds_a_device_without_state() {
    let mut rig = Rig::with(DeviceConfig::new(MAC), PLAIN_LINK);
    rig.device.handle_link_change(1200);
    rig.device.set_load(1000);
    rig.device.forget_host();
    rig.collect();
    assert!(rig.events.is_empty(), "{:?}", rig.events);
    rig.device.welcome_host();
    rig.device.set_load(1000);
    rig.collect();
    let events: Vec<_> = rig.events.drain(..).map(|(_, event)| event).collect();
    assert!(
        matches!(&events[..], [Event::LinkChanged { mtu: 1200 }, Event::Load(load)] if load.high),
        "{events:?}"
    );
    assert_eq!(rig.counter("device_resets"), 0);
}

#[test]
fn without_the_engine_files_are_refused() {
    let config = DeviceConfig { file: None, ..DeviceConfig::new(MAC) };
    let wire = LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1500 };
    let mut rig = Rig::with(config, wire);
    let caps = rig.device.capabilities();
    assert_eq!((caps.file, caps.mac, caps.mtu), (Err(Refusal::Disabled), MAC, 1500));
    let refused = Err(FileFault::Refused(Refusal::Disabled));
    assert_eq!(rig.open(0, 1, "a"), refused);
    rig.ack(0, 1, 0, 1);
    rig.close(0, 1);
    rig.send(0, extent(7, 10, 1, 0, 100));
    assert_eq!(rig.outcomes(), [(10, dropped(FileFault::BadExtent))]);
    rig.send(0, plain(7, 20, &[0; 60_000]));
    assert_eq!((rig.sent.len(), rig.sent[0].segment_size), (1, 1448));
    assert_eq!(rig.counter("tx_packets"), 42);
}

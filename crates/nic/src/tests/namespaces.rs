//! Namespaces: files that the host writes to while the device sends them.

use abi::aligned::PAGE_BYTES;
use abi::disk::{DiskRequest, DiskRequestId};
use abi::{FileAccess, FileFault, FileId, FileKind, Op, TransmitOutcome, TransmitPart};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use proptest::prelude::*;

use super::rig::{Rig, content, extent};
use crate::FileConfig;

const PAGE: u64 = PAGE_BYTES as u64;

/// Blocks of two pages; if `tight`, only as much memory as the largest transmit needs.
fn rig(tight: bool) -> Rig {
    let memory_bytes_max = if tight { 0 } else { 1 << 20 };
    let mut rig = Rig::new(FileConfig {
        memory_bytes_max,
        block_pages: 2,
        read_ahead_blocks: 0,
        ..FileConfig::default()
    });
    rig.put("n", 64 * PAGE_BYTES, 1);
    open(&mut rig, 0, 1);
    rig.moved(&[]);
    rig.events.clear();
    rig
}

fn open(rig: &mut Rig, queue: usize, id: u32) {
    rig.open_for(queue, id, "n", FileAccess::Namespace).unwrap();
}

/// Writes as the host does: to the disk, then an invalidation to the device.
fn write(rig: &mut Rig, offset: u64, len: usize, fill: u8) {
    let file = rig.disk.file("n");
    let at = usize::try_from(offset).unwrap();
    file.bytes_mut()[at..at + len].fill(fill);
    file.stat.version += 1;
    let len = u64::try_from(len).unwrap();
    rig.op(0, Op::FileInvalidate { file: FileId(1), offset, len });
}

fn on_disk(rig: &mut Rig, offset: u64, len: u32) -> Vec<u8> {
    let at = usize::try_from(offset).unwrap();
    rig.disk.file("n").bytes()[at..at + len as usize].to_vec()
}

/// Returns the bytes of one transmit.
fn sent(rig: &mut Rig, tag: u32, offset: u64, len: u32) -> Vec<u8> {
    rig.send(0, extent(u64::from(tag), tag, 1, offset, len));
    rig.complete_all();
    rig.packets().into_iter().flat_map(|p| p.1).collect()
}

fn invalidations(rig: &mut Rig) -> Vec<alloc::string::String> {
    rig.moved(&["file_inv", "file_det", "file_unknown", "file_changed", "file_disk_reads"])
}

/// A changed version has no effect, and stale bytes are not sent.
#[test]
fn written_ranges_are_read_again() {
    let mut rig = rig(false);
    assert_eq!(sent(&mut rig, 1, 100, 3 * 8192), content(1, 100, 3 * 8192));
    rig.ack(0, 1, 100, 3 * 8192);
    assert_eq!(invalidations(&mut rig), ["file_disk_reads +4"]);
    write(&mut rig, 9000, 10, 0xee);
    assert_eq!(invalidations(&mut rig), ["file_invalidations +1", "file_invalidated_blocks +1"]);
    let now = sent(&mut rig, 2, 100, 3 * 8192);
    assert!(now == on_disk(&mut rig, 100, 3 * 8192) && now[8900..8910] == [0xee; 10]);
    assert_eq!(invalidations(&mut rig), ["file_disk_reads +1"], "the one block");
    // An invalidation of the whole file, and of empty or invalid ranges.
    let whole = Op::FileInvalidate { file: FileId(1), offset: 0, len: u64::MAX };
    rig.op(0, whole);
    rig.op(0, Op::FileInvalidate { file: FileId(1), offset: u64::MAX, len: u64::MAX });
    rig.op(0, Op::FileInvalidate { file: FileId(1), offset: 0, len: 0 });
    rig.op(0, Op::FileInvalidate { file: FileId(9), offset: 0, len: 1 });
    assert_eq!(
        invalidations(&mut rig),
        ["file_invalidations +4", "file_invalidated_blocks +4", "file_unknown +1"]
    );
    assert_eq!((rig.counter("file_blocks"), rig.counter("file_held_bytes")), (0, 0));
}

/// A read in flight during a write may return old or new bytes, so later transmits do not use it.
#[test]
fn a_read_in_flight_is_not_reused_after_a_write() {
    let mut rig = rig(false);
    rig.send(0, extent(1, 1, 1, 0, 100));
    // In the same page, but outside the range that is sent.
    write(&mut rig, 2000, 100, 0xaa);
    assert_eq!(
        invalidations(&mut rig),
        [
            "file_disk_reads +1",
            "file_invalidations +1",
            "file_invalidated_blocks +1",
            "file_detached_blocks +1"
        ]
    );
    rig.send(0, extent(2, 2, 1, 2000, 100));
    assert_eq!(rig.reads(), [(0, 4096), (0, 4096)], "it does not wait for the old read");
    // The new read completes first.
    rig.complete(1);
    assert_eq!(rig.packets(), [(2, [0xaa; 100].to_vec())]);
    rig.complete(0);
    assert_eq!(rig.packets(), [(1, content(1, 0, 100))]);
    // The stale block is counted until its frame has left and its memory is needed.
    assert_eq!(rig.counter("file_blocks"), 2);
    assert_eq!(rig.counter("file_held_bytes"), 100, "the new one's");
    write(&mut rig, 0, 8192, 0xbb);
    assert_eq!(sent(&mut rig, 3, 0, 8192), [0xbb; 8192]);
    assert_eq!(rig.counter("file_disk_reads"), 3);
}

/// A transmit that waits for other blocks keeps the block that became stale.
#[test]
fn a_waiting_transmit_keeps_its_blocks() {
    let mut rig = rig(false);
    sent(&mut rig, 1, 0, 8192);
    rig.send(0, extent(2, 2, 1, 0, 3 * 8192));
    write(&mut rig, 30_000, 10, 0xcc);
    write(&mut rig, 8000, 192, 0xcc);
    assert_eq!(rig.counter("file_detached_blocks"), 1, "nothing to do for the first");
    let before = content(1, 0, 3 * 8192);
    rig.complete_all();
    let got: Vec<u8> = rig.packets().into_iter().flat_map(|p| p.1).collect();
    assert_eq!(got[..8000], before[..8000]);
    assert_eq!(got[8192..], before[8192..]);
    assert_eq!(sent(&mut rig, 3, 8000, 192), [0xcc; 192]);
}

/// Two hosts have the namespace open: an invalidation by one takes effect for both.
#[test]
fn a_change_counts_for_every_open() {
    let mut rig = rig(false);
    open(&mut rig, 1, 7);
    rig.put("other", 4096, 5);
    rig.open_for(1, 8, "other", FileAccess::Namespace).unwrap();
    for (file, tag) in [(7, 1), (8, 2)] {
        rig.send(1, extent(u64::from(tag), tag, file, 0, 100));
    }
    rig.complete_all();
    rig.packets();
    rig.moved(&[]);
    write(&mut rig, 0, 100, 0xdd);
    assert_eq!(invalidations(&mut rig), ["file_invalidations +1", "file_invalidated_blocks +1"]);
    rig.send(1, extent(3, 3, 7, 0, 100));
    rig.complete_all();
    assert_eq!(rig.packets(), [(3, [0xdd; 100].to_vec())]);
    // A reopened file has no blocks of the earlier open.
    rig.close(0, 1);
    open(&mut rig, 0, 1);
    assert_eq!(sent(&mut rig, 4, 0, 100), [0xdd; 100]);
}

#[test]
fn a_namespace_that_became_shorter_is_an_error() {
    let mut rig = rig(false);
    rig.disk.file("n").stat.size = 10_000;
    rig.send(0, extent(1, 1, 1, 8192, 8192));
    rig.complete_all();
    assert_eq!(rig.outcomes(), [(1, TransmitOutcome::Dropped(FileFault::Io))]);
    assert_eq!(rig.moved(&["file_changed", "file_read_e"]), ["file_read_errors +1"]);
    assert_eq!(sent(&mut rig, 2, 0, 8192), content(1, 0, 8192), "the rest is still read");
}

#[test]
fn block_devices_are_namespaces_only() {
    let mut rig = rig(false);
    rig.disk.file("n").stat.kind = FileKind::Block;
    rig.open(0, 2, "n").unwrap();
    rig.open_for(0, 3, "n", FileAccess::Namespace).unwrap();
    rig.events.clear();
    rig.send(0, extent(1, 1, 2, 0, 10));
    rig.send(0, extent(2, 2, 3, 0, 10));
    rig.complete_all();
    let bad = TransmitOutcome::Dropped(FileFault::BadExtent);
    assert_eq!(rig.outcomes(), [(1, bad), (2, TransmitOutcome::Sent)]);
}

#[derive(Clone, Copy, Debug)]
enum NamespaceStep {
    Send(u64, u32),
    Write(u64, usize, u8),
    Complete(usize),
    Acknowledge,
}

fn step() -> impl Strategy<Value = NamespaceStep> {
    let end = 64 * PAGE;
    prop_oneof![
        (0..end - 20_000, 1..20_000_u32).prop_map(|(at, len)| NamespaceStep::Send(at, len)),
        (0..end - 20_000, 1..20_000_usize, any::<u8>())
            .prop_map(|(at, len, fill)| NamespaceStep::Write(at, len, fill)),
        (0..8_usize).prop_map(NamespaceStep::Complete),
        Just(NamespaceStep::Acknowledge),
    ]
}

/// Content of the disk when each waiting read was submitted: the oldest bytes that it can return.
#[derive(Default)]
struct DiskSnapshots(BTreeMap<DiskRequestId, Rc<Vec<u8>>>);

impl DiskSnapshots {
    fn note(&mut self, rig: &mut Rig) {
        let now = Rc::new(rig.disk.file("n").bytes().to_vec());
        for request in &rig.requests {
            let DiskRequest::Read { id, .. } = request else { continue };
            self.0.entry(*id).or_insert_with(|| Rc::clone(&now));
        }
    }

    /// Completes one read with that content.
    fn complete(&mut self, rig: &mut Rig, at: usize) {
        let DiskRequest::Read { id, .. } = &rig.requests[at] else { return };
        let mut bytes = (*self.0.remove(id).expect("it was noted")).clone();
        rig.disk.file("n").bytes_mut().swap_with_slice(&mut bytes);
        rig.complete(at);
        rig.disk.file("n").bytes_mut().copy_from_slice(&bytes);
        self.note(rig);
    }
}

proptest! {
    /// As in the NVMe target, a range is written only while no byte of it is being sent. Then every
    /// transmit has the bytes that were on the disk when it was submitted, in any order of reads
    /// and with little memory.
    #[test]
    fn old_bytes_are_never_sent(
        steps in prop::collection::vec(step(), 1..80),
        tight in any::<bool>(),
    ) {
        let mut rig = rig(tight);
        // Transmits in flight: offset, length and bytes.
        let mut sending: Vec<(u64, u32, Vec<u8>)> = Vec::new();
        let mut asked = DiskSnapshots::default();
        for (tag, &step) in steps.iter().enumerate() {
            let tag = u32::try_from(tag).unwrap();
            match step {
                NamespaceStep::Send(at, len) => {
                    sending.push((at, len, on_disk(&mut rig, at, len)));
                    let mut transmit = extent(u64::from(tag), tag << 16, 1, at, len);
                    transmit.echo = Some(tag);
                    transmit.segment_size = 1448;
                    prop_assert!(matches!(transmit.parts[0], TransmitPart::File(_)));
                    rig.send(0, transmit);
                }
                NamespaceStep::Write(at, len, fill) => {
                    let busy = |&(from, n, _): &(u64, u32, Vec<u8>)| {
                        from < at + len as u64 && at < from + u64::from(n)
                    };
                    if !sending.iter().any(busy) {
                        write(&mut rig, at, len, fill);
                    }
                }
                NamespaceStep::Complete(at) if !rig.requests.is_empty() => {
                    let at = at % rig.requests.len();
                    asked.complete(&mut rig, at);
                }
                NamespaceStep::Complete(_) => {}
                NamespaceStep::Acknowledge => finish(&mut rig, &mut asked, &mut sending)?,
            }
            asked.note(&mut rig);
        }
        finish(&mut rig, &mut asked, &mut sending)?;
        prop_assert_eq!(rig.counter("file_held_bytes"), 0);
        prop_assert_eq!(rig.counter("file_waiting_transmits"), 0);
    }
}

/// Checks that everything in flight arrives, and acknowledges it.
fn finish(
    rig: &mut Rig,
    asked: &mut DiskSnapshots,
    sending: &mut Vec<(u64, u32, Vec<u8>)>,
) -> Result<(), TestCaseError> {
    while !rig.requests.is_empty() {
        asked.complete(rig, 0);
    }
    let mut got: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for (seq, bytes) in rig.packets() {
        got.entry(seq >> 16).or_default().extend(bytes);
    }
    prop_assert_eq!(got.len(), sending.len());
    for ((at, len, expected), (_, bytes)) in sending.drain(..).zip(got) {
        prop_assert!(bytes == expected, "of {} bytes at {}", len, at);
        rig.ack(0, 1, at, len);
    }
    rig.events.clear();
    Ok(())
}

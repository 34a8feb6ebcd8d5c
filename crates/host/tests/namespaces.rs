//! Namespaces: writes, invalidations at the device, and whether the device or the host reads.

use abi::aligned::AlignedBuf;
use abi::disk::{DiskAccess, DiskCompletion, DiskRequest, DiskRequestId};
use abi::{Event, FileAccess, FileFault, FileId, FileStat, Op, Refusal};
use outboard_host::{DiskToken, DiskUser, FileKind, Notice};
use testkit::{ScriptedTcpPeer, file_bytes, seg};

/// The only user of the disk other than sockets.
const USER: DiskUser = DiskUser(0);

const fn token(number: u64) -> DiskToken {
    DiskToken { user: USER, number }
}

/// Returns a connection, and a namespace that is open at the device and on the host's own disk.
fn namespace_opened() -> (ScriptedTcpPeer, FileId) {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established();
    assert_eq!(t.host.new_disk_user(), USER);
    let file = t.host.offload_open_namespace("big").unwrap();
    t.pump();
    assert_eq!(t.notices.pop_front(), None, "the host's own disk has not answered");
    assert_eq!(t.host.offload_fstat(file), None);
    assert_eq!(t.host.extent_reader(file), Err(Refusal::Unanswered));
    let asked = (t.other_ops.pop_front(), t.disk.front());
    assert!(
        matches!(
            asked,
            (
                Some(Op::FileOpen { access: FileAccess::Namespace, .. }),
                Some(DiskRequest::Open { access: DiskAccess::NamespaceWrite, .. })
            )
        ),
        "{asked:?}"
    );
    t.serve_disk(ScriptedTcpPeer::default_file_stat());
    assert_eq!(t.notices.pop_front(), Some(Notice::File(file)));
    (t, file)
}

fn write(t: &mut ScriptedTcpPeer, number: u64, file: FileId, offset: u64, len: u32) {
    t.host.extent_write(token(number), file, offset, AlignedBuf::new(2), len, false);
    t.pump();
}

/// Returns the invalidated ranges, and removes the operations, which must all be invalidations.
fn take_invalidations(t: &mut ScriptedTcpPeer) -> Vec<(FileId, u64, u64)> {
    let ops = t.other_ops.drain(..).map(|op| match op {
        Op::FileInvalidate { file, offset, len } => (file, offset, len),
        other => panic!("{other:?}"),
    });
    ops.collect()
}

fn complete(t: &mut ScriptedTcpPeer, completion: DiskCompletion) {
    t.host.handle_disk(base::Instant::ZERO, completion);
    t.pump();
}

fn id_of(request: &DiskRequest) -> DiskRequestId {
    match request {
        DiskRequest::Write { id, .. }
        | DiskRequest::Flush { id, .. }
        | DiskRequest::Zero { id, .. } => *id,
        other => panic!("{other:?}"),
    }
}

/// Returns the completed changes: token, whether the buffer came back, and result.
fn take_completed_changes(t: &mut ScriptedTcpPeer) -> Vec<(u64, bool, Result<(), FileFault>)> {
    t.notices.retain(|notice| *notice != Notice::DiskDone(USER));
    let ended = core::iter::from_fn(|| t.host.poll_extent_done(USER));
    ended.map(|done| (done.number, done.buffer.is_some(), done.result)).collect()
}

#[test]
fn a_completed_change_is_invalidated() {
    let (mut t, file) = namespace_opened();
    assert_eq!(t.host.extent_reader(file), Ok(()));
    write(&mut t, 5, file, 4096, 5000);
    let Some(request) = t.disk.pop_front() else { panic!() };
    let DiskRequest::Write { id, offset: 4096, len: 5000, fua: false, buf, .. } = request else {
        panic!("{request:?}")
    };
    assert!(
        t.other_ops.is_empty() && take_completed_changes(&mut t).is_empty(),
        "nothing has changed yet"
    );
    let end = DiskCompletion::Written { id, buf, result: Ok(()) };
    t.expect_counters(|t| complete(t, end), &[("file_invalidations", 1)]);
    assert_eq!(take_invalidations(&mut t), [(file, 4096, 5000)]);
    assert_eq!(t.notices.pop_front(), Some(Notice::DiskDone(USER)));
    assert_eq!(take_completed_changes(&mut t), [(5, true, Ok(()))]);

    t.host.extent_zero(token(6), file, 1 << 20, 1 << 29, true);
    t.host.extent_flush(token(7), file);
    t.pump();
    let zero = t.disk.pop_front().unwrap();
    assert!(matches!(zero, DiskRequest::Zero { len: 0x2000_0000, deallocate: true, .. }));
    let flush = t.disk.pop_front().unwrap();
    complete(&mut t, DiskCompletion::Flushed { id: id_of(&flush), result: Ok(()) });
    assert!(t.other_ops.is_empty(), "a flush changes nothing");
    complete(&mut t, DiskCompletion::Zeroed { id: id_of(&zero), result: Ok(()) });
    assert_eq!(take_invalidations(&mut t), [(file, 1 << 20, 1 << 29)]);
    assert_eq!(take_completed_changes(&mut t), [(7, false, Ok(())), (6, false, Ok(()))]);
}

/// After a fault it is unknown how much of the range has changed, so all of it is invalidated.
#[test]
fn a_failed_change_is_invalidated() {
    let (mut t, file) = namespace_opened();
    write(&mut t, 1, file, 0, 4096);
    let Some(DiskRequest::Write { id, buf, .. }) = t.disk.pop_front() else { panic!() };
    let end = DiskCompletion::Written { id, buf, result: Err(FileFault::NoSpace) };
    t.expect_counters(|t| complete(t, end), &[("file_invalidations", 1), ("file_write_errors", 1)]);
    assert_eq!(take_invalidations(&mut t), [(file, 0, 4096)]);
    assert_eq!(take_completed_changes(&mut t), [(1, true, Err(FileFault::NoSpace))]);
    assert_eq!(FileFault::NoSpace.to_string(), "no space left on the disk");
}

#[test]
fn only_ranges_of_open_namespaces_change() {
    let (mut t, file) = namespace_opened();
    let bad = Err(FileFault::BadExtent);
    let size = ScriptedTcpPeer::default_file_stat().size;
    for (token, offset, len) in
        [(1, size, 1), (2, size - 1, 2), (3, u64::MAX, 2), (4, 0, 0), (5, 0, 8193)]
    {
        write(&mut t, token, file, offset, len);
        assert_eq!(take_completed_changes(&mut t), [(token, true, bad)], "the buffer comes back");
    }
    t.host.extent_zero(token(6), file, 1, size, false);
    t.host.extent_zero(token(7), file, 0, 0, false);
    t.host.extent_flush(token(8), FileId(99));
    let content = t.app_open();
    t.host.extent_flush(token(9), content);
    let opening = t.host.offload_open_namespace("other").unwrap();
    t.host.extent_flush(token(10), opening);
    t.host.offload_close(file);
    t.host.extent_flush(token(11), file);
    assert_eq!(
        take_completed_changes(&mut t),
        [6, 7, 8, 9, 10, 11].map(|token| (token, false, bad))
    );
    t.pump();
    let only_opens =
        |r: &DiskRequest| matches!(r, DiskRequest::Open { .. } | DiskRequest::Close { .. });
    assert!(t.disk.iter().all(only_opens), "{:?}", t.disk);
    assert_eq!(t.host.counters().file_invalidations, 0);
}

/// A read-only namespace opens its file for reading only, because the file may not be writable.
#[test]
fn a_namespace_that_is_read_only() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established();
    assert_eq!(t.host.new_disk_user(), USER);
    let file = t.host.offload_open_namespace_read_only("big").unwrap();
    t.pump();
    let asked = t.disk.front();
    let reads = matches!(asked, Some(DiskRequest::Open { access: DiskAccess::Namespace, .. }));
    assert!(reads, "{asked:?}");
    t.serve_disk(ScriptedTcpPeer::default_file_stat());
    assert!(matches!(t.host.offload_fstat(file), Some(Ok(_))));
    write(&mut t, 1, file, 0, 4096);
    assert_eq!(
        take_completed_changes(&mut t),
        [(1, true, Err(FileFault::BadExtent))],
        "the buffer comes back"
    );
    t.host.extent_zero(token(2), file, 0, 4096, true);
    assert_eq!(take_completed_changes(&mut t), [(2, false, Err(FileFault::BadExtent))]);
    assert!(t.disk.is_empty(), "{:?}", t.disk);
}

/// The device reads a namespace that it has opened; otherwise the host does.
#[test]
fn the_host_reads_if_the_device_cannot() {
    let (mut t, file) = namespace_opened();
    t.host.offload_write(t.now(), t.socket(), file, 5000, 1000).unwrap();
    t.pump();
    t.expect(seg!(ACK PSH file (5000, 1000)));
    for answer in [
        Err(FileFault::Refused(Refusal::TableFull)),
        Err(FileFault::NotFound),
        // Not the file that the host has opened.
        Ok(FileStat { size: 1 << 29, ..ScriptedTcpPeer::default_file_stat() }),
        Ok(FileStat { kind: FileKind::Block, ..ScriptedTcpPeer::default_file_stat() }),
    ] {
        let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established();
        assert_eq!(t.host.new_disk_user(), USER);
        t.set_device_file(answer);
        let file = t.host.offload_open_namespace("big").unwrap();
        t.pump();
        t.serve_disk(ScriptedTcpPeer::default_file_stat());
        assert_eq!(t.notices.pop_front(), Some(Notice::File(file)));
        assert!(t.host.extent_reader(file).is_err());
        assert_eq!(t.take_file_close(), answer.is_ok(), "the device does not keep it");
        t.other_ops.clear();
        t.host.offload_write(t.now(), t.socket(), file, 5000, 1000).unwrap();
        t.pump();
        // Another version is no fault, because a namespace is written to.
        t.serve_disk(FileStat { version: 9, ..ScriptedTcpPeer::default_file_stat() });
        t.expect(seg!(ACK PSH data (file_bytes(5000, 1000))));
        write(&mut t, 1, file, 0, 1);
        t.serve_disk(ScriptedTcpPeer::default_file_stat());
        assert_eq!(take_completed_changes(&mut t), [(1, true, Ok(()))]);
        assert!(t.other_ops.is_empty(), "the device has nothing of it");
        assert_eq!(t.host.counters().file_fallback_opens, 0);
    }
}

/// A namespace may be on a block device, but not on other special files.
#[test]
fn kinds_of_namespaces() {
    for (kind, works) in [(FileKind::Block, true), (FileKind::Other, false)] {
        let mut t = ScriptedTcpPeer::server().established();
        assert_eq!(t.host.new_disk_user(), USER);
        let stat = FileStat { kind, ..ScriptedTcpPeer::default_file_stat() };
        t.set_device_file(Ok(stat));
        let file = t.host.offload_open_namespace("sda").unwrap();
        t.pump();
        t.serve_disk(stat);
        assert_eq!(t.host.offload_write(t.now(), t.socket(), file, 0, 512).is_ok(), works);
        t.host.extent_flush(token(1), file);
        t.pump();
        t.serve_disk(stat);
        assert_eq!(take_completed_changes(&mut t)[0].2.is_ok(), works);
    }
}

/// After a device reset the host reads the bytes in flight. Once the device has opened the
/// namespace again, it reads later ones.
#[test]
fn a_reset_device_opens_it_again() {
    let (mut t, file) = namespace_opened();
    t.host.offload_write(t.now(), t.socket(), file, 0, 1000).unwrap();
    t.pump();
    t.take("a transmit");
    write(&mut t, 1, file, 1 << 20, 512);
    t.set_device_file(Err(FileFault::Refused(Refusal::TableFull)));
    t.expect_counters(|t| t.handle_device_event(Event::Reset), &[("device_resets", 1)]);
    assert!(matches!(t.other_ops.pop_front(), Some(Op::FileOpen { file: f, .. }) if f == file));
    assert_eq!(t.host.extent_reader(file), Err(Refusal::TableFull));
    t.serve_disk(ScriptedTcpPeer::default_file_stat());
    assert_eq!(take_completed_changes(&mut t), [(1, true, Ok(()))]);
    assert_eq!(take_invalidations(&mut t), []);
    t.at_ms(5000);
    t.serve_disk(ScriptedTcpPeer::default_file_stat());
    let again = t.take("what the host has read");
    assert_eq!((again.seq, again.file), (Some(1), None), "nothing is asked of the device");
    assert_eq!(again.data, Some(file_bytes(0, 1000)));
    t.take_all();
    t.send(seg!(ACK));

    t.set_device_file(Ok(ScriptedTcpPeer::default_file_stat()));
    t.handle_device_event(Event::Reset);
    assert_eq!(t.host.extent_reader(file), Ok(()));
    t.host.offload_write(t.now(), t.socket(), file, 4096, 1000).unwrap();
    t.pump();
    t.expect(seg!(ACK PSH seq 1001 file (4096, 1000)));
    assert!(!t.notices.iter().any(|n| matches!(n, Notice::File(_))), "the handle lasts");
}

/// A namespace is closed after its last change has completed.
#[test]
fn a_close_waits_for_changes() {
    let (mut t, file) = namespace_opened();
    write(&mut t, 1, file, 0, 512);
    t.host.offload_close(file);
    t.pump();
    assert!(t.other_ops.is_empty() && t.disk.len() == 1);
    t.serve_disk(ScriptedTcpPeer::default_file_stat());
    assert_eq!(take_completed_changes(&mut t), [(1, true, Ok(()))]);
    assert_eq!(t.disk_closes, 1);
    assert!(t.take_file_close());
    assert_eq!(take_invalidations(&mut t), [(file, 0, 512)]);
}

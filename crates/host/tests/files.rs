//! Files: IO-TCP's four calls, the echo, acknowledgment of extents, faults, and the host's own path
//! for files that the device refuses.

use abi::{Event, FileFault, FileId, Op, Refusal};
use base::Duration;
use outboard_host::{DiskToken, Notice, SocketError};
use testkit::{ScriptedTcpPeer, file_bytes, seg};

/// Returns an established, unpaced connection with a measured round trip of 100 ms; one byte was
/// sent.
fn warm() -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established();
    t.app_write(b"x");
    t.take("a byte");
    t.at_ms(100);
    t.send(seg!(ACK));
    t
}

/// IO-TCP section 3.1: the head from the host and the body from the device leave in one transmit.
#[test]
fn head_and_body_leave_together() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_file_unpumped(0); // opens it
    t.app_write_unpumped(b"HTTP/1.1 200 OK\r\n\r\n");
    t.app_file_unpumped(1000);
    t.pump();
    let mut whole = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    whole.extend(file_bytes(0, 1000));
    t.expect(seg!(ACK PSH seq 1 data whole file (0, 1000) echo));
    assert!(matches!(t.notices.front(), Some(Notice::File(_))), "the open has ended");
}

/// If the peer resets the connection while the device has bytes to send, these are released once,
/// after they have left, whatever the application does meanwhile.
#[test]
fn file_bytes_of_a_reset_connection_are_released_once() {
    let mut t = warm();
    t.app_file(1448);
    t.app_close_file();
    t.expect(seg!(ACK PSH seq 2 file (0, 1448) echo));
    t.send(seg!(RST));
    t.app_abort();
    assert!(!t.take_file_close(), "the device has yet to read it");
    t.echo_last_transmit(0);
    assert_eq!(t.take_acked_file_bytes(), 1448);
    assert!(t.take_file_close());
    assert_eq!(t.host.sockets().count(), 0);
}

/// IO-TCP section 3.4: the retransmission timer starts at the echo.
#[test]
fn nothing_times_out_before_its_echo() {
    let mut t = warm();
    t.app_file(5 * 1448);
    t.expect(seg!(ACK PSH seq 2 file (0, 7240) echo));
    t.expect_counters(|t| t.at_ms(60_000), &[]);
    t.expect_nothing();
    t.echo_last_transmit(59_900);
    t.expect_counters(
        |t| t.at_ms(60_300),
        &[("tcp_tail_probes", 1), ("tcp_retrans", 1), ("tcp_retrans_bytes", 1448)],
    );
    t.expect_at(60_200, seg!(ACK PSH seq 5794 file (5792, 1448) again));
}

/// Without echoes, time that a transmit waits for the disk looks like loss.
#[test]
fn without_echo_the_disk_looks_like_loss() {
    let mut t = ScriptedTcpPeer::server_with(|c| {
        c.tcp.pacing = false;
        c.tcp.echo = false;
    })
    .established();
    t.app_file(1448);
    t.take("a file's first bytes");
    t.at_ms(5000);
    assert!(t.host.counters().tcp_timeouts > 0);
}

/// IO-TCP section 3.5: the delay of the disk is not part of the round trip.
#[test]
fn round_trips_leave_the_disk_out() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.timestamps = false).established();
    t.app_file(1000);
    t.take("a file");
    t.at_ms(530);
    t.echo_last_transmit(500);
    t.send(seg!(ACK));
    assert_eq!(t.info().srtt, Duration::from_millis(30));
}

/// A transmit behind one that waits for a disk waits, too: its timer starts at its own echo.
#[test]
fn memory_behind_a_file_waits_for_its_echo() {
    let mut t = warm();
    t.app_file(1448);
    t.expect(seg!(ACK seq 2 file (0, 1448) echo));
    t.app_write(b"tail");
    t.expect(seg!(ACK PSH seq 1450 data b"tail" echo));
    t.expect_counters(|t| t.at_ms(10_000), &[]);
    t.expect_nothing();
}

/// A retransmission asks for the same bytes of the file, and is marked as a retransmission.
#[test]
fn a_retransmission_asks_for_the_same_extent() {
    let mut t = warm();
    t.app_file(10 * 1448);
    t.expect(seg!(ACK seq 2 file (0, 14480) run 1448 first));
    t.echo_last_transmit(0);
    t.at_ms(200);
    t.send(seg!(ACK ack 2 sack (2898, 7242)));
    let first = t.take("the second segment again");
    assert!(
        first.again == Some(true) && first.file == Some((0, 1448)) || first.file == Some((0, 2896))
    );
    assert_eq!(first.data.as_deref(), Some(&file_bytes(0, first.len.unwrap())[..]));
}

/// `FileAck` reports every byte once, and the file is closed when its last byte is acknowledged.
#[test]
fn acknowledged_bytes_are_reported_once() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established();
    let total: u64 = 1_000_000;
    t.app_file(total);
    t.app_close_file();
    let mut reported = 0;
    while t.info().send_queue > 0 {
        assert!(!t.take_file_close(), "bytes are outstanding");
        t.echo_all();
        t.take_all();
        t.after_ms(10);
        t.send(seg!(ACK));
        reported += t.take_acked_file_bytes();
    }
    assert_eq!(reported + t.take_acked_file_bytes(), total);
    assert!(t.take_file_close());
    assert_eq!(t.host.counters().tcp_retrans, 0);
}

/// A connection that ends releases all of its bytes at the device: sent ones by `FileAck`, and
/// those not sent without an operation.
#[test]
fn a_reset_releases_all_file_bytes() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_file(100_000);
    t.app_close_file();
    t.expect(seg!(ACK len 14480));
    t.send(seg!(RST seq 1));
    assert_eq!(t.error(), Some(SocketError::Reset));
    // The device holds bytes from the time they leave, so bytes that have not left are not released
    // yet.
    assert_eq!(t.take_acked_file_bytes(), 0);
    t.echo_last_transmit(1);
    assert_eq!(t.take_acked_file_bytes(), 14480);
    assert!(t.take_file_close());
}

/// If a file changed, the connection is reset.
#[test]
fn a_changed_file_resets() {
    let mut t = warm();
    t.app_file(100_000);
    t.take("a transmit");
    t.expect_counters(
        |t| t.drop_last_transmit(FileFault::Changed),
        &[("file_aborts", 1), ("tcp_estab_resets", 1), ("tcp_out_rsts", 1)],
    );
    t.expect(seg!(RST ACK));
    assert_eq!(t.error(), Some(SocketError::File(FileFault::Changed)));
}

/// If the device reports that a file changed, the application is notified, and still has to close
/// the handle.
#[test]
fn a_file_change_is_reported() {
    let mut t = ScriptedTcpPeer::server().established();
    let file = t.app_open();
    t.pump();
    t.notices.clear();
    t.handle_device_event(Event::FileChanged(file));
    assert!(t.notices.iter().any(|n| matches!(n, Notice::File(f) if *f == file)));
    assert_eq!(t.host.offload_fstat(file), Some(Err(FileFault::Changed)));
    t.host.offload_close(file);
    t.pump();
    assert!(t.take_file_close());
}

/// If several transmits are dropped together, only the first has the cause.
#[test]
fn the_first_fault_counts() {
    let mut t = warm();
    t.app_file(1448);
    t.app_file(1448);
    let flow = t.take_all().len();
    assert_eq!(flow, 2);
    t.drop_last_transmit(FileFault::Io);
    t.take("a reset");
    let id = abi::FlowId(u64::try_from(t.socket().index()).unwrap());
    let done = abi::TransmitDone {
        flow: id,
        tag: 0,
        delay: Duration::ZERO,
        outcome: abi::TransmitOutcome::Dropped(FileFault::FlowFailed),
    };
    t.expect_counters(|t| t.handle_device_event(Event::TransmitDone(done)), &[]);
    t.expect_nothing();
}

/// If the device refuses a file, the host opens it and reads it through its own disk, in pieces,
/// and the bytes are right.
#[test]
fn a_refused_file_is_read_by_the_host() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established();
    t.set_device_file(Err(FileFault::Refused(Refusal::TableFull)));
    let file = t.app_open();
    assert!(t.notices.is_empty(), "the open is not over yet");
    assert_eq!(t.host.offload_fstat(file), None);
    t.serve_disk(ScriptedTcpPeer::default_file_stat());
    assert_eq!(t.notices.pop_front(), Some(Notice::File(file)));
    t.host.offload_write(t.now(), t.socket(), file, 1000, 300_000).unwrap();
    t.host.offload_close(file);
    t.pump();
    let mut got = Vec::new();
    while t.info().send_queue > 0 {
        t.serve_disk(ScriptedTcpPeer::default_file_stat());
        for seg in t.take_all() {
            assert_eq!((seg.file, seg.echo), (None, Some(false)));
            got.extend(seg.data.unwrap());
        }
        t.after_ms(1);
        t.send(seg!(ACK));
    }
    assert!(got == file_bytes(1000, 300_000));
    assert_eq!(t.host.counters().file_fallback_opens, 1);
    assert_eq!(t.host.counters().file_fallback_bytes, 300_000);
    t.serve_disk(ScriptedTcpPeer::default_file_stat());
    assert_eq!(t.disk_closes, 1);
    assert_eq!(t.take_acked_file_bytes(), 0, "the device holds nothing");
}

/// A change is detected by the host's own disk, too.
#[test]
fn the_hosts_disk_detects_a_change() {
    let mut t =
        ScriptedTcpPeer::server_with(|c| c.file_offload = Err(Refusal::Disabled)).established();
    let file = t.app_open();
    t.serve_disk(ScriptedTcpPeer::default_file_stat());
    t.host.offload_write(t.now(), t.socket(), file, 0, 100_000).unwrap();
    t.pump();
    let changed = abi::FileStat { version: 2, ..ScriptedTcpPeer::default_file_stat() };
    t.expect_counters(
        |t| t.serve_disk(changed),
        &[("file_aborts", 1), ("tcp_estab_resets", 1), ("tcp_out_rsts", 1)],
    );
    assert_eq!(t.error(), Some(SocketError::File(FileFault::Changed)));
}

/// Refuses files that do not exist or are not regular, and ranges beyond the end.
#[test]
fn unsendable_files_are_refused() {
    let mut t = ScriptedTcpPeer::server().established();
    t.set_device_file(Err(FileFault::NotFound));
    let file = t.app_open();
    assert_eq!(t.host.offload_fstat(file), Some(Err(FileFault::NotFound)));
    assert!(t.host.offload_write(t.now(), t.socket(), file, 0, 1).is_err());
    t.set_device_file(Ok(abi::FileStat { size: 10, ..ScriptedTcpPeer::default_file_stat() }));
    let small = t.app_open();
    assert!(t.host.offload_write(t.now(), t.socket(), small, 5, 6).is_err(), "beyond the end");
    assert!(t.host.offload_write(t.now(), t.socket(), small, u64::MAX, 2).is_err());
    assert!(t.host.offload_write(t.now(), t.socket(), FileId(99), 0, 1).is_err());
    t.set_device_file(Ok(abi::FileStat {
        kind: outboard_host::FileKind::Directory,
        ..ScriptedTcpPeer::default_file_stat()
    }));
    let dir = t.app_open();
    assert!(t.host.offload_write(t.now(), t.socket(), dir, 0, 1).is_err());
}

/// The device is reset in the middle of a transfer: the host continues by itself, and every byte
/// arrives.
#[test]
fn a_reset_device_is_replaced_by_the_host() {
    let mut t = warm();
    let total: u32 = 200_000;
    t.app_file(u64::from(total));
    let mut have = vec![false; total as usize];
    // The first half of the first window has arrived.
    let first = t.take("a window");
    assert_eq!(first.len, Some(14480));
    t.send(seg!(ACK ack (2 + 7240)));
    have[..7240].fill(true);
    t.take_all();
    t.expect_counters(
        |t| t.handle_device_event(Event::Reset),
        &[("device_resets", 1), ("file_fallback_opens", 1)],
    );
    t.notices.clear();
    let mut next = 7240_usize;
    for _ in 0..2000 {
        t.serve_disk(ScriptedTcpPeer::default_file_stat());
        for seg in t.take_all() {
            assert_eq!(seg.file, None, "nothing is asked of the device: {seg}");
            let Some(at) = (seg.seq.unwrap() as usize).checked_sub(2) else { continue };
            let len = seg.len.unwrap();
            assert_eq!(seg.data, Some(file_bytes(at as u64, len)));
            have[at..at + len as usize].fill(true);
        }
        while next < have.len() && have[next] {
            next += 1;
        }
        if next == have.len() {
            break;
        }
        t.send(seg!(ACK ack (u32::try_from(next).unwrap() + 2)));
        t.after_ms(100);
    }
    assert_eq!(next, have.len(), "everything was sent");
    t.send(seg!(ACK));
    // Files opened from now on are offloaded again.
    assert_eq!(t.info().file_offload, Ok(()));
    assert_eq!(t.state(), "ESTABLISHED");
    assert!(t.notices.is_empty() || !t.notices.iter().any(|n| matches!(n, Notice::File(_))));
}

/// The device is reset, and the file has changed when the host opens it.
#[test]
fn a_file_that_changed_while_the_device_was_reset() {
    let mut t = warm();
    t.app_file(100_000);
    t.take("a window");
    t.handle_device_event(Event::Reset);
    let changed = abi::FileStat { version: 2, ..ScriptedTcpPeer::default_file_stat() };
    t.serve_disk(changed);
    assert_eq!(t.error(), Some(SocketError::File(FileFault::Changed)));
}

/// The device reports a change while the host opens the file, too, to read an extent that it holds:
/// nothing of the new content is returned.
#[test]
fn a_file_that_changes_while_the_host_opens_it() {
    let mut t = ScriptedTcpPeer::server().established();
    let file = t.app_open();
    t.pump();
    assert!(t.host.extent_hold(file, 0, 1000).is_some());
    let user = t.host.new_disk_user();
    t.host
        .extent_read(DiskToken { user, number: 7 }, abi::FileExtent { file, offset: 0, len: 1000 });
    t.handle_device_event(Event::FileChanged(file));
    let changed = abi::FileStat { version: 2, ..ScriptedTcpPeer::default_file_stat() };
    t.serve_disk(changed);
    t.serve_disk(changed);
    let read = t.host.poll_extent(user).expect("it has ended");
    assert_eq!((read.number, read.result), (7, Err(FileFault::Changed)));
    assert_eq!(t.host.offload_fstat(file), Some(Err(FileFault::Changed)));
}

/// If the table of open files is full, opening another one fails.
#[test]
fn too_many_files() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.files_max = 1);
    let file = t.app_open();
    assert_eq!(t.host.offload_open("another"), None);
    t.host.offload_close(file);
    t.pump();
    assert!(matches!(t.other_ops.back(), Some(Op::FileClose { .. })));
    assert!(t.host.offload_open("another").is_some());
}

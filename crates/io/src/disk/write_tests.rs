//! Tests of writes, the same for all backends.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use abi::FileKind;
use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::disk::{DiskAccess, DiskFile};

use super::tests::{DiskTester, KINDS, each, pattern};
use super::write::ZERO_BYTES;
use super::*;

type WriteResult = Result<(), FileFault>;

impl DiskTester {
    fn open_namespace(&mut self, path: &str) -> DiskFile {
        self.open_for(path, DiskAccess::NamespaceWrite).unwrap().0
    }

    pub(super) fn write(
        &mut self,
        file: DiskFile,
        offset: u64,
        bytes: &[u8],
        fua: bool,
    ) -> WriteResult {
        let mut buf = AlignedBuf::new(bytes.len().div_ceil(PAGE_BYTES).max(1));
        buf.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        self.write_from(file, offset, buf, u32::try_from(bytes.len()).unwrap(), fua)
    }

    pub(super) fn write_from(
        &mut self,
        file: DiskFile,
        offset: u64,
        buf: AlignedBuf,
        len: u32,
        fua: bool,
    ) -> WriteResult {
        let (asked, at) = (self.id(), buf.as_slice().as_ptr());
        let request = DiskRequest::Write { id: asked, file, offset, buf, len, fua };
        self.disk.submit(request).unwrap();
        match self.wait() {
            DiskCompletion::Written { id, buf, result } if id == asked => {
                assert_eq!(buf.as_slice().as_ptr(), at, "the buffer comes back");
                result
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn sync(&mut self, file: DiskFile) -> WriteResult {
        let asked = self.id();
        self.disk.submit(DiskRequest::Flush { id: asked, file }).unwrap();
        match self.wait() {
            DiskCompletion::Flushed { id, result } if id == asked => result,
            other => panic!("{other:?}"),
        }
    }

    fn zero(&mut self, file: DiskFile, offset: u64, len: u64, deallocate: bool) -> WriteResult {
        let asked = self.id();
        self.disk.submit(DiskRequest::Zero { id: asked, file, offset, len, deallocate }).unwrap();
        match self.wait() {
            DiskCompletion::Zeroed { id, result } if id == asked => result,
            other => panic!("{other:?}"),
        }
    }
}

const BIG: &str = "1048577";

#[test]
fn what_is_written_is_read() {
    each(|dir, asker| {
        let file = asker.open_namespace(BIG);
        let mut expected = pattern((1 << 20) + 1);
        let mut bytes = 0;
        for (offset, len, fua) in [
            (0, 512, false),
            (4096, 4096, true),
            (5000, 100_000, false),
            ((1 << 20) - 4095, 4096, false),
            (700_001, 1, true),
        ] {
            let new: Vec<u8> = pattern(len).iter().map(|b| !b).collect();
            asker.write(file, offset as u64, &new, fua).unwrap();
            expected[offset..offset + len].copy_from_slice(&new);
            bytes += len as u64;
        }
        asker.sync(file).unwrap();
        assert!(asker.read(file, 0, 512).unwrap().0 == expected);
        assert!(fs::read(dir.path().join("root").join(BIG)).unwrap() == expected);
        let moved = ["disk_writes", "disk_write_bytes", "disk_flushes", "disk_write_errors"];
        assert_eq!(moved.map(|name| asker.counter(name)), [5, bytes, 1, 0]);
    });
}

#[test]
fn a_reader_sees_what_was_written_before_it_asked() {
    each(|_, asker| {
        let writer = asker.open_namespace("4096");
        let (reader, _) = asker.open_for("4096", DiskAccess::Namespace).unwrap();
        for round in 0..50 {
            asker.write(writer, 100, &[round; 1000], false).unwrap();
            assert_eq!(asker.read(reader, 0, 1).unwrap().0[100..1100], [round; 1000]);
        }
    });
}

#[test]
fn only_what_was_opened_for_it_is_written() {
    each(|dir, asker| {
        for access in [DiskAccess::Content, DiskAccess::Namespace] {
            let (file, _) = asker.open_for("4096", access).unwrap();
            assert_eq!(asker.write(file, 0, b"no", false), Err(FileFault::BadExtent));
            assert_eq!(asker.sync(file), Err(FileFault::BadExtent));
            assert_eq!(asker.zero(file, 0, 1, false), Err(FileFault::BadExtent));
        }
        // Directories cannot be opened for writing, FIFOs cannot be written.
        let namespace =
            |asker: &mut DiskTester, path| asker.open_for(path, DiskAccess::NamespaceWrite);
        assert_eq!(namespace(asker, "sub"), Err(FileFault::BadPath));
        assert_eq!(namespace(asker, "out"), Err(FileFault::Denied));
        assert_eq!(namespace(asker, "none"), Err(FileFault::NotFound));
        let (fifo, stat) = namespace(asker, "fifo").unwrap();
        assert_eq!(stat.kind, FileKind::Other);
        assert_eq!(asker.write(fifo, 0, b"no", false), Err(FileFault::BadExtent));
        assert!(fs::read(dir.path().join("root/4096")).unwrap() == pattern(4096));
        assert_eq!(asker.counter("disk_bad_requests"), 7);
        assert_eq!(asker.counter("disk_write_errors"), 0);
    });
}

/// No write makes a file longer.
#[test]
fn ranges_of_writes_are_checked() {
    each(|dir, asker| {
        let file = asker.open_namespace("4096");
        let bad = Err(FileFault::BadExtent);
        for offset in [4095, 4096, 1 << 62, u64::MAX, u64::MAX - 1] {
            assert_eq!(asker.write(file, offset, b"xx", false), bad);
            assert_eq!(asker.zero(file, offset, 2, offset % 2 == 0), bad);
        }
        assert_eq!(asker.write(file, 0, b"", false), bad);
        assert_eq!(asker.zero(file, 0, 0, false), bad);
        let big = asker.open_namespace(BIG);
        assert_eq!(asker.write_from(big, 0, AlignedBuf::new(1), 4097, false), bad, "no such bytes");
        for stranger in [DiskFile(file.0 + (1 << 16)), DiskFile(u32::MAX)] {
            assert_eq!(asker.write(stranger, 0, b"xx", false), bad);
            assert_eq!(asker.sync(stranger), bad);
        }
        assert!(fs::read(dir.path().join("root/4096")).unwrap() == pattern(4096));
        assert_eq!(asker.counter("disk_bad_requests"), 2 * 5 + 2 + 1 + 4);
    });
}

#[test]
fn zeroes_are_zeros() {
    each(|dir, asker| {
        let file = asker.open_namespace(BIG);
        let path = dir.path().join("root").join(BIG);
        let mut expected = pattern((1 << 20) + 1);
        for (offset, len, deallocate) in
            [(0, 1, false), (5000, 300_001, false), (400_000, 500_000, true), (1 << 20, 1, true)]
        {
            asker.zero(file, offset as u64, len as u64, deallocate).unwrap();
            expected[offset..offset + len].fill(0);
            assert!(fs::read(&path).unwrap() == expected, "{offset} {len} {deallocate}");
        }
        asker.sync(file).unwrap();
        assert_eq!((asker.counter("disk_zeroes"), asker.counter("disk_write_errors")), (4, 0));
        // The whole file, so that all blocks are freed if the file system supports it.
        let whole = fs::metadata(&path).unwrap().blocks();
        asker.zero(file, 0, (1 << 20) + 1, true).unwrap();
        assert!(fs::metadata(&path).unwrap().blocks() < whole);
    });
}

#[test]
fn writes_and_reads_at_once() {
    each(|dir, asker| {
        let file = asker.open_namespace(BIG);
        let mut expected = pattern((1 << 20) + 1);
        for i in 0..IN_FLIGHT_MAX {
            let (id, at) = (asker.id(), i * PAGE_BYTES);
            let (offset, fill) = (at as u64, u8::try_from(i % 251).unwrap());
            let mut buf = AlignedBuf::new(1);
            buf.as_mut_slice().fill(fill);
            let request = match i % 4 {
                0 => DiskRequest::Read { id, file, offset, buf },
                1 => {
                    expected[at..at + 4096].fill(0);
                    DiskRequest::Zero { id, file, offset, len: 4096, deallocate: false }
                }
                2 => DiskRequest::Flush { id, file },
                _ => {
                    expected[at..at + 4096].fill(fill);
                    DiskRequest::Write { id, file, offset, buf, len: 4096, fua: i % 8 == 3 }
                }
            };
            asker.disk.submit(request).unwrap();
        }
        let id = asker.id();
        assert!(asker.disk.submit(DiskRequest::Flush { id, file }).is_err());
        // Closed while requests are in flight, which continue.
        asker.close(file);
        let mut ends = [0; 4];
        for _ in 0..IN_FLIGHT_MAX {
            ends[match asker.wait() {
                DiskCompletion::Read { result, .. } => result.map(|_| 0),
                DiskCompletion::Zeroed { result, .. } => result.map(|()| 1),
                DiskCompletion::Flushed { result, .. } => result.map(|()| 2),
                DiskCompletion::Written { result, .. } => result.map(|()| 3),
                other @ (DiskCompletion::Opened { .. } | DiskCompletion::Published { .. }) => {
                    panic!("{other:?}")
                }
            }
            .unwrap()] += 1;
        }
        assert_eq!(ends, [IN_FLIGHT_MAX / 4; 4]);
        assert!(fs::read(dir.path().join("root").join(BIG)).unwrap() == expected);
    });
}

/// A command that is run when a test ends, even by a panic.
struct CleanupCommand(&'static str, PathBuf);

impl Drop for CleanupCommand {
    fn drop(&mut self) {
        let done = Command::new(self.0).args(cleanup_args(self.0)).arg(&self.1).status();
        assert!(done.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// Returns the options of a cleanup command. A file system is removed when the kernel has closed
/// its last file, which it may do after the end of an `io_uring`.
fn cleanup_args(program: &str) -> &'static [&'static str] {
    match program {
        "losetup" => &["-d"],
        "umount" => &["--lazy"],
        _ => &[],
    }
}

/// Mounts a file system of 256 KiB that cannot zero ranges itself; returns why if that fails.
fn small_tmpfs(at: &Path) -> Result<CleanupCommand, String> {
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=256k", "none"]).arg(at);
    let done = mount.output().map_err(|error| error.to_string())?;
    if done.status.success() {
        Ok(CleanupCommand("umount", at.to_owned()))
    } else {
        Err(String::from_utf8_lossy(&done.stderr).into_owned())
    }
}

#[test]
fn a_full_disk_says_so() {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let undo = match small_tmpfs(dir.path()) {
            Ok(undo) => undo,
            Err(why) => return println!("skipped, no small file system is to be had: {why}"),
        };
        let path = dir.path().join("namespace");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let mut asker = DiskTester::at(dir.path(), kind);
        let file = asker.open_namespace("namespace");
        let chunk = vec![7; 64 * 1024];
        let end = (0..16).find(|i| asker.write(file, i * 65536, &chunk, false).is_err()).unwrap();
        assert!((2..=4).contains(&end), "{end}");
        assert_eq!(asker.write(file, end * 65536 + 65536, &chunk, true), Err(FileFault::NoSpace));
        // Zeroing by writes needs space.
        assert_eq!(asker.zero(file, 1 << 19, 1 << 19, false), Err(FileFault::NoSpace));
        asker.zero(file, 0, 65536, true).unwrap();
        asker.zero(file, 100, 65536 + 4096, false).unwrap();
        asker.write(file, 0, &chunk[..4096], true).unwrap();
        let now = fs::read(&path).unwrap();
        assert!(now[..4096] == chunk[..4096] && now[4096..69_732].iter().all(|&b| b == 0));
        assert!(now[69_732..2 * 65536].iter().all(|&b| b == 7), "the rest is there");
        let moved = ["disk_no_space", "disk_write_errors", "disk_zeroes_written", "disk_zeroes"];
        assert_eq!(moved.map(|name| asker.counter(name)), [3, 3, 1, 2]);
        drop(asker);
        drop(undo);
    }
}

/// Creates a block device on a file; returns why if that fails.
fn loop_device(file: &Path) -> Result<CleanupCommand, String> {
    let set_up = Command::new("losetup").args(["-f", "--show"]).arg(file).output();
    let done = set_up.map_err(|error| error.to_string())?;
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    let name = String::from_utf8(done.stdout).map_err(|error| error.to_string())?;
    Ok(CleanupCommand("losetup", PathBuf::from(name.trim())))
}

#[test]
fn a_block_device_is_a_namespace() {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("disk");
        fs::write(&below, pattern(1 << 20)).unwrap();
        let device = match loop_device(&below) {
            Ok(device) => device,
            Err(why) => return println!("skipped, no loop device is to be had: {why}"),
        };
        let mut asker = DiskTester::at(Path::new("/dev"), kind);
        let name = device.1.file_name().unwrap().to_str().unwrap();
        let (content, stat) = asker.open_for(name, DiskAccess::Content).unwrap();
        assert_eq!((stat.kind, stat.size), (FileKind::Block, 1 << 20));
        assert_eq!(asker.read(content, 0, 1), Err(FileFault::BadExtent), "not as content");
        let file = asker.open_namespace(name);
        assert!(asker.read(file, 0, 300).unwrap().0 == pattern(1 << 20));
        let mut expected = pattern(1 << 20);
        asker.write(file, 4096, &[9; 8192], true).unwrap();
        expected[4096..12_288].fill(9);
        asker.zero(file, 65_536, 131_072, false).unwrap();
        expected[65_536..196_608].fill(0);
        // Not aligned to a sector, so zeros are written.
        asker.zero(file, 300_001, ZERO_BYTES as u64 + 7, true).unwrap();
        expected[300_001..300_008 + ZERO_BYTES].fill(0);
        asker.sync(file).unwrap();
        assert!(fs::read(&below).unwrap() == expected);
        assert_eq!(asker.write(file, (1 << 20) - 1, b"xx", false), Err(FileFault::BadExtent));
        assert_eq!(asker.counter("disk_zeroes_written"), 1);
        drop(asker);
        drop(device);
    }
}

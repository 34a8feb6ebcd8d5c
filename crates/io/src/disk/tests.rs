//! Tests of reads, the same for all backends.
#![expect(unsafe_code, reason = "mkfifo and posix_fadvise")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::disk::{DiskAccess, DiskFile, DiskRequestId};
use abi::{FileKind, FileStat};
use tempfile::TempDir;

use super::*;
use crate::notify::Poller;
use crate::test_frames::nonzero;

pub(super) const KINDS: [DiskKind; 3] = [DiskKind::Uring, DiskKind::Threads, DiskKind::Sync];

/// Returns bytes that depend on their offset.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).to_be_bytes()[7])
        .collect()
}

/// Creates a root in a directory that also holds a secret.
pub(super) fn tree() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("sub")).unwrap();
    fs::write(dir.path().join("secret"), "secret").unwrap();
    for len in [0, 1, 4095, 4096, (1 << 20) + 1] {
        fs::write(root.join(len.to_string()), pattern(len)).unwrap();
    }
    fs::write(root.join("sub/file"), "below").unwrap();
    symlink("../secret", root.join("out")).unwrap();
    symlink(dir.path().join("secret"), root.join("absolute")).unwrap();
    symlink("sub/file", root.join("in")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    symlink("/proc/self/fd/0", root.join("magic")).unwrap();
    let fifo = CString::new(root.join("fifo").as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is NUL-terminated.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o644) }, 0);
    dir
}

/// Sends requests to a disk, one at a time.
pub(super) struct DiskTester {
    pub(super) disk: Box<dyn Disk>,
    next_id: u64,
}

pub(super) type OpenResult = Result<(DiskFile, FileStat), FileFault>;
pub(super) type ReadResult = Result<(Vec<u8>, FileStat), FileFault>;

impl DiskTester {
    pub(super) fn new(dir: &TempDir, kind: DiskKind) -> Self {
        Self::at(&dir.path().join("root"), kind)
    }

    pub(super) fn at(root: &Path, kind: DiskKind) -> Self {
        Self::with(open_disk(root, kind).unwrap())
    }

    pub(super) fn with(disk: Box<dyn Disk>) -> Self {
        Self { disk, next_id: 0 }
    }

    pub(super) fn id(&mut self) -> DiskRequestId {
        self.next_id += 1;
        DiskRequestId(self.next_id)
    }

    pub(super) fn wait(&mut self) -> DiskCompletion {
        self.disk.flush();
        loop {
            if let Some(completion) = self.disk.poll() {
                return completion;
            }
            let mut poller = Poller::new();
            poller.add(self.disk.pollable().expect("an answer is there, or there is a bell"));
            let ready = poller.wait(Some(base::Duration::from_secs(60))).unwrap();
            assert!(ready > 0, "no answer in a minute: the test would hang");
        }
    }

    pub(super) fn open(&mut self, path: impl AsRef<[u8]>) -> OpenResult {
        self.open_for(path, DiskAccess::Content)
    }

    pub(super) fn open_for(&mut self, path: impl AsRef<[u8]>, access: DiskAccess) -> OpenResult {
        let asked = self.id();
        self.disk
            .submit(DiskRequest::Open { id: asked, path: path.as_ref().into(), access })
            .unwrap();
        match self.wait() {
            DiskCompletion::Opened { id, result } if id == asked => result,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn read(&mut self, file: DiskFile, offset: u64, pages: usize) -> ReadResult {
        let (asked, buf) = (self.id(), AlignedBuf::new(pages));
        self.disk.submit(DiskRequest::Read { id: asked, file, offset, buf }).unwrap();
        match self.wait() {
            DiskCompletion::Read { id, buf, result } if id == asked => {
                result.map(|(len, stat)| (buf.as_slice()[..len as usize].to_vec(), stat))
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn close(&mut self, file: DiskFile) {
        self.disk.submit(DiskRequest::Close { file }).unwrap();
    }

    pub(super) fn counter(&self, name: &str) -> u64 {
        nonzero(|f| self.disk.visit(f)).iter().find(|c| c.0 == name).map_or(0, |c| c.1)
    }
}

pub(super) fn each(test: impl Fn(&TempDir, &mut DiskTester)) {
    for direct_io in [false, true] {
        for kind in KINDS {
            let dir = tree();
            let options = DiskOptions { kind, direct_io, ..DiskOptions::default() };
            let disk = open_disk_with(&dir.path().join("root"), options).unwrap();
            let mut asker = DiskTester::with(disk);
            println!("{}, direct I/O: {direct_io}", asker.disk.backend());
            test(&dir, &mut asker);
        }
    }
}

/// Pages of a file that are in the page cache.
fn cached_pages(path: &Path) -> usize {
    let file = File::open(path).unwrap();
    let len = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let mut pages = vec![0_u8; len.div_ceil(PAGE_BYTES)];
    // SAFETY: a new mapping of `len` bytes, which is not accessed; `pages` has a byte per page.
    unsafe {
        let fd = file.as_raw_fd();
        let at = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mincore(at, len, pages.as_mut_ptr()), 0);
        libc::munmap(at, len);
    }
    pages.iter().filter(|page| **page & 1 == 1).count()
}

/// Direct reads leave the page cache as it is, but for the sample, which is read from the cache.
#[test]
fn direct_reads_bypass_the_page_cache() {
    for kind in KINDS {
        let dir = tree();
        let root = dir.path().join("root");
        let path = root.join("1048577");
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        // SAFETY: an open descriptor and integers.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let options = DiskOptions { kind, direct_io: true, ..DiskOptions::default() };
        let mut asker = DiskTester::with(open_disk_with(&root, options).unwrap());
        let (name, _) = asker.open("1048577").unwrap();
        if asker.counter("disk_direct_refused") == 1 {
            println!("no direct I/O in {}", root.display());
            continue;
        }
        assert_eq!(asker.counter("disk_direct_opens"), 1);
        let whole = asker.read(name, 0, 300).unwrap().0;
        assert!(whole == fs::read(&path).unwrap()[..], "wrong bytes");
        // `fs::read` has filled the cache.
        // SAFETY: as above.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        asker.read(name, 8192, 100).unwrap();
        let cached = cached_pages(&path);
        assert!(cached <= 2, "{cached} pages are cached");
    }
}

#[test]
fn reads_files_of_every_size() {
    each(|_, asker| {
        for len in [0, 1, 4095, 4096, (1 << 20) + 1] {
            let (file, at_open) = asker.open(len.to_string()).unwrap();
            assert_eq!((at_open.kind, at_open.size), (FileKind::Regular, len as u64));
            let mut whole = Vec::new();
            loop {
                let (bytes, stat) = asker.read(file, whole.len() as u64, 16).unwrap();
                assert_eq!(stat, at_open);
                whole.extend_from_slice(&bytes);
                if bytes.len() < 16 * PAGE_BYTES {
                    break;
                }
            }
            assert!(whole == pattern(len), "{len} bytes");
            // Nothing is read past the end, and a long read ends with the file.
            assert_eq!(asker.read(file, 1 << 30, 1).unwrap().0, []);
            assert!(asker.read(file, 0, 512).unwrap().0 == pattern(len));
            asker.close(file);
        }
        assert_eq!(asker.counter("disk_opens"), 5);
        let bytes = 2 * (1 + 4095 + 4096 + (1 << 20) + 1);
        assert_eq!(asker.counter("disk_read_bytes"), bytes);
        for unmoved in ["disk_open_errors", "disk_read_errors", "disk_bad_requests", "disk_full"] {
            assert_eq!(asker.counter(unmoved), 0, "{unmoved}");
        }
    });
}

#[test]
fn no_path_leads_out() {
    each(|dir, asker| {
        let absolute = dir.path().join("secret");
        for path in ["../secret", "sub/../../secret", "out", "absolute", "..", "/", "magic"] {
            let fault = asker.open(path).unwrap_err();
            assert!(matches!(fault, FileFault::Denied | FileFault::BadPath), "{path}: {fault:?}");
        }
        assert_eq!(asker.open(absolute.to_str().unwrap()), Err(FileFault::Denied));
        let (file, _) = asker.open("in").unwrap();
        assert_eq!(asker.read(file, 0, 1).unwrap().0, b"below");
        let (file, _) = asker.open("sub/../sub/./file").unwrap();
        assert_eq!(asker.read(file, 0, 1).unwrap().0, b"below");
        assert_eq!(asker.counter("disk_open_errors"), 8);
    });
}

#[test]
fn bad_paths_are_told_apart() {
    each(|_, asker| {
        let long = "x".repeat(5000);
        let long_name = "x".repeat(300);
        for (path, fault) in [
            ("none", FileFault::NotFound),
            ("sub/none", FileFault::NotFound),
            ("none/file", FileFault::NotFound),
            ("1/file", FileFault::BadPath),
            ("1/", FileFault::BadPath),
            ("loop", FileFault::BadPath),
            ("a\0b", FileFault::BadPath),
            (&long, FileFault::BadPath),
            (&long_name, FileFault::BadPath),
        ] {
            assert_eq!(asker.open(path), Err(fault), "{path:?}");
        }
        assert_eq!(asker.counter("disk_open_errors"), 9);
    });
}

#[test]
fn only_regular_files_are_read() {
    each(|_, asker| {
        for (path, kind) in
            [("sub", FileKind::Directory), ("", FileKind::Directory), ("fifo", FileKind::Other)]
        {
            let (file, stat) = asker.open(path).unwrap();
            assert_eq!(stat.kind, kind);
            assert_eq!(asker.read(file, 0, 1), Err(FileFault::BadExtent));
        }
        assert_eq!(asker.counter("disk_bad_requests"), 3);
    });
}

#[test]
fn names_and_ranges_are_checked() {
    each(|_, asker| {
        let (file, _) = asker.open("4096").unwrap();
        for offset in [1, 4095, 1 << 63, u64::MAX - 4095] {
            assert_eq!(asker.read(file, offset, 1), Err(FileFault::BadExtent));
        }
        for stranger in [DiskFile(file.0 + 1), DiskFile(file.0 + (1 << 16)), DiskFile(u32::MAX)] {
            assert_eq!(asker.read(stranger, 0, 1), Err(FileFault::BadExtent));
            asker.close(stranger);
        }
        assert!(asker.read(file, 0, 1).is_ok());
        asker.close(file);
        asker.close(file);
        assert_eq!(asker.read(file, 0, 1), Err(FileFault::BadExtent));
        // The slot is reused under another name.
        let (again, _) = asker.open("4096").unwrap();
        assert_ne!(again, file);
        assert_eq!(asker.read(file, 0, 1), Err(FileFault::BadExtent));
        assert!(asker.read(again, 0, 1).is_ok());
        assert_eq!(asker.counter("disk_bad_requests"), 4 + 2 * 3 + 1 + 2);
    });
}

#[test]
fn a_change_shows_in_the_version() {
    each(|dir, asker| {
        let path = dir.path().join("root/4096");
        let (file, at_open) = asker.open("4096").unwrap();
        assert_eq!(asker.read(file, 0, 1).unwrap().1, at_open);

        fs::write(&path, [7; 4096]).unwrap();
        // With a coarse clock the write may get the time stamp of the file's creation.
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        let (bytes, rewritten) = asker.read(file, 0, 1).unwrap();
        assert_eq!(bytes, [7; 4096]);
        assert_ne!(rewritten.version, at_open.version);

        File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        let (bytes, truncated) = asker.read(file, 0, 1).unwrap();
        assert_eq!((bytes.len(), truncated.size), (100, 100));
        assert_ne!(truncated.version, rewritten.version);

        // Another file takes the name; the open one is unchanged.
        fs::write(dir.path().join("root/new"), pattern(100)).unwrap();
        fs::rename(dir.path().join("root/new"), &path).unwrap();
        let (_, replaced) = asker.open("4096").unwrap();
        assert_ne!(replaced.version, truncated.version);
        assert_eq!(asker.read(file, 0, 1).unwrap().0, [7; 100]);
    });
}

#[test]
fn many_at_once_and_no_more() {
    each(|_, asker| {
        let (file, _) = asker.open("1048577").unwrap();
        let expected = pattern((1 << 20) + 1);
        let mut asked = BTreeMap::new();
        let mut read = |asker: &mut DiskTester| {
            let (id, buf) = (asker.id(), AlignedBuf::new(4));
            let offset = id.0 % 64 * (4 * PAGE_BYTES as u64);
            asker.disk.submit(DiskRequest::Read { id, file, offset, buf })?;
            Ok::<_, DiskRequest>(asked.insert(id, usize::try_from(offset).unwrap()))
        };
        for _ in 0..IN_FLIGHT_MAX {
            read(asker).unwrap();
        }
        assert!(matches!(read(asker), Err(DiskRequest::Read { .. })));
        assert_eq!(asker.counter("disk_full"), 1);
        // Closed while reads are in flight, which continue.
        asker.close(file);
        for _ in 0..IN_FLIGHT_MAX {
            let DiskCompletion::Read { id, buf, result } = asker.wait() else { panic!() };
            let from = asked.remove(&id).unwrap();
            assert_eq!(result.unwrap().0 as usize, buf.len());
            assert!(buf.as_slice() == &expected[from..from + buf.len()]);
        }
        assert!(asked.is_empty() && asker.disk.poll().is_none());
        assert_eq!(asker.counter("disk_reads"), IN_FLIGHT_MAX as u64);
        assert!(asker.open("1").is_ok(), "there is room again");
    });
}

#[test]
fn the_descriptor_is_not_readable_when_idle() {
    for kind in [DiskKind::Uring, DiskKind::Threads] {
        let dir = tree();
        let mut asker = DiskTester::new(&dir, kind);
        for _ in 0..100 {
            let (file, _) = asker.open("4096").unwrap();
            asker.read(file, 0, 1).unwrap();
            asker.close(file);
            assert!(asker.disk.poll().is_none());
            let mut poller = Poller::new();
            poller.add(asker.disk.pollable().unwrap());
            assert_eq!(poller.wait(Some(base::Duration::ZERO)).unwrap(), 0);
        }
    }
}

#[test]
fn dropping_with_work_under_way_is_sound() {
    for kind in KINDS {
        for flushed in [true, false] {
            let dir = tree();
            let mut asker = DiskTester::new(&dir, kind);
            let path = dir.path().join("root/1048577");
            let (file, _) = asker.open("1048577").unwrap();
            let on_disk = File::open(&path).unwrap();
            on_disk.sync_all().unwrap();
            // Empties the page cache of the file, so that the disk is read. SAFETY: no pointers;
            // the descriptor is open.
            unsafe {
                libc::posix_fadvise(on_disk.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
            }
            for i in 0..64 {
                let (id, buf) = (asker.id(), AlignedBuf::new(4));
                let offset = (63 - i) * 4 * PAGE_BYTES as u64;
                asker.disk.submit(DiskRequest::Read { id, file, offset, buf }).unwrap();
                let (id, path) = (asker.id(), b"sub/file"[..].into());
                let access = DiskAccess::Content;
                asker.disk.submit(DiskRequest::Open { id, path, access }).unwrap();
            }
            if flushed {
                asker.disk.flush();
            }
        }
    }
}

#[test]
fn setting_up_says_what_is_wrong() {
    let dir = tree();
    let set_up = |name: &str| open_disk(&dir.path().join(name), DiskKind::Auto);
    assert!(set_up("root").is_ok());
    for name in ["none", "root/1", "root/fifo"] {
        let error = set_up(name).err().unwrap();
        assert!(matches!(error, DiskSetupError::Root { .. }), "{error:?}");
        assert!(error.to_string().contains(name) && !error.to_string().contains('\n'));
    }
}

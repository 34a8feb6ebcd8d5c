//! Requirements of the target on a disk, checked on the host's disk and on the fake one.

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::{FileExtent, FileId};
use host::{DiskToken, DiskUser, Host};
use nic::DeviceConfig;
use testkit::{MemDisk, NoticeRecorder, PLAIN_LINK, TestMachine};

use super::rig::{BLOCK, FILE_BYTES, FakeDisk};
use super::*;
use crate::nvme::target::backend::{DiskChangeDone, TargetDisk};

/// A disk with a file `a` of [`FILE_BYTES`] bytes.
trait DiskUnderTest {
    type Disk: TargetDisk;

    fn new() -> Self;
    fn disk(&mut self) -> &mut Self::Disk;
    /// Executes all operations of the disk.
    fn settle(&mut self);
}

struct OnHost(TestMachine<MemDisk>);

impl DiskUnderTest for OnHost {
    type Disk = Host;

    fn new() -> Self {
        let mut disk = MemDisk::default();
        disk.insert("a", vec![1; FILE_BYTES], 1);
        let (config, device) = (host::HostConfig::default(), DeviceConfig::new([2, 0, 0, 0, 0, 1]));
        Self(TestMachine::new(config, device, PLAIN_LINK, 1, disk))
    }

    fn disk(&mut self) -> &mut Host {
        self.0.host()
    }

    fn settle(&mut self) {
        self.0.settle(Instant::ZERO, &mut NoticeRecorder::default());
    }
}

struct OnFake(FakeDisk);

impl DiskUnderTest for OnFake {
    type Disk = FakeDisk;

    fn new() -> Self {
        Self(FakeDisk::default())
    }

    fn disk(&mut self) -> &mut FakeDisk {
        &mut self.0
    }

    fn settle(&mut self) {
        self.0.opens = true;
        while self.0.step() {}
    }
}

/// A disk with its file open.
struct OpenTestDisk<S> {
    subject: S,
    user: DiskUser,
    file: FileId,
}

impl<S: DiskUnderTest> OpenTestDisk<S> {
    fn new(mut subject: S) -> Self {
        let user = subject.disk().new_user();
        let file = subject.disk().open("a", false).expect("there is room");
        subject.settle();
        Self { subject, user, file }
    }

    const fn token(&self, number: u64) -> DiskToken {
        DiskToken { user: self.user, number }
    }

    const fn extent(&self, offset: u64, len: u32) -> FileExtent {
        FileExtent { file: self.file, offset, len }
    }

    fn disk(&mut self) -> &mut S::Disk {
        self.subject.disk()
    }

    /// Starts to write a block of sevens.
    fn write(&mut self, number: u64, offset: u64) {
        let mut buffer = AlignedBuf::new(1);
        buffer.as_mut_slice().fill(7);
        let (token, at) = (self.token(number), (self.file, offset));
        self.disk().write(token, at, buffer, BLOCK_LEN, false);
    }

    /// Executes the only pending change and returns its end.
    fn changed(&mut self) -> DiskChangeDone {
        let user = self.user;
        self.subject.settle();
        let changed = self.disk().poll_changed(user).expect("it has ended");
        assert!(self.disk().poll_changed(user).is_none());
        changed
    }

    /// Reads a block and returns its bytes, perhaps not all.
    fn read(&mut self, offset: u64) -> Vec<u8> {
        let (user, token, extent) = (self.user, self.token(9), self.extent(offset, BLOCK_LEN));
        assert!(self.disk().read(token, extent));
        self.subject.settle();
        let (number, bytes) = self.disk().poll_read(user).expect("it has ended");
        self.disk().release(extent);
        assert_eq!(number, 9);
        bytes.expect("it is well").to_vec()
    }
}

/// Defines a test of each requirement for both disks.
macro_rules! rules {
    ($($rule:ident)*) => {
        mod of_the_host {
            $(#[test] fn $rule() { super::$rule(<super::OnHost as super::DiskUnderTest>::new()); })*
        }
        mod of_the_fake {
            $(#[test] fn $rule() { super::$rule(<super::OnFake as super::DiskUnderTest>::new()); })*
        }
    };
}

rules! {
    a_file_is_known_when_it_was_opened
    nothing_ends_before_the_disk_has_done_it
    written_bytes_are_read
    zeroed_bytes_are_read
    a_flush_ends_without_a_buffer
    what_the_file_does_not_have_is_an_error
    all_operations_end
}

fn a_file_is_known_when_it_was_opened(mut subject: impl DiskUnderTest) {
    let file = subject.disk().open("a", true).expect("there is room");
    assert_eq!(subject.disk().stat(file), None);
    subject.settle();
    let stat = subject.disk().stat(file).expect("it was opened").expect("it is there");
    assert_eq!(stat.size, FILE_BYTES as u64);
}

fn nothing_ends_before_the_disk_has_done_it(subject: impl DiskUnderTest) {
    let mut opened = OpenTestDisk::new(subject);
    let (user, token, extent) = (opened.user, opened.token(4), opened.extent(0, BLOCK_LEN));
    assert!(opened.disk().read(token, extent));
    opened.write(5, BLOCK);
    assert!(opened.disk().poll_read(user).is_none() && opened.disk().poll_changed(user).is_none());
    opened.subject.settle();
    assert!(opened.disk().poll_read(user).is_some() && opened.disk().poll_changed(user).is_some());
    opened.disk().release(extent);
}

fn written_bytes_are_read(subject: impl DiskUnderTest) {
    let mut opened = OpenTestDisk::new(subject);
    assert_ne!(opened.read(3 * BLOCK)[1], 7);
    opened.write(5, 3 * BLOCK);
    let (number, buffer, result) = opened.changed();
    assert_eq!((number, buffer.map(|b| b.len()), result), (5, Some(PAGE_BYTES), Ok(())));
    let read = opened.read(3 * BLOCK);
    assert!(!read.is_empty() && read.iter().all(|byte| *byte == 7));
    assert_ne!(opened.read(4 * BLOCK)[1], 7);
}

fn zeroed_bytes_are_read(subject: impl DiskUnderTest) {
    let mut opened = OpenTestDisk::new(subject);
    let (token, at) = (opened.token(5), (opened.file, 2 * BLOCK));
    opened.disk().zero(token, at, BLOCK, true);
    let (number, buffer, result) = opened.changed();
    assert_eq!((number, buffer.is_none(), result), (5, true, Ok(())));
    let read = opened.read(2 * BLOCK);
    assert!(!read.is_empty() && read.iter().all(|byte| *byte == 0));
    assert_ne!(opened.read(3 * BLOCK)[1], 0);
}

fn a_flush_ends_without_a_buffer(subject: impl DiskUnderTest) {
    let mut opened = OpenTestDisk::new(subject);
    let (token, file) = (opened.token(5), opened.file);
    opened.disk().flush(token, file);
    let (number, buffer, result) = opened.changed();
    assert_eq!((number, buffer.is_none(), result), (5, true, Ok(())));
}

fn what_the_file_does_not_have_is_an_error(subject: impl DiskUnderTest) {
    let mut opened = OpenTestDisk::new(subject);
    let last = FILE_BYTES as u64 / BLOCK * BLOCK;
    let (token, behind) = (opened.token(4), opened.extent(last, BLOCK_LEN));
    assert!(!opened.disk().read(token, behind));
    opened.write(5, last);
    let (number, buffer, result) = opened.changed();
    assert_eq!((number, buffer.is_some(), result), (5, true, Err(FileFault::BadExtent)));
    let (token, at) = (opened.token(6), (opened.file, last));
    opened.disk().zero(token, at, BLOCK, false);
    let (number, buffer, result) = opened.changed();
    assert_eq!((number, buffer.is_none(), result), (6, true, Err(FileFault::BadExtent)));
}

/// The order is unspecified: tokens identify the operations.
fn all_operations_end(subject: impl DiskUnderTest) {
    let mut opened = OpenTestDisk::new(subject);
    for number in 0..8 {
        opened.write(number, number * BLOCK);
    }
    opened.subject.settle();
    let user = opened.user;
    let ended = core::iter::from_fn(|| opened.disk().poll_changed(user));
    let mut numbers: Vec<u64> = ended.map(|(number, ..)| number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7]);
}

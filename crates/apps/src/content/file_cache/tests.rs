//! The cache, without sockets.

use super::super::open_file::stat;
use super::*;

const VALIDITY: Duration = Duration::from_secs(1);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn waiter(index: u32) -> OpenWaiter {
    OpenWaiter::Connection { index, serial: 0 }
}

fn cache(capacity: usize) -> FileCache {
    FileCache::new(capacity, VALIDITY, (1, 2))
}

fn closed(files: &mut FileCache) -> Vec<u32> {
    let mut ids: Vec<_> = core::iter::from_fn(|| files.poll_close()).map(|f| f.0).collect();
    ids.sort_unstable();
    ids
}

/// Opens a path, with success.
fn open(files: &mut FileCache, now: Instant, path: &str, file: u32, version: u64) {
    assert!(matches!(files.lookup(now, path.as_bytes()), FileLookup::Unknown), "{path}");
    files.begin(path.as_bytes(), FileId(file), waiter(0), false);
    let opened = files.handle_opened(now, 0, FileId(file), Ok(stat(1, version)));
    assert_eq!(opened, FileOpenOutcome::Resume(vec![waiter(0)], Ok(())));
}

fn ready(files: &mut FileCache, now: Instant, path: &str) -> Option<u32> {
    match files.lookup(now, path.as_bytes()) {
        FileLookup::Ready(CachedResource::File(open)) => Some(open.file.0),
        _ => None,
    }
}

#[test]
fn waiters_share_one_open() {
    let mut files = cache(4);
    files.begin(b"a", FileId(1), waiter(1), false);
    assert!(matches!(files.lookup(at(0), b"a"), FileLookup::Opening));
    files.join(b"a", waiter(2), false);
    let opened = files.handle_opened(at(5), 0, FileId(1), Ok(stat(1, 1)));
    assert_eq!(opened, FileOpenOutcome::Resume(vec![waiter(1), waiter(2)], Ok(())));
    assert_eq!(ready(&mut files, at(5), "a"), Some(1));
    assert_eq!(files.handle_opened(at(5), 0, FileId(1), Ok(stat(1, 1))), FileOpenOutcome::Unknown);
    assert!(closed(&mut files).is_empty());
}

#[test]
fn entries_are_valid_for_the_validity_time() {
    let mut files = cache(4);
    open(&mut files, at(0), "a", 1, 7);
    assert_eq!(ready(&mut files, at(1000), "a"), Some(1));
    // Unchanged: the old handle stays and the new one is closed.
    open(&mut files, at(1001), "a", 2, 7);
    assert_eq!(closed(&mut files), [2]);
    assert_eq!(ready(&mut files, at(2001), "a"), Some(1));
    // Changed: the new handle stays and the old one is closed.
    open(&mut files, at(2002), "a", 3, 8);
    assert_eq!(closed(&mut files), [1]);
    assert_eq!(ready(&mut files, at(2002), "a"), Some(3));
    assert_eq!(files.len(), 1);
}

#[test]
fn failures_are_not_remembered() {
    let mut files = cache(4);
    open(&mut files, at(0), "a", 1, 7);
    files.begin(b"a", FileId(2), waiter(5), false);
    let opened = files.handle_opened(at(2000), 0, FileId(2), Err(FileFault::NotFound));
    assert_eq!(opened, FileOpenOutcome::Resume(vec![waiter(5)], Err(FileFault::NotFound)));
    assert!(matches!(files.lookup(at(2000), b"a"), FileLookup::Unknown));
    assert_eq!(closed(&mut files), [1, 2]);
    assert_eq!(files.len(), 0);
}

#[test]
fn directories_hold_no_handle() {
    let mut files = cache(4);
    files.begin(b"d", FileId(1), waiter(0), false);
    let mut directory = stat(0, 0);
    directory.kind = FileKind::Directory;
    files.handle_opened(at(0), 0, FileId(1), Ok(directory));
    assert!(matches!(files.lookup(at(0), b"d"), FileLookup::Ready(CachedResource::Directory)));
    assert_eq!(closed(&mut files), [1]);
    files.begin(b"fifo", FileId(2), waiter(0), false);
    directory.kind = FileKind::Other;
    let opened = files.handle_opened(at(0), 0, FileId(2), Ok(directory));
    assert_eq!(opened, FileOpenOutcome::Resume(vec![waiter(0)], Err(FileFault::Denied)));
    assert_eq!(closed(&mut files), [2]);
}

#[test]
fn unused_entries_are_evicted_first() {
    let mut files = cache(3);
    for (file, path) in (1..).zip(["a", "b", "c"]) {
        open(&mut files, at(0), path, file, 1);
    }
    // All are used: the first round clears the flags, and "a" is evicted.
    open(&mut files, at(0), "d", 4, 1);
    assert_eq!((closed(&mut files), files.len()), (vec![1], 3));
    // "b" is used and gets a second chance; "c" is evicted.
    assert!(ready(&mut files, at(0), "b").is_some());
    open(&mut files, at(0), "e", 5, 1);
    assert_eq!(closed(&mut files), [3]);
    assert!(ready(&mut files, at(0), "b").is_some());
    for file in 6..1000 {
        open(&mut files, at(0), &format!("f{file}"), file, 1);
        assert!(files.len() <= 3 && files.entries.len() <= 4);
        assert_eq!(closed(&mut files).len(), 1);
    }
}

#[test]
fn full_device_is_tried_once_more() {
    let full = || Err(FileFault::Refused(Refusal::TableFull));
    let mut files = cache(64);
    for file in 0..20 {
        open(&mut files, at(0), &format!("f{file}"), file, 1);
    }
    files.begin(b"a", FileId(100), waiter(1), false);
    assert_eq!(
        files.handle_opened(at(0), 0, FileId(100), full()),
        FileOpenOutcome::Reopen(b"a"[..].into())
    );
    // The refused handle, and eight evicted ones.
    assert_eq!(closed(&mut files).len(), 9);
    files.begin_reopen(b"a", FileId(101));
    assert!(matches!(files.lookup(at(0), b"a"), FileLookup::Opening));
    let opened = files.handle_opened(at(0), 0, FileId(101), full());
    assert_eq!(
        opened,
        FileOpenOutcome::Resume(vec![waiter(1)], Err(FileFault::Refused(Refusal::TableFull)))
    );
    assert_eq!(files.len(), 12);
}

#[test]
fn a_failed_transfer_is_not_repeated() {
    let mut files = cache(4);
    open(&mut files, at(0), "a", 1, 7);
    files.invalidate(FileId(9));
    assert_eq!(ready(&mut files, at(0), "a"), Some(1));
    files.invalidate(FileId(1));
    assert!(matches!(files.lookup(at(0), b"a"), FileLookup::Unknown));
    assert_eq!(closed(&mut files), [1]);
    // While the path is opened again, its waiters stay.
    open(&mut files, at(0), "a", 2, 7);
    files.begin(b"a", FileId(3), waiter(4), false);
    files.invalidate(FileId(2));
    assert!(matches!(files.lookup(at(0), b"a"), FileLookup::Opening));
    let opened = files.handle_opened(at(0), 0, FileId(3), Ok(stat(1, 8)));
    assert_eq!(opened, FileOpenOutcome::Resume(vec![waiter(4)], Ok(())));
    assert_eq!(ready(&mut files, at(0), "a"), Some(3));
}

#[test]
fn sweep_closes_unused_files() {
    let mut files = cache(4);
    assert_eq!(files.poll_timeout(), Instant::FAR_FUTURE);
    open(&mut files, at(0), "a", 1, 7);
    open(&mut files, at(0), "b", 2, 7);
    assert_eq!(files.poll_timeout(), at(30_000));
    files.handle_timeout(at(29_999));
    assert_eq!(files.len(), 2);
    files.handle_timeout(at(30_000));
    assert_eq!(files.len(), 2);
    open(&mut files, at(30_000), "b", 3, 7);
    files.handle_timeout(at(60_000));
    assert_eq!((closed(&mut files), files.len()), (vec![1, 3], 1));
    files.handle_timeout(at(90_000));
    assert_eq!((closed(&mut files), files.len()), (vec![2], 0));
    assert_eq!(files.poll_timeout(), Instant::FAR_FUTURE);
}

#[test]
fn an_expired_path_is_opened_again() {
    let mut files = cache(4);
    open(&mut files, at(0), "a", 1, 7);
    open(&mut files, at(0), "b", 2, 7);
    files.expire(b"none");
    files.expire(b"a");
    assert!(matches!(files.lookup(at(0), b"a"), FileLookup::Unknown));
    assert_eq!(ready(&mut files, at(0), "b"), Some(2));
    // Unchanged: the old handle stays.
    open(&mut files, at(0), "a", 3, 7);
    assert_eq!((closed(&mut files), ready(&mut files, at(0), "a")), (vec![3], Some(1)));
    files.expire_all();
    assert!(matches!(files.lookup(at(0), b"b"), FileLookup::Unknown));
    open(&mut files, at(0), "b", 4, 8);
    assert_eq!((closed(&mut files), ready(&mut files, at(0), "b")), (vec![2], Some(4)));
}

#[test]
fn after_all_files_were_dropped_handles_are_new() {
    let mut files = cache(4);
    open(&mut files, at(0), "a", 1, 7);
    files.begin(b"b", FileId(2), waiter(1), false);
    files.drop_all();
    assert_eq!((closed(&mut files), files.len()), (vec![1], 0));
    // Unchanged, but the old handle is gone.
    open(&mut files, at(0), "a", 3, 7);
    assert_eq!((closed(&mut files), ready(&mut files, at(0), "a")), (vec![], Some(3)));
    // The open that had begun before is repeated.
    let again = files.handle_opened(at(0), 0, FileId(2), Ok(stat(1, 7)));
    assert_eq!(again, FileOpenOutcome::Reopen(b"b"[..].into()));
}

#[test]
fn open_that_expired_meanwhile_is_repeated_once() {
    let mut files = cache(4);
    files.begin(b"a", FileId(1), waiter(1), false);
    files.expire(b"a");
    files.join(b"a", waiter(2), false);
    let again = files.handle_opened(at(0), 0, FileId(1), Ok(stat(1, 7)));
    assert_eq!(again, FileOpenOutcome::Reopen(b"a"[..].into()));
    assert_eq!(closed(&mut files), [1]);
    files.begin_reopen(b"a", FileId(2));
    // A file that changes during its second open too is served all the same.
    files.expire_all();
    let opened = files.handle_opened(at(0), 0, FileId(2), Ok(stat(1, 8)));
    assert_eq!(opened, FileOpenOutcome::Resume(vec![waiter(1), waiter(2)], Ok(())));
    assert_eq!(ready(&mut files, at(0), "a"), Some(2));
    // Only to the waiters: later requests open the path again.
    assert!(matches!(files.lookup(at(1), b"a"), FileLookup::Unknown));
    // A second open without a change meanwhile is cached like any other.
    files.begin(b"a", FileId(3), waiter(1), false);
    files.expire(b"a");
    assert_eq!(
        files.handle_opened(at(1), 0, FileId(3), Ok(stat(1, 9))),
        FileOpenOutcome::Reopen(b"a"[..].into())
    );
    files.begin_reopen(b"a", FileId(4));
    files.handle_opened(at(1), 0, FileId(4), Ok(stat(1, 9)));
    assert_eq!(ready(&mut files, at(1001), "a"), Some(4));
}

/// The request has waited for the storage already, and must not wait as long again.
#[test]
fn an_open_that_is_unavailable_is_not_repeated() {
    let mut files = cache(4);
    files.begin(b"a", FileId(1), waiter(1), false);
    files.expire_all();
    let opened = files.handle_opened(at(0), 0, FileId(1), Err(FileFault::Unavailable));
    let failed = FileOpenOutcome::Resume(vec![waiter(1)], Err(FileFault::Unavailable));
    assert_eq!(opened, failed);
}

#[test]
fn an_optional_file_that_is_absent_is_remembered() {
    let mut files = cache(4);
    // A request that needs the file and waits for the same open gets the same result.
    files.begin(b"a.br", FileId(1), waiter(1), false);
    files.join(b"a.br", waiter(2), true);
    let opened = files.handle_opened(at(0), 0, FileId(1), Err(FileFault::NotFound));
    assert_eq!(opened, FileOpenOutcome::Resume(vec![waiter(1), waiter(2)], Ok(())));
    let absent = |files: &mut FileCache, now| match files.lookup(now, b"a.br") {
        FileLookup::Ready(CachedResource::Absent(fault)) => Some(*fault),
        _ => None,
    };
    assert_eq!(absent(&mut files, at(1000)), Some(FileFault::NotFound));
    assert_eq!(closed(&mut files), [1]);
    // Absence is valid for the same time, and is replaced by a file.
    assert_eq!(absent(&mut files, at(1001)), None);
    open(&mut files, at(1001), "a.br", 2, 7);
    assert_eq!(ready(&mut files, at(1001), "a.br"), Some(2));
    files.begin(b"a.br", FileId(3), waiter(1), true);
    files.handle_opened(at(3000), 0, FileId(3), Err(FileFault::Denied));
    assert_eq!(
        (absent(&mut files, at(3000)), closed(&mut files)),
        (Some(FileFault::Denied), vec![2, 3])
    );
    // A refused open is cached as absence too: requests for which the file is optional get the
    // plain one, not a 503. A request for the file itself gets the refusal.
    files.begin(b"b.br", FileId(4), waiter(1), true);
    let full = FileFault::Refused(Refusal::Overloaded);
    let opened = files.handle_opened(at(3000), 0, FileId(4), Err(full));
    assert_eq!(opened, FileOpenOutcome::Resume(vec![waiter(1)], Ok(())));
    assert!(matches!(
        files.lookup(at(4000), b"b.br"),
        FileLookup::Ready(CachedResource::Absent(fault)) if *fault == full
    ));
    assert!(matches!(files.lookup(at(4001), b"b.br"), FileLookup::Unknown));
    // Absent entries count towards the capacity.
    for number in 10..100 {
        let path = format!("{number}.br");
        files.begin(path.as_bytes(), FileId(number), waiter(1), true);
        files.handle_opened(at(3000), 0, FileId(number), Err(FileFault::NotFound));
        assert!(files.len() <= 4);
    }
}

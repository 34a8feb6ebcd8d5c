//! A disk with a pool of threads that make blocking calls, for kernels and sandboxes that refuse
//! io_uring.
//!
//! The requester's side owns the table of files; a thread gets a shared handle with each job. Two
//! queues under two locks connect them, each lock taken once per batch by the requester, and an
//! eventfd is signaled when the queue of answers is no longer empty.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use abi::aligned::AlignedBuf;
use abi::disk::{DiskAccess, DiskCompletion, DiskRequest, DiskRequestId};
use abi::{FileFault, FileStat};

use super::root::{DiskRoot, OpenFile, c_path, read_whole};
use super::table::{FileTable, bytes_to_write};
use super::write::{flush, write_whole, zero};
use super::{Disk, DiskCounters, DiskSetupError, IN_FLIGHT_MAX};
use crate::notify::Notifier;

/// Threads in the pool: enough to keep a queue at the disk, few enough to start at once.
const THREADS: usize = 8;

enum DiskJob {
    Open {
        id: DiskRequestId,
        path: CString,
        access: DiskAccess,
    },
    Read {
        id: DiskRequestId,
        file: Arc<OpenFile>,
        offset: u64,
        buf: AlignedBuf,
    },
    Write {
        id: DiskRequestId,
        file: Arc<OpenFile>,
        offset: u64,
        buf: AlignedBuf,
        len: u32,
        fua: bool,
    },
    Flush {
        id: DiskRequestId,
        file: Arc<OpenFile>,
    },
    Publish {
        id: DiskRequestId,
        file: Arc<OpenFile>,
        replace: bool,
    },
    Zero {
        id: DiskRequestId,
        file: Arc<OpenFile>,
        offset: u64,
        len: u64,
        deallocate: bool,
    },
}

type OpenOutcome = Result<(OpenFile, FileStat), FileFault>;
/// Bytes read, metadata, and whether it took more than one call.
type ReadOutcome = Result<(u32, FileStat, bool), FileFault>;

enum DiskJobResult {
    Open {
        id: DiskRequestId,
        result: OpenOutcome,
    },
    Read {
        id: DiskRequestId,
        buf: AlignedBuf,
        result: ReadOutcome,
    },
    /// Bytes written, and whether it took more than one call.
    Write {
        id: DiskRequestId,
        buf: AlignedBuf,
        result: Result<(u32, bool), FileFault>,
    },
    Flush {
        id: DiskRequestId,
        result: Result<(), FileFault>,
    },
    Publish {
        id: DiskRequestId,
        result: Result<Option<u64>, FileFault>,
    },
    /// Result of writing zeros: false if the file system cannot.
    Zero {
        id: DiskRequestId,
        result: Result<bool, FileFault>,
    },
}

#[derive(Default)]
struct DiskJobQueue {
    queue: VecDeque<DiskJob>,
    stop: bool,
}

struct DiskPoolShared {
    root: DiskRoot,
    jobs: Mutex<DiskJobQueue>,
    work: Condvar,
    done: Mutex<VecDeque<DiskJobResult>>,
    /// True if `done` may hold answers: a check that needs no lock. Written under the lock.
    any_done: AtomicBool,
    done_notifier: Notifier,
}

/// A disk with a thread pool.
pub(super) struct ThreadsDisk {
    shared: Arc<DiskPoolShared>,
    threads: Vec<JoinHandle<()>>,
    files: FileTable,
    /// Submitted, not yet flushed.
    staged: VecDeque<DiskJob>,
    /// Taken from the threads, not yet polled.
    taken: VecDeque<DiskJobResult>,
    in_flight: usize,
    backend: String,
    counters: DiskCounters,
}

/// Locks even if a thread panicked: every change of the queues is one call, so none is half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadsDisk {
    /// Starts the pool. `backend` is the name that [`Disk::backend`] returns.
    pub(super) fn new(root: DiskRoot, backend: String) -> Result<Self, DiskSetupError> {
        let no_threads = |source: io::Error| DiskSetupError::NoThreads { source };
        let shared = Arc::new(DiskPoolShared {
            root,
            jobs: Mutex::default(),
            work: Condvar::new(),
            done: Mutex::default(),
            any_done: AtomicBool::new(false),
            done_notifier: Notifier::new().map_err(no_threads)?,
        });
        let mut disk = Self {
            shared,
            threads: Vec::new(),
            files: FileTable::default(),
            staged: VecDeque::new(),
            taken: VecDeque::new(),
            in_flight: 0,
            backend,
            counters: DiskCounters::default(),
        };
        for _ in 0..THREADS {
            let shared = Arc::clone(&disk.shared);
            let thread = std::thread::Builder::new().name("disk".into()).spawn(move || {
                while let Some(job) = shared.next_job() {
                    shared.finish(shared.execute(job));
                }
            });
            // On failure, dropping `disk` ends the threads that are running.
            disk.threads.push(thread.map_err(no_threads)?);
        }
        Ok(disk)
    }

    /// Returns the job for a request, `None` for a close; or the answer, if the request is invalid.
    fn stage(&self, request: DiskRequest) -> Result<Option<DiskJob>, DiskJobResult> {
        let job = match request {
            DiskRequest::Open { id, path, access } => match c_path(&path) {
                Ok(path) => DiskJob::Open { id, path, access },
                Err(fault) => return Err(DiskJobResult::Open { id, result: Err(fault) }),
            },
            DiskRequest::Read { id, file, offset, buf } => {
                match self.files.for_read(file, offset, &buf) {
                    Ok(file) => DiskJob::Read { id, file, offset, buf },
                    Err(fault) => return Err(DiskJobResult::Read { id, buf, result: Err(fault) }),
                }
            }
            DiskRequest::Write { id, file, offset, buf, len, fua } => {
                match self.files.for_write(file, offset, u64::from(len)) {
                    Ok(file) => DiskJob::Write { id, file, offset, buf, len, fua },
                    Err(fault) => return Err(DiskJobResult::Write { id, buf, result: Err(fault) }),
                }
            }
            DiskRequest::Flush { id, file } => match self.files.for_flush(file) {
                Ok(file) => DiskJob::Flush { id, file },
                Err(fault) => return Err(DiskJobResult::Flush { id, result: Err(fault) }),
            },
            DiskRequest::Publish { id, file, replace } => match self.files.for_publish(file) {
                Ok(file) => DiskJob::Publish { id, file, replace },
                Err(fault) => return Err(DiskJobResult::Publish { id, result: Err(fault) }),
            },
            DiskRequest::Zero { id, file, offset, len, deallocate } => {
                match self.files.for_write(file, offset, len) {
                    Ok(file) => DiskJob::Zero { id, file, offset, len, deallocate },
                    Err(fault) => return Err(DiskJobResult::Zero { id, result: Err(fault) }),
                }
            }
            DiskRequest::Close { .. } => return Ok(None),
        };
        Ok(Some(job))
    }

    /// Converts the result of a job to the answer to its request.
    fn answer(&mut self, done: DiskJobResult) -> DiskCompletion {
        match done {
            DiskJobResult::Open { id, result } => {
                let result = result.and_then(|(file, stat)| {
                    self.counters.count_opened(&file);
                    Ok((self.files.insert(file)?, stat))
                });
                DiskCompletion::Opened { id, result }
            }
            DiskJobResult::Read { id, buf, result } => {
                let result = result.map(|(bytes, stat, continued)| {
                    self.counters.disk_reads_continued += u64::from(continued);
                    (bytes, stat)
                });
                DiskCompletion::Read { id, buf, result }
            }
            DiskJobResult::Write { id, buf, result } => {
                let result = result.map(|(bytes, continued)| {
                    self.counters.disk_writes_continued += u64::from(continued);
                    self.counters.disk_write_bytes += u64::from(bytes);
                });
                DiskCompletion::Written { id, buf, result }
            }
            DiskJobResult::Flush { id, result } => DiskCompletion::Flushed { id, result },
            DiskJobResult::Publish { id, result } => DiskCompletion::Published { id, result },
            DiskJobResult::Zero { id, result } => {
                let result = result.map(|by_hand| {
                    self.counters.disk_zeroes_written += u64::from(by_hand);
                });
                DiskCompletion::Zeroed { id, result }
            }
        }
    }

    /// Takes all finished answers from the threads.
    fn take_done(&mut self) {
        if !self.shared.any_done.load(Ordering::Acquire) {
            return;
        }
        let mut done = lock(&self.shared.done);
        std::mem::swap(&mut *done, &mut self.taken);
        self.shared.any_done.store(false, Ordering::Relaxed);
        // Under the lock, so that the eventfd is signaled if and only if the queue holds answers.
        self.shared.done_notifier.drain();
    }
}

impl DiskPoolShared {
    fn next_job(&self) -> Option<DiskJob> {
        let mut jobs = lock(&self.jobs);
        loop {
            if jobs.stop {
                return None;
            }
            if let Some(job) = jobs.queue.pop_front() {
                return Some(job);
            }
            jobs = self.work.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn execute(&self, job: DiskJob) -> DiskJobResult {
        match job {
            DiskJob::Open { id, path, access } => {
                DiskJobResult::Open { id, result: self.root.open_beneath(&path, access) }
            }
            DiskJob::Read { id, file, offset, mut buf } => {
                let result = read_whole(&file, &mut buf, offset);
                DiskJobResult::Read { id, buf, result }
            }
            DiskJob::Write { id, file, offset, buf, len, fua } => {
                let bytes = bytes_to_write(&buf, len);
                let result = bytes.and_then(|bytes| write_whole(&file.file, bytes, offset, fua));
                DiskJobResult::Write { id, buf, result: result.map(|continued| (len, continued)) }
            }
            DiskJob::Flush { id, file } => DiskJobResult::Flush { id, result: flush(&file.file) },
            DiskJob::Publish { id, file, replace } => {
                DiskJobResult::Publish { id, result: file.publish(replace) }
            }
            DiskJob::Zero { id, file, offset, len, deallocate } => {
                DiskJobResult::Zero { id, result: zero(&file.file, offset, len, deallocate) }
            }
        }
    }

    fn finish(&self, answer: DiskJobResult) {
        let mut done = lock(&self.done);
        done.push_back(answer);
        if done.len() == 1 {
            self.any_done.store(true, Ordering::Release);
            self.done_notifier.notify();
        }
    }
}

impl Disk for ThreadsDisk {
    fn submit(&mut self, request: DiskRequest) -> Result<(), DiskRequest> {
        if let DiskRequest::Close { file } = request {
            self.counters.disk_bad_requests += u64::from(!self.files.remove(file));
            return Ok(());
        }
        if self.in_flight == IN_FLIGHT_MAX {
            self.counters.disk_full += 1;
            return Err(request);
        }
        self.in_flight += 1;
        match self.stage(request) {
            Ok(Some(job)) => self.staged.push_back(job),
            Ok(None) => {}
            Err(done) => self.taken.push_back(done),
        }
        Ok(())
    }

    fn flush(&mut self) {
        let count = self.staged.len();
        if count == 0 {
            return;
        }
        lock(&self.shared.jobs).queue.append(&mut self.staged);
        if count == 1 {
            self.shared.work.notify_one();
        } else {
            self.shared.work.notify_all();
        }
    }

    fn poll(&mut self) -> Option<DiskCompletion> {
        if self.taken.is_empty() {
            self.take_done();
        }
        let done = self.taken.pop_front()?;
        let completion = self.answer(done);
        self.in_flight -= 1;
        self.counters.count(&completion);
        Some(completion)
    }

    fn pollable(&self) -> Option<RawFd> {
        Some(self.shared.done_notifier.as_raw_fd())
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
    }

    fn backend(&self) -> &str {
        &self.backend
    }
}

impl Drop for ThreadsDisk {
    fn drop(&mut self) {
        let mut jobs = lock(&self.shared.jobs);
        jobs.stop = true;
        jobs.queue.clear();
        drop(jobs);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // The panic of a thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

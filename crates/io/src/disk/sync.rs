//! A disk that serves each request in the calling thread at its submission. For accounted
//! benchmarks, where the cycles of one thread are charged to each part and no work may happen
//! elsewhere.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use abi::disk::{DiskCompletion, DiskRequest};

use super::root::{DiskRoot, c_path, read_whole};
use super::table::{FileTable, bytes_to_write};
use super::write::{flush, write_whole, zero};
use super::{Disk, DiskCounters, IN_FLIGHT_MAX};

/// A disk without concurrency.
#[derive(Debug)]
pub(super) struct SyncDisk {
    root: DiskRoot,
    files: FileTable,
    ready: VecDeque<DiskCompletion>,
    counters: DiskCounters,
}

impl SyncDisk {
    pub(super) fn new(root: DiskRoot) -> Self {
        let (files, ready) = (FileTable::default(), VecDeque::with_capacity(IN_FLIGHT_MAX));
        Self { root, files, ready, counters: DiskCounters::default() }
    }
}

impl Disk for SyncDisk {
    fn submit(&mut self, request: DiskRequest) -> Result<(), DiskRequest> {
        if let DiskRequest::Close { file } = request {
            self.counters.disk_bad_requests += u64::from(!self.files.remove(file));
            return Ok(());
        }
        if self.ready.len() == IN_FLIGHT_MAX {
            self.counters.disk_full += 1;
            return Err(request);
        }
        let completion = match request {
            DiskRequest::Open { id, path, access } => {
                let opened = c_path(&path).and_then(|path| self.root.open_beneath(&path, access));
                let result = opened.and_then(|(file, stat)| {
                    self.counters.count_opened(&file);
                    Ok((self.files.insert(file)?, stat))
                });
                DiskCompletion::Opened { id, result }
            }
            DiskRequest::Read { id, file, offset, mut buf } => {
                let file = self.files.for_read(file, offset, &buf);
                let result = file.and_then(|file| read_whole(&file, &mut buf, offset));
                let result = result.map(|(bytes, stat, continued)| {
                    self.counters.disk_reads_continued += u64::from(continued);
                    (bytes, stat)
                });
                DiskCompletion::Read { id, buf, result }
            }
            DiskRequest::Write { id, file, offset, buf, len, fua } => {
                let file = self.files.for_write(file, offset, u64::from(len));
                let result = file.and_then(|file| {
                    let continued =
                        write_whole(&file.file, bytes_to_write(&buf, len)?, offset, fua)?;
                    self.counters.disk_writes_continued += u64::from(continued);
                    self.counters.disk_write_bytes += u64::from(len);
                    Ok(())
                });
                DiskCompletion::Written { id, buf, result }
            }
            DiskRequest::Flush { id, file } => {
                let result = self.files.for_flush(file).and_then(|file| flush(&file.file));
                DiskCompletion::Flushed { id, result }
            }
            DiskRequest::Zero { id, file, offset, len, deallocate } => {
                let result = self.files.for_write(file, offset, len).and_then(|file| {
                    let by_hand = zero(&file.file, offset, len, deallocate)?;
                    self.counters.disk_zeroes_written += u64::from(by_hand);
                    Ok(())
                });
                DiskCompletion::Zeroed { id, result }
            }
            DiskRequest::Publish { id, file, replace } => {
                let file = self.files.for_publish(file);
                let result = file.and_then(|file| file.publish(replace));
                DiskCompletion::Published { id, result }
            }
            DiskRequest::Close { .. } => return Ok(()),
        };
        self.ready.push_back(completion);
        Ok(())
    }

    fn flush(&mut self) {}

    fn poll(&mut self) -> Option<DiskCompletion> {
        let completion = self.ready.pop_front()?;
        self.counters.count(&completion);
        Some(completion)
    }

    fn pollable(&self) -> Option<RawFd> {
        None
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
    }

    fn backend(&self) -> &str {
        "calling thread"
    }
}

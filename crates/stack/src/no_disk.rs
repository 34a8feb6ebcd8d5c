//! The disk of a stack that was given none.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use abi::FileFault;
use abi::disk::{DiskCompletion, DiskRequest};
use io::disk::{Disk, IN_FLIGHT_MAX};

/// A disk without files. Opens fail, and so do all other requests, since no file is open.
#[derive(Default)]
pub(crate) struct NoDisk(VecDeque<DiskCompletion>);

impl NoDisk {
    pub(crate) fn boxed() -> Box<dyn Disk> {
        Box::new(Self::default())
    }
}

impl Disk for NoDisk {
    fn submit(&mut self, request: DiskRequest) -> Result<(), DiskRequest> {
        if self.0.len() == IN_FLIGHT_MAX {
            return Err(request);
        }
        let bad = FileFault::BadExtent;
        self.0.extend(match request {
            DiskRequest::Open { id, .. } => {
                Some(DiskCompletion::Opened { id, result: Err(FileFault::NotFound) })
            }
            DiskRequest::Read { id, buf, .. } => {
                Some(DiskCompletion::Read { id, buf, result: Err(bad) })
            }
            DiskRequest::Write { id, buf, .. } => {
                Some(DiskCompletion::Written { id, buf, result: Err(bad) })
            }
            DiskRequest::Flush { id, .. } => Some(DiskCompletion::Flushed { id, result: Err(bad) }),
            DiskRequest::Zero { id, .. } => Some(DiskCompletion::Zeroed { id, result: Err(bad) }),
            DiskRequest::Publish { id, .. } => {
                Some(DiskCompletion::Published { id, result: Err(bad) })
            }
            DiskRequest::Close { .. } => None,
        });
        Ok(())
    }

    fn flush(&mut self) {}

    fn poll(&mut self) -> Option<DiskCompletion> {
        self.0.pop_front()
    }

    fn pollable(&self) -> Option<RawFd> {
        None
    }

    fn visit(&self, _: &mut dyn FnMut(&'static str, u64)) {}

    fn backend(&self) -> &'static str {
        "none"
    }
}

#[cfg(test)]
mod tests {
    use abi::disk::{DiskAccess, DiskRequestId};

    use super::*;

    #[test]
    fn an_application_that_opens_a_file_hears_that_there_is_none() {
        let mut disk = NoDisk::default();
        let (id, path) = (DiskRequestId(7), b"index.html"[..].into());
        let open = DiskRequest::Open { id, path, access: DiskAccess::Content };
        assert!(disk.submit(open).is_ok());
        let answer = disk.poll();
        let expected = Some((DiskRequestId(7), FileFault::NotFound));
        assert_eq!(
            match answer {
                Some(DiskCompletion::Opened { id, result }) => result.err().map(|why| (id, why)),
                _ => None,
            },
            expected
        );
        assert!(disk.poll().is_none());
    }
}

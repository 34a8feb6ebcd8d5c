//! The disk of those who have no files.

use std::os::fd::RawFd;

use abi::disk::{DiskCompletion, DiskRequest};
use io::disk::Disk;

/// A disk that is never asked: device and host of a proxy open no file.
pub(crate) struct NoDisk;

impl Disk for NoDisk {
    /// Never answered. Nobody asks, for [`nic::DeviceConfig::file`] is none and no application
    /// opens a file.
    fn submit(&mut self, _: DiskRequest) -> Result<(), DiskRequest> {
        Ok(())
    }

    fn flush(&mut self) {}

    fn poll(&mut self) -> Option<DiskCompletion> {
        None
    }

    fn pollable(&self) -> Option<RawFd> {
        None
    }

    fn visit(&self, _: &mut dyn FnMut(&'static str, u64)) {}

    fn backend(&self) -> &'static str {
        "none"
    }
}

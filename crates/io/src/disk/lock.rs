//! Files that one process alone may write to.
//!
//! Called by `outboard nvme target` for its namespaces. The lock is advisory (flock(2)): it keeps a
//! second target away, and whoever else asks for one. It goes with the last descriptor, so with the
//! process, however that ends.
#![expect(unsafe_code, reason = "flock")]

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;

/// Locks a file for as long as it is open. Says whether that was possible: it is not where somebody
/// else has it, or another open of ours.
///
/// # Errors
/// The file system has no locks.
pub fn lock(file: &File) -> Result<bool> {
    // SAFETY: flock takes a descriptor, which is open while the file is borrowed.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = Error::last_os_error();
    if error.kind() == ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_until_it_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let one = File::create(&path).unwrap();
        assert!(lock(&one).unwrap());
        let two = File::open(&path).unwrap();
        assert!(!lock(&two).unwrap());
        drop(one);
        assert!(lock(&two).unwrap());
    }
}

//! Exclusive locks on files.
//!
//! Called by `outboard nvme target` for its namespaces, by `outboard get` for its files, and for
//! the nodes of macvtap interfaces. The lock is advisory (flock(2)): it excludes a second owner
//! that locks, too. It is released with the last descriptor, at the latest when the process ends.
#![expect(unsafe_code, reason = "flock")]

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;

/// Locks a file for as long as it is open. Returns false if another process, or another open file
/// of this one, has it locked.
///
/// # Errors
/// If the file system does not support locks.
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

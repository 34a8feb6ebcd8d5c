//! The user of the process.
#![expect(unsafe_code, reason = "getpwnam_r, and the calls that set users and groups")]

use std::ffi::CString;
use std::io;
use std::ptr;

use super::ConfinementError;

/// Most bytes of an entry of the user database.
const ENTRY_BYTES: usize = 16 << 10;

/// A user without privileges, as the user database has it.
#[derive(Clone, Debug)]
pub struct UnprivilegedUser {
    name: String,
    uid: libc::uid_t,
    gid: libc::gid_t,
}

impl UnprivilegedUser {
    /// Looks up a user by name. To be called before [`super::restrict_files`].
    ///
    /// # Errors
    /// If there is no such user, or it is the superuser.
    pub fn find(name: &str) -> Result<Self, ConfinementError> {
        let unknown = || ConfinementError::UnknownUser(name.to_owned());
        let c_name = CString::new(name).map_err(|_| unknown())?;
        let mut bytes = vec![0; ENTRY_BYTES];
        // SAFETY: all bytes zero are a value of this plain C structure.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = ptr::null_mut();
        // SAFETY: the name is a C string; entry, buffer and result outlive the call, and the length
        // is that of the buffer.
        let failed = unsafe {
            libc::getpwnam_r(
                c_name.as_ptr(),
                &raw mut entry,
                bytes.as_mut_ptr(),
                bytes.len(),
                &raw mut found,
            )
        };
        if failed != 0 || found.is_null() {
            return Err(unknown());
        }
        if entry.pw_uid == 0 {
            return Err(ConfinementError::Superuser(name.to_owned()));
        }
        Ok(Self { name: name.to_owned(), uid: entry.pw_uid, gid: entry.pw_gid })
    }

    /// Makes the user the owner of a file that this process has created, such as a socket.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn own(&self, path: &std::path::Path) -> io::Result<()> {
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid))
    }
}

/// Makes all threads of the process run as a user, in its group alone and without capabilities.
///
/// # Errors
/// If the operating system refuses: only the superuser may become another user.
pub fn switch_user(user: &UnprivilegedUser) -> Result<(), ConfinementError> {
    let &UnprivilegedUser { ref name, uid, gid } = user;
    let failed = || ConfinementError::User(name.clone(), io::Error::last_os_error());
    // SAFETY: no pointer but the empty list of groups is passed. glibc makes the calls in all
    // threads. The kernel clears the capabilities of a thread that leaves the superuser.
    let done = unsafe {
        libc::setgroups(0, ptr::null()) == 0
            && libc::setresgid(gid, gid, gid) == 0
            && libc::setresuid(uid, uid, uid) == 0
    };
    // A process that can return to the superuser has kept its privileges.
    // SAFETY: no pointer is passed.
    let is_confined = done && unsafe { libc::setresuid(0, 0, 0) } != 0;
    if is_confined { Ok(()) } else { Err(failed()) }
}

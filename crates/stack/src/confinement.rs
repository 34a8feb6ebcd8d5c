//! Options that confine a process: an unprivileged user, and a sandbox of files and system calls.
//!
//! A program calls [`ConfinementOptions::begin`] before its first thread, with the files that it
//! will need, and passes the result on in [`crate::StackOptions`]. The stack, or the device
//! process, completes it when links and sockets are open ([`Confinement::complete`]).

use std::path::Path;

use clap::Args;
use cli::Failure;
use io::confinement::{
    ConfinedFiles, ConfinementError, UnprivilegedUser, restrict_files, restrict_system_calls,
    switch_user,
};

/// Options of a program.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfinementOptions {
    /// Continue as this user, without capabilities, once links and sockets are open. To be started
    /// as root. A removed interface is not opened again
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Restrict the process to the files that the command line names, by Landlock, and to the
    /// system calls that it needs, by seccomp
    #[arg(long)]
    pub sandbox: bool,
}

impl ConfinementOptions {
    /// Looks up the user, and restricts the calling thread and its future threads to `files`, if
    /// the sandbox is wanted.
    ///
    /// # Errors
    /// If there is no such user, or the kernel does not support the sandbox.
    pub fn begin(&self, files: &ConfinedFiles) -> Result<Confinement, Failure> {
        let user = self.user.as_deref().map(UnprivilegedUser::find).transpose();
        let user = user.map_err(|error| failure(&error))?;
        if self.sandbox {
            restrict_files(files).map_err(|error| failure(&error))?;
        }
        Ok(Confinement { user, restricts_calls: self.sandbox })
    }
}

/// Confinement of a process that is starting. By default there is none.
#[derive(Clone, Debug, Default)]
pub struct Confinement {
    user: Option<UnprivilegedUser>,
    restricts_calls: bool,
}

impl Confinement {
    /// Makes the user the owner of a socket's file.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn own(&self, path: &Path) -> Result<(), Failure> {
        let owned = self.user.as_ref().map_or(Ok(()), |user| user.own(path));
        owned.map_err(|e| Failure::NoPermission(format!("cannot own {}: {e}", path.display())))
    }

    /// Returns whether [`Self::complete`] gives up the privileges.
    pub(crate) const fn switches_user(&self) -> bool {
        self.user.is_some()
    }

    /// Switches to the user and restricts the system calls of all threads. `opens_bpf_links`: see
    /// [`restrict_system_calls`].
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn complete(&self, opens_bpf_links: bool) -> Result<(), Failure> {
        self.user.as_ref().map_or(Ok(()), switch_user).map_err(|error| failure(&error))?;
        if self.restricts_calls {
            restrict_system_calls(opens_bpf_links).map_err(|error| failure(&error))?;
        }
        Ok(())
    }
}

fn failure(error: &ConfinementError) -> Failure {
    match error {
        ConfinementError::Path(_) => Failure::NoInput(error.to_string()),
        ConfinementError::UnknownUser(_) | ConfinementError::Superuser(_) => {
            Failure::Usage(format!("{error}; give --user another name"))
        }
        ConfinementError::User(..) => {
            Failure::NoPermission(format!("{error}; start it as root, or omit --user"))
        }
        ConfinementError::NoLandlock
        | ConfinementError::Landlock(_)
        | ConfinementError::Seccomp(_)
        | ConfinementError::Architecture => {
            Failure::Unavailable(format!("cannot restrict the process: {error}; omit --sandbox"))
        }
    }
}

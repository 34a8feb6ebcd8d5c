//! Confinement of a process after its start: the files that it may open, its user, and the system
//! calls that it may make.
//!
//! Used by `stack` in two steps. [`restrict_files`] comes before the first thread, because Landlock
//! binds the calling thread and those that it creates. [`switch_user`] and
//! [`restrict_system_calls`] come when links and sockets are open, and bind all threads. Each step
//! is final: nothing in the process can undo it.
//!
//! This module does not know what a program needs: the caller names files and user. The system
//! calls are the same for all programs of this workspace (`system_calls.rs`).

mod files;
mod system_calls;
mod user;

pub use files::{ConfinedFiles, restrict_files};
pub use system_calls::restrict_system_calls;
pub use user::{UnprivilegedUser, switch_user};

/// Reason for which a process cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    /// The kernel has no Landlock, or it is not enabled.
    #[error("the kernel has no Landlock")]
    NoLandlock,
    /// A path cannot be opened.
    #[error("{0}")]
    Path(landlock::PathFdError),
    /// Landlock refuses.
    #[error("Landlock: {0}")]
    Landlock(landlock::RulesetError),
    /// The filter of system calls is refused.
    #[error("seccomp: {0}")]
    Seccomp(#[from] seccompiler::Error),
    /// This machine has no filter.
    #[error("there is no filter of system calls for this architecture")]
    Architecture,
    /// There is no such user.
    #[error("there is no user {0}")]
    UnknownUser(String),
    /// The user is the superuser.
    #[error("the user {0} is the superuser")]
    Superuser(String),
    /// The operating system refuses the user.
    #[error("cannot become user {0}: {1}")]
    User(String, std::io::Error),
}

//! Attachment of a program to a device in another process: the messages before the first
//! descriptor.
//!
//! The program sends an [`AttachRequest`], and the device answers with an [`AttachReply`]; their
//! bytes are defined by [`crate::layout`]. Used by the carriers between processes, which also
//! define how rings are passed. This module neither sends nor waits.

use alloc::boxed::Box;
use core::fmt;

use crate::Capabilities;

/// Asks a device to serve a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// The directory whose files the device is to send; `None` if it is to send none.
    pub root: Option<RootIdentity>,
}

/// Identity of a directory on the machine that both processes run on (stat(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootIdentity {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// Answer to an [`AttachRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachReply {
    /// The device serves the program.
    Attached(Box<Capabilities>),
    /// The device does not serve the program.
    Refused(AttachRefusal),
}

/// Reason for which a device does not serve a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachRefusal {
    /// It serves another program.
    InUse,
    /// The directory is none of its roots.
    UnknownRoot,
    /// It cannot open the root, or has no memory or descriptor for the rings.
    NoResources,
    /// The request is malformed.
    BadRequest,
}

impl fmt::Display for AttachRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InUse => "it serves another program",
            Self::UnknownRoot => "the directory is none of its roots",
            Self::NoResources => "it has no resources for another program",
            Self::BadRequest => "the request is malformed",
        })
    }
}

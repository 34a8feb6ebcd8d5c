//! The messages before the first descriptor, from both sides.

use std::io::{Error as IoError, Result as IoResult};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use abi::Capabilities;
use abi::attach::{AttachRefusal, AttachReply, AttachRequest, RootIdentity};
use abi::layout::{
    ATTACH_BYTES_MAX, AttachFault, decode_attach_reply, decode_attach_request, encode_attach_reply,
    encode_attach_request,
};
use base::Duration;
use io::attachment::AttachmentSocket;
use io::shared_ring::{RingMemoryError, SharedRingConsumer, SharedRingMemory, SharedRingProducer};

use super::channel::{RING_BYTES, SharedMemoryChannel};

/// Longest time for the other side's message.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(2);

/// Reason for which a program is not attached to a device.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// No process listens at the path, or the user may not connect.
    #[error("cannot connect: {0}")]
    Connect(IoError),
    /// The device ended, or sent something else.
    #[error("no valid answer: {0}")]
    Answer(IoError),
    /// The device is of another version.
    #[error("it is another version of outboard: {0}")]
    Version(AttachFault),
    /// The device refuses.
    #[error("refused: {0}")]
    Refused(AttachRefusal),
    /// The rings of the device cannot be used.
    #[error(transparent)]
    Rings(RingMemoryError),
}

/// Attaches to the device at a path.
pub(super) fn attach(
    path: &Path,
    root: Option<RootIdentity>,
) -> Result<(Capabilities, SharedMemoryChannel), AttachError> {
    let socket = AttachmentSocket::connect(path).map_err(AttachError::Connect)?;
    socket
        .send(&encode_attach_request(&AttachRequest { root }), &[])
        .map_err(AttachError::Answer)?;
    let (bytes, fds) =
        socket.receive(ATTACH_BYTES_MAX, MESSAGE_TIME_MAX).map_err(AttachError::Answer)?;
    let capabilities = match decode_attach_reply(&bytes) {
        Ok(AttachReply::Attached(capabilities)) => *capabilities,
        Ok(AttachReply::Refused(reason)) => return Err(AttachError::Refused(reason)),
        Err(fault) => return Err(AttachError::Version(fault)),
    };
    let Ok([ops, events]) = <[OwnedFd; 2]>::try_from(fds) else {
        return Err(AttachError::Answer(IoError::other("rings are missing")));
    };
    let memory = |fd| SharedRingMemory::attach(fd, RING_BYTES).map_err(AttachError::Rings);
    let (out, into) = (memory(ops)?, memory(events)?);
    socket.begin_doorbells().map_err(AttachError::Answer)?;
    let (out, into) = (SharedRingProducer::new(out), SharedRingConsumer::new(into));
    Ok((capabilities, SharedMemoryChannel::new(out, into, socket)))
}

/// Receives the request of a program that has connected. No descriptors come with it.
pub(super) fn receive_request(
    socket: &AttachmentSocket,
) -> IoResult<Result<AttachRequest, AttachFault>> {
    let (bytes, fds) = socket.receive(ATTACH_BYTES_MAX, MESSAGE_TIME_MAX)?;
    Ok(if fds.is_empty() {
        decode_attach_request(&bytes)
    } else {
        Err(AttachFault::NotAnAttachment)
    })
}

/// Refuses a program.
pub(super) fn refuse(socket: &AttachmentSocket, reason: AttachRefusal) {
    // A program that is gone needs no answer.
    let _ = socket.send(&encode_attach_reply(&AttachReply::Refused(reason)), &[]);
}

/// Creates the rings for a program, and sends it the answer.
///
/// # Errors
/// If there is no memory or descriptor for the rings, or if the program is gone.
pub(super) fn accept(
    socket: AttachmentSocket,
    capabilities: Capabilities,
) -> IoResult<SharedMemoryChannel> {
    let create = || SharedRingMemory::create(RING_BYTES).map_err(IoError::other);
    let (ops, events) = (create()?, create()?);
    let reply = encode_attach_reply(&AttachReply::Attached(Box::new(capabilities)));
    socket.send(&reply, &[ops.as_fd(), events.as_fd()])?;
    socket.begin_doorbells()?;
    let (out, into) = (SharedRingProducer::new(events), SharedRingConsumer::new(ops));
    Ok(SharedMemoryChannel::new(out, into, socket))
}

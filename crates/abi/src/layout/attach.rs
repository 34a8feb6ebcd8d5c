//! The messages that attach a program to a device in another process.
//!
//! Each begins with [`ATTACH_MAGIC`], the version of the layout and its fingerprint, in this form
//! for every version, so that two programs of different versions can say so. The rest is encoded as
//! descriptors are, and checked like them: the sender is hostile.

use alloc::vec::Vec;
use core::fmt;

use super::codec::{DescriptorCodec, LayoutFault};
use super::memory::InlineMemory;
use super::{LAYOUT_FINGERPRINT, LAYOUT_VERSION, decode, encode};
use crate::attach::{AttachReply, AttachRequest};
use crate::packet::PacketPool;

/// First bytes of each message.
pub const ATTACH_MAGIC: [u8; 8] = *b"outboard";
/// Bytes before the encoded part: magic, version and fingerprint.
const HEAD_BYTES: usize = ATTACH_MAGIC.len() + 2 + 8;
/// Longest message in bytes.
pub const ATTACH_BYTES_MAX: usize = 4096;

/// Reason for which bytes are no message of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachFault {
    /// They do not begin with [`ATTACH_MAGIC`], or are too short or too long.
    NotAnAttachment,
    /// The sender has a layout of another version.
    OtherVersion(u16),
    /// The sender has another layout of the same version.
    OtherLayout,
    /// The encoded part is malformed.
    Malformed(LayoutFault),
}

impl fmt::Display for AttachFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnAttachment => f.write_str("not a message of Outboard"),
            Self::OtherVersion(version) => {
                write!(f, "layout version {version} of descriptors instead of {LAYOUT_VERSION}")
            }
            Self::OtherLayout => f.write_str("another layout of descriptors"),
            Self::Malformed(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for AttachFault {}

/// Returns the message of a request.
#[must_use]
pub fn encode_attach_request(request: &AttachRequest) -> Vec<u8> {
    to_bytes(request.clone())
}

/// Parses the message of a request.
///
/// # Errors
/// The first fault found.
pub fn decode_attach_request(bytes: &[u8]) -> Result<AttachRequest, AttachFault> {
    from_bytes(bytes)
}

/// Returns the message of a reply.
#[must_use]
pub fn encode_attach_reply(reply: &AttachReply) -> Vec<u8> {
    to_bytes(reply.clone())
}

/// Parses the message of a reply.
///
/// # Errors
/// The first fault found.
pub fn decode_attach_reply(bytes: &[u8]) -> Result<AttachReply, AttachFault> {
    from_bytes(bytes)
}

fn to_bytes<T: DescriptorCodec>(mut message: T) -> Vec<u8> {
    let mut out = Vec::from(ATTACH_MAGIC);
    out.extend(LAYOUT_VERSION.to_le_bytes());
    out.extend(LAYOUT_FINGERPRINT.to_le_bytes());
    let encoded = encode(&mut message, &mut no_memory(), &mut out);
    debug_assert_eq!(encoded, Ok(()), "the messages have short lists and no buffers");
    out
}

fn from_bytes<T: DescriptorCodec>(bytes: &[u8]) -> Result<T, AttachFault> {
    let Some((head, encoded)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return Err(AttachFault::NotAnAttachment);
    };
    let [magic @ .., v0, v1, f0, f1, f2, f3, f4, f5, f6, f7] = *head;
    if magic != ATTACH_MAGIC || bytes.len() > ATTACH_BYTES_MAX {
        return Err(AttachFault::NotAnAttachment);
    }
    let version = u16::from_le_bytes([v0, v1]);
    if version != LAYOUT_VERSION {
        return Err(AttachFault::OtherVersion(version));
    }
    let fingerprint = u64::from_le_bytes([f0, f1, f2, f3, f4, f5, f6, f7]);
    if fingerprint != LAYOUT_FINGERPRINT {
        return Err(AttachFault::OtherLayout);
    }
    decode(encoded, &mut no_memory()).map_err(AttachFault::Malformed)
}

fn no_memory() -> InlineMemory {
    InlineMemory { pool: PacketPool::new(0) }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;
    use crate::attach::{
        AddressClaim, AttachGrant, AttachRefusal, ClaimedQueue, PortClaim, PortRange, RootIdentity,
    };
    use crate::quic::QuicSteering;
    use crate::{Capabilities, FileLimits, Refusal};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn capabilities() -> Capabilities {
        let none = Capabilities::without_engines(MAC, 1500, 70_000, Refusal::Disabled);
        let file = Ok(FileLimits { files_max: 9 });
        Capabilities { file, teardown: Err(Refusal::NotSupported), ..none }
    }

    fn request() -> AttachRequest {
        let claim = AddressClaim::new([[10, 0, 0, 1].into()].into(), PortClaim::All);
        AttachRequest { root: None, claim, outgoing: None }
    }

    #[test]
    fn messages_survive() {
        let ranges: Box<[PortRange]> =
            alloc::vec![PortRange { first: 1, last: u16::MAX }; AddressClaim::RANGES_MAX].into();
        let directory = RootIdentity::Directory { device: 7, inode: u64::MAX };
        let named = RootIdentity::Named(Box::new([b'x'; RootIdentity::NAME_BYTES_MAX]));
        for (root, ports) in [
            (directory, PortClaim::Shared(ranges.clone())),
            (named, PortClaim::Listed(ranges.clone())),
        ] {
            let addrs = alloc::vec![[u16::MAX; 8].into(); AddressClaim::ADDRS_MAX].into();
            let quic = QuicSteering { port: 443, id_bytes: 20, key: u64::MAX, queues: 16 };
            let queue = ClaimedQueue { seed: 1 << 63, index: 15, queues: 16, quic: Some(quic) };
            let claim = AddressClaim { queue: Some(queue), ..AddressClaim::new(addrs, ports) };
            let request = AttachRequest { root: Some(root), claim, outgoing: Some(ranges[0]) };
            let bytes = encode_attach_request(&request);
            assert!(bytes.len() <= ATTACH_BYTES_MAX);
            assert_eq!(decode_attach_request(&bytes), Ok(request));
        }
        let grant = AttachGrant { capabilities: capabilities(), outgoing: Some(ranges[0]) };
        for reply in
            [AttachReply::Attached(Box::new(grant)), AttachReply::Refused(AttachRefusal::Claimed)]
        {
            let bytes = encode_attach_reply(&reply);
            assert!(bytes.len() <= ATTACH_BYTES_MAX);
            assert_eq!(decode_attach_reply(&bytes), Ok(reply));
            for len in 0..bytes.len() {
                assert!(decode_attach_reply(&bytes[..len]).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn other_versions_are_recognized_before_their_content() {
        let bytes = encode_attach_request(&request());
        let changed = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x40;
            decode_attach_request(&bytes)
        };
        assert_eq!(changed(0), Err(AttachFault::NotAnAttachment));
        assert_eq!(changed(8), Err(AttachFault::OtherVersion(LAYOUT_VERSION ^ 0x40)));
        assert_eq!(changed(10), Err(AttachFault::OtherLayout));
        assert_eq!(changed(18), Err(AttachFault::Malformed(LayoutFault::UnknownTag)));
        let mut long = bytes.clone();
        long.resize(ATTACH_BYTES_MAX + 1, 0);
        assert_eq!(decode_attach_request(&long), Err(AttachFault::NotAnAttachment));
        long.truncate(bytes.len() + 1);
        assert_eq!(
            decode_attach_request(&long),
            Err(AttachFault::Malformed(LayoutFault::Trailing))
        );
    }
}

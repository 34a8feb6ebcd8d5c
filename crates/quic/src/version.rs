//! Version negotiation (RFC 9000, section 6): the answer to a version that we do not speak.
//!
//! A datagram of another version is read by what holds for all versions (RFC 8999): there a
//! connection ID has up to 255 bytes, where version 1 has 20, which is as far as quinn-proto reads.
//! So every such datagram is answered here.
//!
//! Version 2 (RFC 9369) is not spoken: quinn-proto tells long headers apart by the types of version
//! 1, whatever their version is, and a connection's version is fixed when it is made, so that it
//! cannot change it during the handshake as RFC 9368 has it.

use wire::quic::is_short;

use crate::session::VERSION_1;

/// Bytes of a datagram that is worth an answer: what a first datagram has to have (RFC 9000,
/// section 14.1), so that no answer is longer than what it answers.
const DATAGRAM_BYTES_MIN: usize = 1200;
/// Versions that exist so that clients ignore what they do not know (section 15).
const RESERVED: [u32; 2] = [0x0a1a_2a3a, 0x0a1a_2a4a];
/// Version of a Version Negotiation packet.
const NEGOTIATION: u32 = 0;

/// The handling of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// quinn-proto knows what to do with it.
    Ours,
    /// It is of another version, and this is sent back.
    Answer(Vec<u8>),
    /// It is of another version, and not answered.
    Drop,
}

/// Looks at the first packet of a datagram.
pub(crate) fn examine(datagram: &[u8]) -> Verdict {
    // quinn-proto drops datagrams that end within their invariants.
    let Some((version, destination, source)) = invariants(datagram) else { return Verdict::Ours };
    match version {
        // An answer to an answer would have no end: that is for who asked, if anyone here did.
        VERSION_1 | NEGOTIATION => Verdict::Ours,
        _ if datagram.len() < DATAGRAM_BYTES_MIN => Verdict::Drop,
        _ => Verdict::Answer(answer(version, destination, source)),
    }
}

/// Version and connection IDs of a long header (RFC 8999, section 5.1): whose, and the sender's.
fn invariants(datagram: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (_, rest) = datagram.split_first().filter(|(first, _)| !is_short(**first))?;
    let (version, rest) = rest.split_first_chunk()?;
    let (destination, rest) = connection_id(rest)?;
    let (source, _) = connection_id(rest)?;
    Some((u32::from_be_bytes(*version), destination, source))
}

fn connection_id(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(len))
}

/// A Version Negotiation packet (RFC 8999, section 6), with the connection IDs the other way round.
fn answer(version: u32, destination: &[u8], source: &[u8]) -> Vec<u8> {
    let len = |id: &[u8]| u8::try_from(id.len()).unwrap_or(u8::MAX);
    // Its other bits are arbitrary; the second says QUIC to those that look for it (RFC 9443).
    let mut packet = vec![0xc0];
    packet.extend_from_slice(&NEGOTIATION.to_be_bytes());
    for id in [source, destination] {
        packet.push(len(id));
        packet.extend_from_slice(id);
    }
    let reserved = if version == RESERVED[0] { RESERVED[1] } else { RESERVED[0] };
    for version in [reserved, VERSION_1] {
        packet.extend_from_slice(&version.to_be_bytes());
    }
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn datagram(version: u32, ids: [usize; 2], len: usize) -> Vec<u8> {
        let [to, from] = ids.map(|len| vec![len.to_le_bytes()[0]; len]);
        let mut bytes = vec![0xc3];
        bytes.extend_from_slice(&version.to_be_bytes());
        for id in [to, from] {
            bytes.push(u8::try_from(id.len()).unwrap());
            bytes.extend_from_slice(&id);
        }
        bytes.resize(len, 0);
        bytes
    }

    #[test]
    fn other_versions_are_answered() {
        for ids in [[8, 0], [20, 20], [21, 0], [0, 21], [255, 255]] {
            let Verdict::Answer(answer) = examine(&datagram(0x6b33_43cf, ids, 1200)) else {
                panic!("{ids:?}")
            };
            let [to, from] = ids;
            let (version, destination, source) = invariants(&answer).expect("a long header");
            assert_eq!((version, destination.len(), source.len()), (0, from, to), "{ids:?}");
            assert_eq!(answer[answer.len() - 8..], [0x0a, 0x1a, 0x2a, 0x3a, 0, 0, 0, 1]);
        }
        let Verdict::Answer(answer) = examine(&datagram(RESERVED[0], [8, 8], 1200)) else {
            panic!("a reserved version is another version")
        };
        assert!(!answer.windows(4).any(|v| v == RESERVED[0].to_be_bytes()), "not what it asked");
    }

    #[test]
    fn others_are_not() {
        assert_eq!(examine(&datagram(1, [8, 8], 1200)), Verdict::Ours);
        assert_eq!(examine(&[0x40; 30]), Verdict::Ours);
        assert_eq!(examine(&datagram(2, [255, 255], 1199)), Verdict::Drop);
        assert_eq!(examine(&datagram(0, [255, 255], 1200)), Verdict::Ours);
        assert_eq!(examine(&datagram(2, [255, 255], 1200)[..300]), Verdict::Ours);
    }

    proptest! {
        #[test]
        fn no_answer_is_longer(
            bytes in proptest::collection::vec(any::<u8>(), 0..600), long: bool,
        ) {
            let mut datagram = bytes;
            if long {
                datagram.resize(1200, 0xff);
            }
            if let Verdict::Answer(answer) = examine(&datagram) {
                prop_assert!(answer.len() <= datagram.len());
            }
        }
    }
}

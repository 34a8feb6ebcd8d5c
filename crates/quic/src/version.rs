//! Version negotiation (RFC 9000 section 6): answers to datagrams of unsupported versions.
//!
//! Such datagrams are parsed by the version-independent properties (RFC 8999). They allow
//! connection IDs of up to 255 bytes; quinn-proto parses no more than the 20 bytes of version 1, so
//! it cannot answer all of them.
//!
//! Version 2 (RFC 9369) is not supported: quinn-proto decodes the type of every long header as that
//! of version 1 and fixes a connection's version when it is created, so that the version cannot
//! change during the handshake (RFC 9368).

use wire::quic::is_short;

use crate::session::VERSION_1;

/// Minimum length of a datagram that is answered: that of a client's first datagram (RFC 9000
/// section 14.1), so that no answer is longer than the datagram it answers.
const DATAGRAM_BYTES_MIN: usize = 1200;
/// Reserved versions, which force clients to ignore unknown versions (RFC 9000 section 15).
const RESERVED_VERSIONS: [u32; 2] = [0x0a1a_2a3a, 0x0a1a_2a4a];
/// Version field of a Version Negotiation packet.
const NEGOTIATION: u32 = 0;

/// Handling of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VersionCheck {
    /// Pass the datagram to quinn-proto.
    PassOn,
    /// The version is not supported; send this Version Negotiation packet back.
    Answer(Vec<u8>),
    /// The version is not supported, and the datagram is too short for an answer.
    Drop,
}

/// Classifies a datagram by the version in its first packet.
pub(crate) fn check_version(datagram: &[u8]) -> VersionCheck {
    // quinn-proto drops datagrams that are too short for the invariant header.
    let Some((version, destination, source)) = invariants(datagram) else {
        return VersionCheck::PassOn;
    };
    match version {
        // A Version Negotiation packet is never answered (that could loop); it concerns only a
        // client.
        VERSION_1 | NEGOTIATION => VersionCheck::PassOn,
        _ if datagram.len() < DATAGRAM_BYTES_MIN => VersionCheck::Drop,
        _ => VersionCheck::Answer(version_negotiation_packet(version, destination, source)),
    }
}

/// Returns version, destination and source connection ID of a long header (RFC 8999 section 5.1).
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

/// Builds a Version Negotiation packet (RFC 8999 section 6), with the connection IDs swapped.
fn version_negotiation_packet(version: u32, destination: &[u8], source: &[u8]) -> Vec<u8> {
    let len = |id: &[u8]| u8::try_from(id.len()).unwrap_or(u8::MAX);
    // The other bits are arbitrary; the second is QUIC's fixed bit, for demultiplexers (RFC 9443).
    let mut packet = vec![0xc0];
    packet.extend_from_slice(&NEGOTIATION.to_be_bytes());
    for id in [source, destination] {
        packet.push(len(id));
        packet.extend_from_slice(id);
    }
    let reserved =
        if version == RESERVED_VERSIONS[0] { RESERVED_VERSIONS[1] } else { RESERVED_VERSIONS[0] };
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
            let VersionCheck::Answer(answer) = check_version(&datagram(0x6b33_43cf, ids, 1200))
            else {
                panic!("{ids:?}")
            };
            let [to, from] = ids;
            let (version, destination, source) = invariants(&answer).expect("a long header");
            assert_eq!((version, destination.len(), source.len()), (0, from, to), "{ids:?}");
            assert_eq!(answer[answer.len() - 8..], [0x0a, 0x1a, 0x2a, 0x3a, 0, 0, 0, 1]);
        }
        let VersionCheck::Answer(answer) =
            check_version(&datagram(RESERVED_VERSIONS[0], [8, 8], 1200))
        else {
            panic!("a reserved version is another version")
        };
        assert!(
            !answer.windows(4).any(|v| v == RESERVED_VERSIONS[0].to_be_bytes()),
            "not what it asked"
        );
    }

    #[test]
    fn other_datagrams_are_not_answered() {
        assert_eq!(check_version(&datagram(1, [8, 8], 1200)), VersionCheck::PassOn);
        assert_eq!(check_version(&[0x40; 30]), VersionCheck::PassOn);
        assert_eq!(check_version(&datagram(2, [255, 255], 1199)), VersionCheck::Drop);
        assert_eq!(check_version(&datagram(0, [255, 255], 1200)), VersionCheck::PassOn);
        assert_eq!(check_version(&datagram(2, [255, 255], 1200)[..300]), VersionCheck::PassOn);
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
            if let VersionCheck::Answer(answer) = check_version(&datagram) {
                prop_assert!(answer.len() <= datagram.len());
            }
        }
    }
}

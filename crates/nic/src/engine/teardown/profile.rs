//! Properties that many connections share, kept once for all of them: link and IP headers, options
//! of TCP, the local endpoint, the host's queue.
//!
//! A server has a few addresses, ports and next hops, so thousands of connections have one profile.
//! The connections refer to it by a number of two bytes and count as its users; the last one that
//! ends removes it. With the peer's endpoint and the numbers of a segment, a profile yields the
//! headers of the segment.
//!
//! Called by [`super::table`]. Bounded: with [`PROFILES_MAX`] profiles in use, connections that
//! need another one are refused.

use abi::teardown::Teardown;
use abi::{PacketHeader, TsvalPosition};
use alloc::vec::Vec;
use base::{Duration, SeqNum, mix};
use core::net::IpAddr;
use hashbrown::HashTable;
use wire::Endpoint;
use wire::tcp::TcpFlags;

use super::segments::TeardownFacts;

/// Maximum number of different profiles of all connections.
const PROFILES_MAX: u16 = u16::MAX - 1;
/// Maximum TIME-WAIT: two maximum segment lifetimes (RFC 9293 section 3.4.2).
const TIME_WAIT_MAX: Duration = Duration::from_secs(240);
/// Offsets in an IP header of the destination address.
const IPV4_DESTINATION_AT: usize = 16;
const IPV6_DESTINATION_AT: usize = 24;
/// Offsets in a TCP header.
const DESTINATION_PORT_AT: usize = 2;
const SEQ_AT: usize = 4;
const ACK_AT: usize = 8;
const FLAGS_AT: usize = 13;
const WINDOW_AT: usize = 14;

/// Number of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProfileId(u16);

impl ProfileId {
    /// A number that no profile has.
    pub(super) const NONE: Self = Self(u16::MAX);
}

/// Properties that connections share.
#[derive(Clone, Debug)]
pub(super) struct ClosureProfile {
    /// Headers of a segment. Zero in the fields that differ between segments or connections.
    header: PacketHeader,
    /// Offset of TSval in `header`, if timestamps are in use.
    tsval_at: Option<u8>,
    /// The host's queue.
    pub(super) queue: usize,
    pub(super) local: Endpoint,
    /// Duration of TIME-WAIT, and limit of FIN-WAIT-2.
    pub(super) time_wait: Duration,
    /// Window scale of the peer.
    pub(super) peer_scale: u8,
}

/// Fields of a segment's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentNumbers {
    pub(super) seq: SeqNum,
    pub(super) ack: SeqNum,
    pub(super) flags: TcpFlags,
    pub(super) window: u16,
    /// TSval and the microseconds since it took that value, and TSecr.
    pub(super) stamps: ((u32, u16), u32),
}

impl ClosureProfile {
    /// Extracts the profile of a connection that [`super::segments::check`] has accepted.
    pub(super) fn new(queue: usize, teardown: &Teardown, facts: &TeardownFacts) -> Self {
        let mut profile = Self {
            header: teardown.header.clone(),
            tsval_at: teardown.timestamp.map(|ts| ts.offset),
            queue,
            local: facts.tuple.local,
            time_wait: teardown.time_wait.min(TIME_WAIT_MAX),
            peer_scale: teardown.peer_scale,
        };
        let zero = SegmentNumbers {
            seq: SeqNum(0),
            ack: SeqNum(0),
            flags: TcpFlags::NONE,
            window: 0,
            stamps: ((0, 0), 0),
        };
        let nowhere: IpAddr = match facts.tuple.remote.addr {
            IpAddr::V4(_) => [0_u8; 4].into(),
            IpAddr::V6(_) => [0_u8; 16].into(),
        };
        (profile.header, _) = profile.segment(Endpoint { addr: nowhere, port: 0 }, &zero);
        profile
    }

    /// Returns whether segments have timestamps.
    pub(super) const fn has_timestamps(&self) -> bool {
        self.tsval_at.is_some()
    }

    /// Returns whether the local address is one of IPv6.
    pub(super) const fn is_ipv6(&self) -> bool {
        self.local.addr.is_ipv6()
    }

    /// Builds the headers of a segment to `remote`. Returns them with the position of the
    /// timestamp.
    pub(super) fn segment(
        &self,
        remote: Endpoint,
        numbers: &SegmentNumbers,
    ) -> (PacketHeader, Option<TsvalPosition>) {
        let mut header = self.header.clone();
        let (l3, l4) = (header.l3(), header.l4());
        match remote.addr {
            IpAddr::V4(addr) => put(&mut header, l3 + IPV4_DESTINATION_AT, &addr.octets()),
            IpAddr::V6(addr) => put(&mut header, l3 + IPV6_DESTINATION_AT, &addr.octets()),
        }
        put(&mut header, l4 + DESTINATION_PORT_AT, &remote.port.to_be_bytes());
        put(&mut header, l4 + SEQ_AT, &numbers.seq.0.to_be_bytes());
        put(&mut header, l4 + ACK_AT, &numbers.ack.0.to_be_bytes());
        put(&mut header, l4 + FLAGS_AT, &[numbers.flags.0]);
        put(&mut header, l4 + WINDOW_AT, &numbers.window.to_be_bytes());
        let Some(offset) = self.tsval_at else { return (header, None) };
        let ((value, sub_ms_us), echo) = numbers.stamps;
        put(&mut header, usize::from(offset), &value.to_be_bytes());
        put(&mut header, usize::from(offset) + 4, &echo.to_be_bytes());
        (header, Some(TsvalPosition { offset, sub_ms_us }))
    }

    fn is_same(&self, other: &Self) -> bool {
        // The offsets of the network header and of the transport header follow from the bytes, and
        // so does the local endpoint.
        self.header.as_slice() == other.header.as_slice() && self.rest() == other.rest()
    }

    /// The properties beside the header.
    const fn rest(&self) -> (Option<u8>, usize, u64, u8) {
        (self.tsval_at, self.queue, self.time_wait.as_nanos(), self.peer_scale)
    }

    fn hash(&self, seed: u64) -> u64 {
        let (_, queue, time_wait, scale) = self.rest();
        let first = mix(seed, (queue as u64) << 8 | u64::from(scale), time_wait);
        self.header.as_slice().chunks(16).fold(first, |hash, chunk| {
            let mut words = [0; 16];
            words[..chunk.len()].copy_from_slice(chunk);
            let words = u128::from_le_bytes(words);
            #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
            let (low, high) = (words as u64, (words >> 64) as u64);
            mix(hash, low, high)
        })
    }
}

/// Overwrites a field of a header; [`super::segments::check`] has verified that it exists.
fn put(header: &mut PacketHeader, at: usize, bytes: &[u8]) {
    if let Some(field) = header.as_mut_slice().get_mut(at..at + bytes.len()) {
        field.copy_from_slice(bytes);
    }
}

#[derive(Debug)]
struct SharedProfile {
    profile: ClosureProfile,
    users: u32,
}

/// The profiles in use.
#[derive(Debug)]
pub(super) struct ProfileTable {
    /// By number; those without users are free.
    profiles: Vec<SharedProfile>,
    free: Vec<ProfileId>,
    index: HashTable<ProfileId>,
    seed: u64,
}

impl ProfileTable {
    /// Creates an empty table.
    pub(super) const fn new(seed: u64) -> Self {
        Self { profiles: Vec::new(), free: Vec::new(), index: HashTable::new(), seed }
    }

    /// Returns a profile in use.
    pub(super) fn get(&self, id: ProfileId) -> Option<&ClosureProfile> {
        self.profiles.get(usize::from(id.0)).map(|shared| &shared.profile)
    }

    /// Adds a user to a profile, which is added to the table if it is new. Returns `None` if the
    /// table is full.
    pub(super) fn add_user(&mut self, profile: ClosureProfile) -> Option<ProfileId> {
        let Self { profiles, free, index, seed } = self;
        let hash = profile.hash(*seed);
        let at = |id: ProfileId| usize::from(id.0);
        if let Some(&id) = index.find(hash, |&id| profiles[at(id)].profile.is_same(&profile)) {
            profiles[at(id)].users += 1;
            return Some(id);
        }
        let shared = SharedProfile { profile, users: 1 };
        let id = match free.pop() {
            Some(id) => {
                profiles[at(id)] = shared;
                id
            }
            None => {
                let number = u16::try_from(profiles.len()).ok().filter(|&n| n < PROFILES_MAX)?;
                profiles.push(shared);
                ProfileId(number)
            }
        };
        index.insert_unique(hash, id, |&id| profiles[at(id)].profile.hash(*seed));
        Some(id)
    }

    /// Removes a user, and the profile with its last user.
    pub(super) fn remove_user(&mut self, id: ProfileId) {
        let Some(shared) = self.profiles.get_mut(usize::from(id.0)) else { return };
        shared.users -= 1;
        if shared.users > 0 {
            return;
        }
        let hash = shared.profile.hash(self.seed);
        if let Ok(found) = self.index.find_entry(hash, |&other| other == id) {
            found.remove();
        }
        self.free.push(id);
    }

    /// Returns the number of profiles in use.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Removes all profiles.
    pub(super) fn clear(&mut self) {
        self.profiles.clear();
        self.free.clear();
        self.index.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::teardown::segments::check;
    use crate::tests::teardown::teardown_of;

    fn profile(queue: usize, change: impl FnOnce(&mut Teardown)) -> ClosureProfile {
        let mut teardown = teardown_of(&[10]);
        change(&mut teardown);
        let facts = check(&teardown, 10, 1500).unwrap();
        ClosureProfile::new(queue, &teardown, &facts)
    }

    /// Peers, numbers, windows and clocks differ; headers, queues, scales and times must not.
    #[test]
    fn only_equal_properties_are_shared() {
        let mut table = ProfileTable::new(1);
        let first = table.add_user(profile(0, |_| ())).unwrap();
        let l4 = 34;
        for at in [33, l4 + 3, l4 + 7, l4 + 11, l4 + 15, l4 + 27, l4 + 31] {
            let same = profile(0, |t| t.header.as_mut_slice()[at] ^= 1);
            assert_eq!(table.add_user(same), Some(first), "byte {at}");
        }
        let mut others = Vec::new();
        for at in [0, 15, 22, 29, l4 + 1] {
            others.push(profile(0, |t| t.header.as_mut_slice()[at] ^= 2));
        }
        others.push(profile(1, |_| ()));
        others.push(profile(0, |t| t.peer_scale += 1));
        others.push(profile(0, |t| t.time_wait = Duration::from_secs(1)));
        let others = others.into_iter().map(|other| table.add_user(other).unwrap());
        let others = others.collect::<Vec<_>>();
        assert_eq!((others.len(), table.len()), (8, 9));
        for id in others {
            table.remove_user(id);
        }
        for users in (0..8).rev() {
            assert_eq!(table.len(), 1, "{users}");
            table.remove_user(first);
        }
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_full_table_refuses_and_numbers_are_used_again() {
        let mut table = ProfileTable::new(1);
        let numbered = |n: u32| {
            profile(0, |t| t.header.as_mut_slice()[2..6].copy_from_slice(&n.to_be_bytes()))
        };
        for n in 0..u32::from(PROFILES_MAX) {
            assert!(table.add_user(numbered(n)).is_some());
        }
        assert_eq!(table.add_user(numbered(1 << 16)), None);
        let id = table.add_user(numbered(7)).unwrap();
        table.remove_user(id);
        table.remove_user(id);
        assert_eq!(table.add_user(numbered(1 << 16)), Some(id));
    }
}

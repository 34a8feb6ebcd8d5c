//! Closures by connection tuple, in little memory (AccelTCP section 4.2).
//!
//! A record has no tuple: the local endpoint is that of its [`super::profile`], and beside the
//! remote port it has the remote address (IPv4), or the number of one (IPv6). Records of one hash
//! are chained by numbers. The hash is seeded, and candidates are compared by their full tuple, so
//! different connections are never confused.
//!
//! Used by the engine, which checks that a tuple is absent before it inserts the tuple, and limits
//! the number of records.

use alloc::vec::Vec;
use core::net::IpAddr;
use structures::push_tight;
use tcp_rules::tuple::hash_tuple;
use wire::{Endpoint, Tuple};

use super::profile::{ClosureProfile, ProfileId, ProfileTable};

/// Records for each chain, on average, if the table is full.
const CHAIN_RECORDS: u32 = 4;
/// Minimum number of chains.
const CHAINS_MIN: u32 = 64;
/// Maximum number of chains: 4 MiB.
const CHAINS_MAX: u32 = 1 << 20;
/// The end of a chain: links are numbers of records plus one, so that new chains are zero.
const END: u32 = 0;

/// A connection with its place in the table.
#[derive(Debug)]
struct ClosureRecord<T> {
    /// Link to the next record of the chain, or to the next free one.
    next: u32,
    /// The remote IPv4 address, or the index of the IPv6 address.
    remote: u32,
    remote_port: u16,
    /// [`ProfileId::NONE`] in a free record.
    profile: ProfileId,
    flow: T,
}

/// The profile and the remote endpoint of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosurePeer<'a> {
    pub(super) profile: &'a ClosureProfile,
    pub(super) remote: Endpoint,
}

impl ClosurePeer<'_> {
    const fn tuple(&self) -> Tuple {
        Tuple { local: self.profile.local, remote: self.remote }
    }
}

/// Closures by connection tuple.
#[derive(Debug)]
pub(super) struct ClosureTable<T> {
    records: Vec<ClosureRecord<T>>,
    /// Link to the first free record.
    free: u32,
    /// Links to the first records of the chains; created with the first record.
    chains: Vec<u32>,
    chain_count: u32,
    len: usize,
    profiles: ProfileTable,
    ipv6: Ipv6Addresses,
    seed: u64,
}

impl<T> ClosureTable<T> {
    /// Bytes of a connection, without its share of the chains.
    #[cfg(test)]
    pub(super) const RECORD_BYTES: usize = size_of::<ClosureRecord<T>>();

    /// Creates an empty table, in which searches are fast up to `records_max` records.
    pub(super) fn new(records_max: u32, seed: u64) -> Self {
        let chains = (records_max / CHAIN_RECORDS).clamp(CHAINS_MIN, CHAINS_MAX);
        Self {
            records: Vec::new(),
            free: END,
            chains: Vec::new(),
            chain_count: chains.next_power_of_two(),
            len: 0,
            profiles: ProfileTable::new(seed),
            ipv6: Ipv6Addresses::default(),
            seed,
        }
    }

    /// Number of connections.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds a user to a profile, for [`Self::insert`] or [`Self::remove_user`]. `None` if there are
    /// too many different ones.
    pub(super) fn add_user(&mut self, profile: ClosureProfile) -> Option<ProfileId> {
        self.profiles.add_user(profile)
    }

    /// Removes a user of a profile for which no connection was inserted.
    pub(super) fn remove_user(&mut self, profile: ProfileId) {
        self.profiles.remove_user(profile);
    }

    /// Returns the index of a tuple.
    pub(super) fn find(&self, tuple: &Tuple) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut link = *self.chains.get(self.chain_of(tuple))?;
        while let Some(record) = self.record(link) {
            if record.remote_port == tuple.remote.port
                && self.peer(record).is_some_and(|peer| peer.tuple() == *tuple)
            {
                return Some(link - 1);
            }
            link = record.next;
        }
        None
    }

    /// Inserts a connection that is not in the table. Returns its index.
    pub(super) fn insert(&mut self, tuple: &Tuple, profile: ProfileId, flow: T) -> u32 {
        if self.chains.is_empty() {
            self.chains = alloc::vec![END; self.chain_count as usize];
        }
        let remote = match tuple.remote.addr {
            IpAddr::V4(addr) => addr.to_bits(),
            IpAddr::V6(addr) => self.ipv6.insert(addr.octets()),
        };
        let chain = self.chain_of(tuple);
        let next = self.chains[chain];
        let record = ClosureRecord { next, remote, remote_port: tuple.remote.port, profile, flow };
        let link = self.free;
        let link = match self.record(link).map(|free| free.next) {
            Some(next_free) => {
                self.free = next_free;
                self.records[link as usize - 1] = record;
                link
            }
            None => {
                push_tight(&mut self.records, record);
                self.places()
            }
        };
        self.chains[chain] = link;
        self.len += 1;
        link - 1
    }

    /// Returns a connection with its peer.
    pub(super) fn get_mut(&mut self, index: u32) -> Option<(&mut T, ClosurePeer<'_>)> {
        let Self { records, profiles, ipv6, .. } = self;
        let record = records.get_mut(index as usize)?;
        let profile = profiles.get(record.profile)?;
        let remote =
            Endpoint { addr: record.remote_addr(profile, ipv6)?, port: record.remote_port };
        Some((&mut record.flow, ClosurePeer { profile, remote }))
    }

    /// Returns the tuples of all connections.
    pub(super) fn tuples(&self) -> impl Iterator<Item = Tuple> {
        self.records.iter().filter_map(|record| Some(self.peer(record)?.tuple()))
    }

    /// Upper bound of all indices; of those below, some have no connection.
    pub(super) fn places(&self) -> u32 {
        u32::try_from(self.records.len()).unwrap_or(u32::MAX)
    }

    /// Removes the connection with this index. Returns whether there was one.
    pub(super) fn remove(&mut self, index: u32) -> bool {
        let found = self.record(index + 1);
        let Some(tuple) = found.and_then(|record| Some(self.peer(record)?.tuple())) else {
            return false;
        };
        let chain = self.chain_of(&tuple);
        let mut link = self.chains[chain];
        if link == index + 1 {
            self.chains[chain] = self.records[index as usize].next;
        }
        while let Some(record) = self.record(link) {
            let next = record.next;
            if next == index + 1 {
                self.records[link as usize - 1].next = self.records[index as usize].next;
                break;
            }
            link = next;
        }
        let record = &mut self.records[index as usize];
        record.next = core::mem::replace(&mut self.free, index + 1);
        self.profiles.remove_user(core::mem::replace(&mut record.profile, ProfileId::NONE));
        if tuple.remote.addr.is_ipv6() {
            self.ipv6.remove(record.remote);
        }
        self.len -= 1;
        true
    }

    /// Removes all connections.
    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.chains.fill(END);
        (self.free, self.len) = (END, 0);
        self.profiles.clear();
        self.ipv6 = Ipv6Addresses::default();
    }

    fn record(&self, link: u32) -> Option<&ClosureRecord<T>> {
        self.records.get((link as usize).checked_sub(1)?)
    }

    fn peer(&self, record: &ClosureRecord<T>) -> Option<ClosurePeer<'_>> {
        let profile = self.profiles.get(record.profile)?;
        let addr = record.remote_addr(profile, &self.ipv6)?;
        Some(ClosurePeer { profile, remote: Endpoint { addr, port: record.remote_port } })
    }

    fn chain_of(&self, tuple: &Tuple) -> usize {
        let hash = hash_tuple(self.seed, tuple) & u64::from(self.chain_count - 1);
        usize::try_from(hash).unwrap_or(0)
    }
}

impl<T> ClosureRecord<T> {
    fn remote_addr(&self, profile: &ClosureProfile, ipv6: &Ipv6Addresses) -> Option<IpAddr> {
        Some(match profile.is_ipv6() {
            false => self.remote.to_be_bytes().into(),
            true => (*ipv6.octets.get(self.remote as usize)?).into(),
        })
    }
}

/// Remote IPv6 addresses, one for each connection that has one.
#[derive(Debug, Default)]
struct Ipv6Addresses {
    octets: Vec<[u8; 16]>,
    /// Link to the first free address; the first four bytes of a free one are the next link.
    free: u32,
}

impl Ipv6Addresses {
    fn insert(&mut self, octets: [u8; 16]) -> u32 {
        let index = self.free.checked_sub(1);
        let found = index.and_then(|index| Some((index, self.octets.get_mut(index as usize)?)));
        let Some((index, place)) = found else {
            push_tight(&mut self.octets, octets);
            return u32::try_from(self.octets.len() - 1).unwrap_or(u32::MAX);
        };
        let [a, b, c, d, ..] = core::mem::replace(place, octets);
        self.free = u32::from_be_bytes([a, b, c, d]);
        index
    }

    fn remove(&mut self, index: u32) {
        if let Some(place) = self.octets.get_mut(index as usize) {
            let next = core::mem::replace(&mut self.free, index + 1);
            place[..4].copy_from_slice(&next.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::teardown::{ClosingState, LateData, Teardown};
    use abi::{FlowId, TransmitParts};
    use alloc::collections::BTreeMap;
    use base::{Duration, SeqNum};
    use proptest::prelude::*;
    use smallvec::SmallVec;
    use wire::tcp::TcpFlags;

    use crate::engine::teardown::segments;
    use crate::tests::frames::tcp_header;

    /// A connection from one of four local ports, with the peer's port and the last byte of its
    /// address, over IPv4 or IPv6.
    fn connection(version: u8, local: u8, remote: u8, host: u8) -> Teardown {
        let mut header = tcp_header(version, 77, TcpFlags::NONE);
        let bytes = header.l4();
        header.as_mut_slice()[bytes - 1] = host;
        header.as_mut_slice()[bytes + 1] = local;
        header.as_mut_slice()[bytes + 3] = remote;
        let bytes = header.as_slice()[..bytes + 20].to_vec();
        let mut header = abi::PacketHeader::from_bytes(&bytes, 14, header.l4()).unwrap();
        let at = header.l4() + 12;
        header.as_mut_slice()[at] = 0x50;
        Teardown {
            flow: FlowId(1),
            header,
            timestamp: None,
            una: SeqNum(5),
            nxt: SeqNum(5),
            edge: SeqNum(5),
            peer_scale: 0,
            mss: 1000,
            mss_after_timeouts: 500,
            parts: TransmitParts::new(),
            rcv_nxt: SeqNum(u32::from_be_bytes([version, local, remote, host])),
            state: ClosingState::FinWait2,
            rto: Duration::ZERO,
            time_wait: Duration::ZERO,
            contexts: SmallVec::new(),
            late_data: LateData::Reset,
        }
    }

    fn insert(table: &mut ClosureTable<SeqNum>, teardown: &Teardown) -> (Tuple, u32) {
        let facts = segments::check(teardown, 0, 1500).unwrap();
        let profile = table.add_user(ClosureProfile::new(0, teardown, &facts)).unwrap();
        (facts.tuple, table.insert(&facts.tuple, profile, teardown.rcv_nxt))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

        /// Compares the table with a map, over IPv4 and IPv6 at the same time. Connections of one
        /// local endpoint share a profile, which is removed with the last of them.
        #[test]
        fn equals_the_model(
            calls in proptest::collection::vec(
                (prop_oneof![Just(4_u8), Just(6)], 1..4_u8, 1..9_u8, 1..9_u8), 1..400,
            ),
        ) {
            let mut table = ClosureTable::new(16, 3);
            let mut model = BTreeMap::<Tuple, u32>::new();
            for (version, local, remote, host) in calls {
                let teardown = connection(version, local, remote, host);
                let tuple = segments::check(&teardown, 0, 1500).unwrap().tuple;
                prop_assert_eq!(table.find(&tuple), model.get(&tuple).copied());
                if let Some(index) = model.remove(&tuple) {
                    let (flow, peer) = table.get_mut(index).unwrap();
                    prop_assert_eq!((*flow, peer.tuple()), (teardown.rcv_nxt, tuple));
                    prop_assert!(table.remove(index) && !table.remove(index));
                    prop_assert!(table.get_mut(index).is_none());
                } else {
                    let (tuple, index) = insert(&mut table, &teardown);
                    model.insert(tuple, index);
                }
                let mut locals: Vec<Endpoint> = model.keys().map(|tuple| tuple.local).collect();
                locals.dedup();
                prop_assert_eq!((table.len(), table.profiles.len()), (model.len(), locals.len()));
                let addresses = model.keys().filter(|tuple| tuple.remote.addr.is_ipv6()).count();
                prop_assert!(table.ipv6.octets.len() >= addresses);
            }
            prop_assert!(table.places() <= 6 * 64 && table.ipv6.octets.len() <= 3 * 64);
        }
    }
}

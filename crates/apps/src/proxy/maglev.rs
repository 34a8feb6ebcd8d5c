//! Maglev's lookup table (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load
//! Balancer", NSDI 2016, section 3.4): all backends get nearly equal shares, and most entries keep
//! their backend when one is added or removed.
//!
//! [`super::pool`] builds a table of the backends of a pool that are up, and looks hashes up in it.
//! Permutations depend on nothing but the backends' addresses, so all proxies in front of the same
//! backends agree.

use core::hash::Hasher as _;
use core::net::IpAddr;

use siphasher::sip::SipHasher13;
use wire::Endpoint;

/// Number of entries: the paper's smaller prime. With a hundred backends the shares differ by one
/// percent.
pub(crate) const ENTRIES: usize = 65_537;
/// Value of an entry without a backend.
const NONE: u16 = u16::MAX;
/// Keys of the hash functions: the same in every proxy, because proxies must agree.
const OFFSET_KEYS: (u64, u64) = (0x6f75_7462_6f61_7264, 1);
const SKIP_KEYS: (u64, u64) = (0x6f75_7462_6f61_7264, 2);
const FLOW_KEYS: (u64, u64) = (0x6f75_7462_6f61_7264, 3);

/// The table: the index of a member for each hash.
#[derive(Clone, Debug)]
pub(crate) struct MaglevTable {
    /// Empty if there are no members.
    entries: Vec<u16>,
}

impl MaglevTable {
    /// Builds the table of `members`; those beyond 65,535 get no entries.
    pub(crate) fn new(members: &[Endpoint]) -> Self {
        let members = &members[..members.len().min(usize::from(NONE))];
        if members.is_empty() {
            return Self { entries: Vec::new() };
        }
        let mut walks: Vec<(usize, usize)> = members.iter().map(permutation).collect();
        let mut entries = vec![NONE; ENTRIES];
        let mut filled = 0;
        // The paper's pseudocode 1: in turn, each member takes the next free entry of its
        // permutation.
        while filled < ENTRIES {
            for (member, (at, skip)) in walks.iter_mut().enumerate() {
                while entries.get(*at).is_some_and(|entry| *entry != NONE) {
                    *at = (*at + *skip) % ENTRIES;
                }
                if let (Some(entry), Ok(member)) = (entries.get_mut(*at), u16::try_from(member)) {
                    *entry = member;
                }
                filled += 1;
                if filled == ENTRIES {
                    break;
                }
            }
        }
        Self { entries }
    }

    /// Returns the members in the order in which a flow should try them, with repetitions.
    pub(crate) fn lookup(&self, hash: u64) -> impl Iterator<Item = usize> + '_ {
        let len = self.entries.len();
        let start = usize::try_from(hash % (len.max(1) as u64)).unwrap_or(0);
        let (before, after) = self.entries.split_at(start.min(len));
        after.iter().chain(before).map(|member| usize::from(*member))
    }
}

/// Returns the offset and the skip of a member's permutation.
fn permutation(member: &Endpoint) -> (usize, usize) {
    let entries = ENTRIES as u64;
    let below = |value: u64| usize::try_from(value).unwrap_or(0);
    let offset = hash_endpoint(OFFSET_KEYS, member) % entries;
    let skip = hash_endpoint(SKIP_KEYS, member) % (entries - 1) + 1;
    (below(offset), below(skip))
}

fn hash_endpoint(keys: (u64, u64), endpoint: &Endpoint) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(keys.0, keys.1);
    write_addr(&mut hasher, endpoint.addr);
    hasher.write(&endpoint.port.to_be_bytes());
    hasher.finish()
}

fn write_addr(hasher: &mut SipHasher13, addr: IpAddr) {
    match addr {
        IpAddr::V4(v4) => hasher.write(&v4.octets()),
        IpAddr::V6(v6) => hasher.write(&v6.octets()),
    }
}

/// Returns the hash of a client's address.
pub(crate) fn hash_addr(addr: IpAddr) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(FLOW_KEYS.0, FLOW_KEYS.1);
    write_addr(&mut hasher, addr);
    hasher.finish()
}

/// Returns the hash of a requested name, ignoring case.
pub(crate) fn hash_name(name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(FLOW_KEYS.0, FLOW_KEYS.1);
    name.iter().for_each(|byte| hasher.write(&[byte.to_ascii_lowercase()]));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(count: u8) -> Vec<Endpoint> {
        (1..=count).map(|n| Endpoint { addr: [10, 0, 0, n].into(), port: 80 }).collect()
    }

    fn shares(table: &MaglevTable, count: usize) -> Vec<usize> {
        let mut shares = vec![0; count];
        table.entries.iter().for_each(|member| shares[usize::from(*member)] += 1);
        shares
    }

    /// Section 5.3 of the paper shows shares within a few percent at this table size.
    #[test]
    fn spread_is_even() {
        for count in [1, 2, 3, 10, 100] {
            let shares = shares(&MaglevTable::new(&members(count)), count.into());
            let (least, most) = (*shares.iter().min().unwrap(), *shares.iter().max().unwrap());
            assert_eq!(shares.iter().sum::<usize>(), ENTRIES);
            assert!(most - least <= ENTRIES / usize::from(count) / 50 + 1, "{count}: {shares:?}");
        }
    }

    #[test]
    fn empty_table() {
        assert_eq!(MaglevTable::new(&[]).lookup(7).next(), None);
    }

    #[test]
    fn lookup_returns_all_members() {
        let table = MaglevTable::new(&members(5));
        let mut seen: Vec<usize> = table.lookup(hash_name(b"A.example")).collect();
        assert_eq!(seen.first().copied(), table.lookup(hash_name(b"a.EXAMPLE")).next());
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [0, 1, 2, 3, 4]);
    }

    /// Other proxies and later versions must have the same values.
    #[test]
    fn stable() {
        assert_eq!(hash_addr([10, 77, 0, 1].into()), 17_737_431_332_561_251_035);
        assert_eq!(permutation(&members(1)[0]), (36_229, 50_522));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Section 3.4 of the paper: few entries change besides those of the backend that is
        /// removed.
        #[test]
        fn few_flows_move_when_a_backend_leaves(count in 2_u8..40, gone in 0_usize..40) {
            let before = members(count);
            let gone = gone % before.len();
            let mut after = before.clone();
            after.remove(gone);
            let (old, new) = (MaglevTable::new(&before), MaglevTable::new(&after));
            let moved = old.entries.iter().zip(&new.entries).filter(|(old, new)| {
                let (old, new) = (usize::from(**old), usize::from(**new));
                old != gone && before[old] != after[new]
            });
            // The paper's figure 12 stays below 2 % at this size when one of many backends is
            // removed; with few backends each of them takes over more entries, and more are
            // displaced.
            let bound = ENTRIES / 20 + ENTRIES / usize::from(count) / 4;
            prop_assert!(moved.count() <= bound);
        }
    }
}

//! Addresses and ports that functions have claimed.
//!
//! Used by [`super::EmbeddedSwitch`] for each frame, and by the process around it to accept or
//! refuse a claim before the switch knows of it. A claim comes from a program and is hostile.

use core::net::IpAddr;

use abi::attach::{AddressClaim, AttachRefusal, ClaimedQueue, PortClaim, PortRange};
use abi::quic::{CID_BYTES_MAX, QuicSteering};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::flow_key::FlowKey;
use super::function_set::{FUNCTIONS_MAX, FunctionSet};
use super::program_queues::QueueTable;

/// First port of the ranges for outgoing connections: the dynamic ports (RFC 6335 section 6).
const OUTGOING_FIRST: u16 = 49152;
/// Ports of each function's range. The first function has the highest range: if the kernel has the
/// same addresses, only the ports above its own are free.
const OUTGOING_PORTS: u16 = 1024;
const _: () = assert!(
    OUTGOING_FIRST as usize + FUNCTIONS_MAX * OUTGOING_PORTS as usize == 1 << 16,
    "the ranges of all functions are the dynamic ports"
);

/// Returns the range of outgoing connections of a function that does not have all ports of its
/// addresses.
///
/// # Panics
/// If the function is not below [`FUNCTIONS_MAX`].
#[must_use]
pub const fn outgoing_ports(function: usize) -> PortRange {
    assert!(function < FUNCTIONS_MAX, "a function of a switch");
    #[expect(clippy::cast_possible_truncation, reason = "less than 16")]
    let last = u16::MAX - function as u16 * OUTGOING_PORTS;
    PortRange { first: last - (OUTGOING_PORTS - 1), last }
}

/// Functions that may claim a range that one has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeSharing {
    /// None.
    Exclusive,
    /// Those of programs that share it, too.
    Programs,
    /// Those of the same program's other queues.
    Queues,
}

/// Functions that have claimed ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClaimedRange {
    ports: PortRange,
    functions: FunctionSet,
    sharing: RangeSharing,
}

/// Claims of an address.
#[derive(Clone, Debug, Default)]
struct ClaimedAddress {
    /// The function that has claimed all ports, or those of a program's queues.
    sole: FunctionSet,
    /// All functions that have claimed ports.
    functions: FunctionSet,
    /// Listed ports, in order, none in two ranges.
    ranges: Vec<ClaimedRange>,
}

impl ClaimedAddress {
    /// Returns the listed range that has a port.
    fn range_of(&self, port: u16) -> Option<&ClaimedRange> {
        let after = self.ranges.partition_point(|range| range.ports.first <= port);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        range.ports.contains(port).then_some(range)
    }
}

/// The functions to which a port of an address belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortOwner {
    /// One function.
    Function(usize),
    /// Functions that share the port, one at least, over which flows are distributed.
    Shared(FunctionSet),
    /// Functions of a program's queues, one at least. The flow decides which of them it leads to
    /// ([`ClaimTable::select`]).
    Queues(FunctionSet),
    /// No function has claimed the port; this one answers for the address.
    Answerer(usize),
    /// No function has claimed the address.
    Unclaimed,
}

/// Claims of all functions.
#[derive(Clone, Debug, Default)]
pub struct ClaimTable {
    addresses: BTreeMap<IpAddr, ClaimedAddress>,
    /// Functions with an IPv6 address, the first of which answers for the link-local address.
    of_v6: FunctionSet,
    /// Functions that list their ports, and have a range for outgoing connections.
    with_listed_ports: FunctionSet,
    queues: QueueTable,
    /// The function whose program has automatic addresses.
    automatic: Option<usize>,
}

impl ClaimTable {
    /// Returns why a function cannot have these addresses and ports, if it cannot.
    ///
    /// # Errors
    /// The reason for the program.
    pub fn check(&self, claim: &AddressClaim) -> Result<(), AttachRefusal> {
        self.check_beside(FunctionSet::NONE, claim)
    }

    /// Returns why `function`, which has a part of these addresses and ports, cannot have all, if
    /// it cannot. The kind of its ports stays, because its range of outgoing connections depends
    /// on that, and so does its queue. No claim becomes smaller while its program runs: its
    /// connections would have to be cut, as [`super::EmbeddedSwitch::end`] does.
    ///
    /// # Errors
    /// The reason for the program.
    pub fn check_extension(
        &self,
        function: usize,
        claim: &AddressClaim,
    ) -> Result<(), AttachRefusal> {
        let had_all_ports = !self.with_listed_ports.contains(function);
        if had_all_ports != (claim.ports == PortClaim::All)
            || claim.automatic != self.is_automatic(function)
            || claim.queue != self.queues.queue_of(function)
            || !self.is_within(function, claim)
        {
            return Err(AttachRefusal::BadRequest);
        }
        self.check_beside(FunctionSet::only(function), claim)
    }

    /// Returns whether a claim has each address and range of a function.
    fn is_within(&self, function: usize, claim: &AddressClaim) -> bool {
        let listed: &[PortRange] = match &claim.ports {
            PortClaim::All => &[],
            PortClaim::Listed(ranges) | PortClaim::Shared(ranges) => ranges,
        };
        let of_function = self.addresses.iter().filter(|(_, it)| it.functions.contains(function));
        let mut present = of_function.map(|(addr, claimed)| {
            let mut ranges = claimed.ranges.iter().filter(|it| it.functions.contains(function));
            claim.addrs.contains(addr) && ranges.all(|range| listed.contains(&range.ports))
        });
        present.all(|has_all| has_all)
    }

    /// Checks a claim without regard to those of the functions `own`.
    fn check_beside(&self, own: FunctionSet, claim: &AddressClaim) -> Result<(), AttachRefusal> {
        check_form(claim)?;
        let is_own = |&function: &usize| own.contains(function);
        if claim.automatic && !self.automatic.as_ref().is_none_or(is_own) {
            return Err(AttachRefusal::OtherAutomatic);
        }
        let queue_of_other = claim.queue.and_then(|queue| self.queues.function_of(queue));
        let program = claim.queue.map_or(FunctionSet::NONE, |it| self.queues.functions_of(it));
        let is_free = |claimed: &ClaimedAddress| is_free(claimed, (own, program), &claim.ports);
        let free = queue_of_other.as_ref().is_none_or(is_own)
            && claim.addrs.iter().all(|addr| self.addresses.get(addr).is_none_or(is_free));
        if free { Ok(()) } else { Err(AttachRefusal::Claimed) }
    }

    /// Adds the claim of a function that has none. Returns the range of its outgoing connections;
    /// `None` if it may use all ports.
    ///
    /// # Errors
    /// As [`Self::check`]; the table is unchanged.
    ///
    /// # Panics
    /// If the function is not below [`FUNCTIONS_MAX`].
    pub fn insert(
        &mut self,
        function: usize,
        claim: &AddressClaim,
    ) -> Result<Option<PortRange>, AttachRefusal> {
        assert!(function < FUNCTIONS_MAX, "a switch has at most {FUNCTIONS_MAX} functions");
        self.check(claim)?;
        self.add(function, claim);
        Ok((claim.ports != PortClaim::All).then(|| outgoing_ports(function)))
    }

    /// Adds a claim that was checked.
    fn add(&mut self, function: usize, claim: &AddressClaim) {
        if claim.ports != PortClaim::All {
            self.with_listed_ports.insert(function);
        }
        if claim.automatic {
            self.automatic = Some(function);
            self.of_v6.insert(function);
        }
        let of_listed = match claim.queue {
            Some(queue) => {
                self.queues.insert(function, queue);
                RangeSharing::Queues
            }
            None => RangeSharing::Exclusive,
        };
        for addr in &claim.addrs {
            if addr.is_ipv6() {
                self.of_v6.insert(function);
            }
            let claimed = self.addresses.entry(*addr).or_default();
            claimed.functions.insert(function);
            match &claim.ports {
                PortClaim::All => claimed.sole.insert(function),
                PortClaim::Listed(ports) => add_ranges(claimed, function, ports, of_listed),
                PortClaim::Shared(ports) => {
                    add_ranges(claimed, function, ports, RangeSharing::Programs);
                }
            }
        }
    }

    /// Replaces the claim of a function by one that has more.
    ///
    /// # Errors
    /// As [`Self::check_extension`]; the table is unchanged.
    ///
    /// # Panics
    /// If the function is not below [`FUNCTIONS_MAX`].
    pub fn extend(&mut self, function: usize, claim: &AddressClaim) -> Result<(), AttachRefusal> {
        self.check_extension(function, claim)?;
        self.remove(function);
        self.add(function, claim);
        Ok(())
    }

    /// Removes the claim of a function.
    pub fn remove(&mut self, function: usize) {
        self.of_v6.remove(function);
        self.with_listed_ports.remove(function);
        self.queues.remove(function);
        self.automatic = self.automatic.filter(|&automatic| automatic != function);
        self.addresses.retain(|_, claimed| {
            if !claimed.functions.contains(function) {
                return true;
            }
            claimed.functions.remove(function);
            claimed.sole.remove(function);
            for range in &mut claimed.ranges {
                range.functions.remove(function);
            }
            claimed.ranges.retain(|range| !range.functions.is_empty());
            !claimed.functions.is_empty()
        });
    }

    /// Returns the owner of a port.
    #[inline]
    pub(super) fn owner(&self, addr: IpAddr, port: u16) -> PortOwner {
        let Some(claimed) = self.addresses.get(&addr) else { return PortOwner::Unclaimed };
        if let Some(function) = claimed.sole.first() {
            return if self.queues.has(function) {
                PortOwner::Queues(claimed.sole)
            } else {
                PortOwner::Function(function)
            };
        }
        if port >= OUTGOING_FIRST {
            let function = usize::from((u16::MAX - port) / OUTGOING_PORTS);
            if claimed.functions.contains(function) {
                return PortOwner::Function(function);
            }
        }
        match (claimed.range_of(port), claimed.functions.first()) {
            (Some(&ClaimedRange { functions, sharing, .. }), Some(first)) => match sharing {
                RangeSharing::Programs => PortOwner::Shared(functions),
                RangeSharing::Queues => PortOwner::Queues(functions),
                RangeSharing::Exclusive => PortOwner::Function(functions.first().unwrap_or(first)),
            },
            (None, Some(first)) => PortOwner::Answerer(first),
            (_, None) => PortOwner::Unclaimed,
        }
    }

    /// Returns the functions of a program's queues that a packet of a flow is for; `l4` is the
    /// offset of its transport header, `None` if an ICMP error quotes the packet.
    pub(super) fn select(
        &self,
        functions: FunctionSet,
        flow: &FlowKey,
        frame: &[u8],
        l4: Option<usize>,
    ) -> FunctionSet {
        let Some(first) = functions.first() else { return FunctionSet::NONE };
        self.queues.select(first, flow, frame, l4).common(functions)
    }

    /// Returns whether the program of a function has automatic addresses.
    pub(super) fn is_automatic(&self, function: usize) -> bool {
        self.automatic == Some(function)
    }

    /// Returns the function whose program has automatic addresses.
    pub(super) const fn automatic(&self) -> Option<usize> {
        self.automatic
    }

    /// Returns whether two functions are those of queues of one program.
    pub(super) fn are_of_one_program(&self, function: usize, other: usize) -> bool {
        let queue = self.queues.queue_of(function);
        queue.is_some_and(|queue| self.queues.functions_of(queue).contains(other))
    }

    /// Returns the functions that have claimed an address, or a part of its ports.
    pub(super) fn functions_of(&self, addr: IpAddr) -> FunctionSet {
        self.addresses.get(&addr).map_or(FunctionSet::NONE, |claimed| claimed.functions)
    }

    /// Returns the functions that have claimed an IPv6 address.
    pub(super) const fn functions_of_v6(&self) -> FunctionSet {
        self.of_v6
    }
}

/// Checks a claim without regard to others.
fn check_form(claim: &AddressClaim) -> Result<(), AttachRefusal> {
    let AddressClaim { addrs, ports, queue, automatic } = claim;
    let is_distinct = |index: usize| !addrs[..index].contains(&addrs[index]);
    if addrs.len() > AddressClaim::ADDRS_MAX
        || (addrs.is_empty() && !automatic)
        || (*automatic && *ports != PortClaim::All)
        || !(0..addrs.len()).all(is_distinct)
        || !addrs.iter().all(is_host_address)
    {
        return Err(AttachRefusal::BadRequest);
    }
    if queue.is_some_and(|queue| !is_well_formed(queue, ports)) {
        return Err(AttachRefusal::BadRequest);
    }
    let (PortClaim::Listed(ranges) | PortClaim::Shared(ranges)) = ports else { return Ok(()) };
    let is_apart = |index: usize| ranges[..index].iter().all(|r| !r.overlaps(ranges[index]));
    if ranges.len() > AddressClaim::RANGES_MAX
        || ranges.iter().any(|range| range.first == 0 || range.first > range.last)
        || !(0..ranges.len()).all(is_apart)
    {
        return Err(AttachRefusal::BadRequest);
    }
    if ranges.iter().any(|range| range.last >= OUTGOING_FIRST) {
        return Err(AttachRefusal::ReservedPort);
    }
    Ok(())
}

/// Returns whether a queue is one of several, and may claim these ports. Programs that share ports
/// are distinguished by their flows, not by a seed.
fn is_well_formed(queue: ClaimedQueue, ports: &PortClaim) -> bool {
    let ClaimedQueue { index, queues, quic, .. } = queue;
    let steers = |quic: QuicSteering| {
        quic.queues == queues.into() && usize::from(quic.id_bytes) <= CID_BYTES_MAX
    };
    (1..=ClaimedQueue::QUEUES_MAX).contains(&queues)
        && index < queues
        && quic.is_none_or(steers)
        && !matches!(ports, PortClaim::Shared(_))
}

/// Returns whether an address is that of one host, and not of a link or a process.
fn is_host_address(addr: &IpAddr) -> bool {
    let is_local = match addr {
        IpAddr::V4(v4) => v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !is_local && !addr.is_unspecified() && !addr.is_multicast() && !addr.is_loopback()
}

/// Returns whether a further function of the program with the queues `program`, or one of `own`,
/// may have these ports of an address.
fn is_free(
    claimed: &ClaimedAddress,
    (own, program): (FunctionSet, FunctionSet),
    ports: &PortClaim,
) -> bool {
    let others = claimed.functions.without(own);
    if others.is_empty() {
        return true;
    }
    let (wanted, is_shared) = match ports {
        PortClaim::All => {
            let have_all = claimed.sole.without(own) == others;
            return have_all && others.without(program).is_empty();
        }
        PortClaim::Listed(ranges) => (ranges, false),
        PortClaim::Shared(ranges) => (ranges, true),
    };
    let may_have = |range: &ClaimedRange, ports: &PortRange| {
        let others = range.functions.without(own);
        let may_share = match range.sharing {
            RangeSharing::Exclusive => false,
            RangeSharing::Programs => is_shared,
            RangeSharing::Queues => !is_shared && others.without(program).is_empty(),
        };
        others.is_empty() || (range.ports == *ports && may_share)
    };
    let is_apart = |ports: &PortRange| {
        let from = claimed.ranges.partition_point(|range| range.ports.last < ports.first);
        let mut overlaps = claimed.ranges[from..].iter().take_while(|r| r.ports.overlaps(*ports));
        overlaps.all(|range| may_have(range, ports))
    };
    claimed.sole.is_empty() && wanted.iter().all(is_apart)
}

fn add_ranges(
    claimed: &mut ClaimedAddress,
    function: usize,
    ranges: &[PortRange],
    sharing: RangeSharing,
) {
    for &ports in ranges {
        let at = claimed.ranges.partition_point(|range| range.ports.first < ports.first);
        match claimed.ranges.get_mut(at).filter(|range| range.ports == ports) {
            Some(range) => range.functions.insert(function),
            None => {
                let functions = FunctionSet::only(function);
                claimed.ranges.insert(at, ClaimedRange { ports, functions, sharing });
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const A: [u8; 4] = [10, 0, 0, 1];
    const B: [u8; 4] = [10, 0, 0, 2];

    /// Returns a claim; `ports` has the ranges.
    pub(crate) fn claim(
        addr: [u8; 4],
        ports: fn(alloc::boxed::Box<[PortRange]>) -> PortClaim,
        ranges: &[(u16, u16)],
    ) -> AddressClaim {
        let ranges = ranges.iter().map(|&(first, last)| PortRange { first, last }).collect();
        AddressClaim::new([addr.into()].into(), ports(ranges))
    }

    pub(crate) fn all(addr: [u8; 4]) -> AddressClaim {
        claim(addr, |_| PortClaim::All, &[])
    }

    #[test]
    fn an_address_has_one_owner_or_disjoint_ports() {
        use AttachRefusal::Claimed;
        use PortClaim::{Listed, Shared};
        let mut table = ClaimTable::default();
        assert_eq!(table.insert(0, &all(A)), Ok(None));
        for taken in [claim(A, Listed, &[(80, 80)]), claim(A, Shared, &[(80, 80)])] {
            assert_eq!(table.check(&taken), Err(Claimed));
        }
        assert_eq!(table.check(&all(A)), Err(Claimed));
        assert_eq!(table.owner(A.into(), 60_000), PortOwner::Function(0));
        assert_eq!(table.owner(B.into(), 80), PortOwner::Unclaimed);
        let outgoing = table.insert(2, &claim(B, Listed, &[(8000, 8010), (80, 81)])).unwrap();
        assert_eq!(outgoing, Some(PortRange { first: 62_464, last: 63_487 }));
        assert_eq!(table.check(&claim(B, Listed, &[(79, 80)])), Err(Claimed));
        assert_eq!(table.check(&claim(B, Shared, &[(80, 81)])), Err(Claimed));
        assert_eq!(table.check(&all(B)), Err(Claimed));
        assert!(table.insert(1, &claim(B, Listed, &[(82, 7999)])).is_ok());
        for (port, owner) in [
            (79, PortOwner::Answerer(1)),
            (80, PortOwner::Function(2)),
            (81, PortOwner::Function(2)),
            (82, PortOwner::Function(1)),
            (8005, PortOwner::Function(2)),
            (8011, PortOwner::Answerer(1)),
            (62_463, PortOwner::Answerer(1)),
            (62_464, PortOwner::Function(2)),
            (64_511, PortOwner::Function(1)),
            (65_535, PortOwner::Answerer(1)),
        ] {
            assert_eq!(table.owner(B.into(), port), owner, "{port}");
        }
        table.remove(1);
        assert_eq!(table.owner(B.into(), 79), PortOwner::Answerer(2));
        table.remove(2);
        assert_eq!(table.owner(B.into(), 80), PortOwner::Unclaimed);
        assert!(table.insert(1, &all(B)).is_ok());
    }

    #[test]
    fn functions_share_equal_ranges() {
        use PortClaim::{Listed, Shared};
        let mut table = ClaimTable::default();
        for function in [0, 3] {
            assert!(table.insert(function, &claim(A, Shared, &[(80, 80), (443, 443)])).is_ok());
        }
        for wrong in [claim(A, Shared, &[(80, 81)]), claim(A, Listed, &[(80, 80)])] {
            assert_eq!(table.check(&wrong), Err(AttachRefusal::Claimed));
        }
        let PortOwner::Shared(set) = table.owner(A.into(), 443) else { panic!() };
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3]);
        assert_eq!([0, 1, 2].map(|hash| set.select(hash)), [Some(0), Some(3), Some(0)]);
        table.remove(0);
        assert_eq!(table.owner(A.into(), 443), PortOwner::Shared(FunctionSet::only(3)));
        assert!(table.insert(0, &claim(A, Shared, &[(443, 443)])).is_ok());
        assert_eq!(table.owner(A.into(), 443), PortOwner::Shared(set));
    }

    #[test]
    fn claims_are_extended() {
        use AttachRefusal::{BadRequest, Claimed};
        use PortClaim::Listed;
        let mut table = ClaimTable::default();
        assert!(table.insert(0, &claim(A, Listed, &[(80, 80)])).is_ok());
        assert!(table.insert(1, &claim(A, Listed, &[(443, 443)])).is_ok());
        for (wrong, why) in [
            (claim(A, Listed, &[(80, 80), (443, 443)]), Claimed),
            (all(A), BadRequest),
            (claim(A, Listed, &[(80, 80), (0, 0)]), BadRequest),
            (claim(A, Listed, &[(81, 81)]), BadRequest),
            (claim(B, Listed, &[(80, 80)]), BadRequest),
        ] {
            assert_eq!(table.extend(0, &wrong), Err(why), "{wrong:?}");
            assert_eq!(table.owner(A.into(), 80), PortOwner::Function(0), "the former claim");
            assert_eq!(table.owner(B.into(), 80), PortOwner::Unclaimed);
        }
        let both = AddressClaim {
            addrs: [A.into(), B.into()].into(),
            ..claim(A, Listed, &[(79, 79), (80, 80), (90, 90)])
        };
        assert_eq!(table.extend(0, &both), Ok(()));
        for (addr, port, owner) in [
            (A, 79, PortOwner::Function(0)),
            (B, 80, PortOwner::Function(0)),
            (A, 443, PortOwner::Function(1)),
            (A, 65_535, PortOwner::Function(0)),
        ] {
            assert_eq!(table.owner(addr.into(), port), owner, "{port}");
        }
        assert_eq!(table.check(&claim(B, Listed, &[(90, 90)])), Err(Claimed));
    }

    #[test]
    fn all_and_shared_ports_are_extended() {
        use PortClaim::Shared;
        let (c, d) = ([10, 0, 0, 3], [10, 0, 0, 4]);
        let mut table = ClaimTable::default();
        assert!(table.insert(0, &all(A)).is_ok() && table.insert(1, &all(B)).is_ok());
        let with = |addr: [u8; 4]| AddressClaim { addrs: [A.into(), addr.into()].into(), ..all(A) };
        assert_eq!(table.extend(0, &with(B)), Err(AttachRefusal::Claimed));
        assert_eq!(table.extend(0, &with(c)), Ok(()));
        assert_eq!(table.owner(c.into(), 80), PortOwner::Function(0));
        for function in [2, 3] {
            assert!(table.insert(function, &claim(d, Shared, &[(80, 80)])).is_ok());
        }
        let overlapping = claim(d, Shared, &[(80, 80), (443, 444)]);
        assert_eq!(table.extend(2, &overlapping), Ok(()));
        let overlapping = claim(d, Shared, &[(80, 80), (443, 443)]);
        assert_eq!(table.extend(3, &overlapping), Err(AttachRefusal::Claimed));
        assert_eq!(table.extend(3, &claim(d, Shared, &[(80, 80), (443, 444)])), Ok(()));
        let PortOwner::Shared(set) = table.owner(d.into(), 443) else { panic!() };
        assert_eq!(set.iter().collect::<Vec<_>>(), [2, 3]);
    }

    /// Returns the claim of a queue of the program with this seed.
    pub(crate) fn queue_claim(seed: u64, index: u8, queues: u8, of: AddressClaim) -> AddressClaim {
        AddressClaim { queue: Some(ClaimedQueue { seed, index, queues, quic: None }), ..of }
    }

    /// The queues of a program claim the same, each once, and no other program joins them.
    #[test]
    fn queues_of_one_program_have_the_same_ports() {
        use AttachRefusal::{BadRequest, Claimed};
        use PortClaim::{Listed, Shared};
        let of = |index, of: &AddressClaim| queue_claim(7, index, 3, of.clone());
        let listed = claim(B, Listed, &[(80, 80), (443, 443)]);
        let mut table = ClaimTable::default();
        for (claim, other, functions) in
            [(all(A), &listed, [4, 1]), (listed.clone(), &all(A), [2, 3])]
        {
            let addr = claim.addrs[0];
            let [first, second] = functions;
            assert!(table.insert(first, &of(2, &claim)).is_ok());
            for wrong in [
                claim.clone(),
                of(2, &claim),
                queue_claim(8, 0, 3, claim.clone()),
                queue_claim(7, 0, 2, claim.clone()),
                AddressClaim { addrs: claim.addrs.clone(), ..of(1, other) },
                AddressClaim { ports: Shared([PortRange::of_port(80)].into()), ..claim.clone() },
            ] {
                assert_eq!(table.check(&wrong), Err(Claimed), "{wrong:?}");
            }
            assert!(table.insert(second, &of(0, &claim)).is_ok());
            let PortOwner::Queues(set) = table.owner(addr, 443) else { panic!() };
            let [mut sorted, got] = [functions.to_vec(), set.iter().collect::<Vec<_>>()];
            sorted.sort_unstable();
            assert_eq!(got, sorted);
            // The queue and the kind of its ports stay when the claim grows.
            let longer = |claim: &AddressClaim| {
                let addrs = [addr, [10, 0, 0, 9].into()].into();
                AddressClaim { addrs, ..claim.clone() }
            };
            assert_eq!(table.extend(first, &longer(&of(1, &claim))), Err(BadRequest));
            assert_eq!(table.extend(first, &longer(&claim)), Err(BadRequest));
            assert_eq!(table.extend(first, &longer(&of(2, &claim))), Ok(()));
            assert_eq!(table.extend(second, &longer(&of(0, &claim))), Ok(()));
            assert_eq!(table.owner(addr, 443), PortOwner::Queues(set));
            let of_listed = PortRange { first: 1, last: 9 };
            let grown =
                AddressClaim { ports: Listed([of_listed].into()), ..longer(&of(2, &claim)) };
            assert_eq!(table.extend(first, &grown), Err(BadRequest));
            // A queue that is gone comes again.
            table.remove(first);
            assert_eq!(table.check(&of(0, &claim)), Err(Claimed));
            assert!(table.insert(first, &of(2, &claim)).is_ok());
            table.remove(first);
            table.remove(second);
            assert_eq!(table.owner(addr, 443), PortOwner::Unclaimed);
            assert!(table.insert(first, &claim).is_ok());
            table.remove(first);
        }
    }

    #[test]
    fn malformed_claims_are_refused() {
        use AttachRefusal::{BadRequest, ReservedPort};
        use PortClaim::{Listed, Shared};
        let steered = |quic| {
            let queue = ClaimedQueue { seed: 7, index: 0, queues: 2, quic: Some(quic) };
            AddressClaim { queue: Some(queue), ..all(A) }
        };
        let quic = QuicSteering { port: 443, id_bytes: 20, key: 1, queues: 2 };
        let table = ClaimTable::default();
        for (wrong, why) in [
            (claim(A, Listed, &[(0, 9)]), BadRequest),
            (claim(A, Listed, &[(9, 8)]), BadRequest),
            (claim(A, Listed, &[(8, 9), (9, 10)]), BadRequest),
            (claim(A, Listed, &[(1, 1); AddressClaim::RANGES_MAX + 1]), BadRequest),
            (claim(A, Listed, &[(49_152, 49_152)]), ReservedPort),
            (all([0; 4]), BadRequest),
            (all([127, 0, 0, 1]), BadRequest),
            (all([224, 0, 0, 1]), BadRequest),
            (all([255; 4]), BadRequest),
            (AddressClaim::new([].into(), PortClaim::All), BadRequest),
            (AddressClaim { addrs: [A.into(), A.into()].into(), ..all(A) }, BadRequest),
            (AddressClaim { addrs: ["fe80::1".parse().unwrap()].into(), ..all(A) }, BadRequest),
            (AddressClaim { automatic: true, ..claim(A, Listed, &[(80, 80)]) }, BadRequest),
            (queue_claim(7, 0, 0, all(A)), BadRequest),
            (queue_claim(7, 2, 2, all(A)), BadRequest),
            (queue_claim(7, 0, 17, all(A)), BadRequest),
            (queue_claim(7, 0, 2, claim(A, Shared, &[(80, 80)])), BadRequest),
            (steered(QuicSteering { queues: 3, ..quic }), BadRequest),
            (steered(QuicSteering { id_bytes: 21, ..quic }), BadRequest),
        ] {
            assert_eq!(table.check(&wrong), Err(why), "{wrong:?}");
        }
        assert_eq!(table.check(&steered(quic)), Ok(()));
        assert_eq!(table.check(&queue_claim(7, 15, 16, all(A))), Ok(()));
    }
}

//! Router discovery (RFC 4861 section 6.3) and stateless addresses (RFC 4862) of IPv6.
//!
//! Called by [`super::AutoAddrs`]. Addresses have stable identifiers that do not reveal the link
//! address (RFC 7217). Each address, also the link-local one, is checked for duplicates before it
//! is used. Routers are solicited with the intervals of RFC 7559. Any station can forge an
//! advertisement, so the tables are bounded, and a lifetime is not shortened below two hours
//! (RFC 4862 section 5.5.3 e). Of several routers the first that answered is the gateway; router
//! preferences (RFC 4191), DNS servers (RFC 8106) and redirects are not supported.

use alloc::vec::Vec;
use core::hash::Hasher;
use core::net::Ipv6Addr;

use base::{Duration, Instant, Prng};
use siphasher::sip::SipHasher24;
use wire::link_local;
use wire::std_formats::{
    NdiscNeighborFlags, NdiscOption, NdiscOptionType, NdiscPrefixInfoFlags, NdiscRepr,
};

use super::{AutoAddrEvent, AutoOutput, plain_frame};
use crate::config::Cidr;
use crate::net::arp;

/// Maximum number of routers. A link has few; more are ignored and counted.
const ROUTERS_MAX: usize = 4;
/// Maximum number of prefixes, each with an address.
const PREFIXES_MAX: usize = 8;
/// RFC 4861 section 10: MAX_RTR_SOLICITATION_DELAY.
const START_DELAY_MS: u64 = 1000;
/// RFC 4862 section 5.1: one solicitation (DupAddrDetectTransmits), and RETRANS_TIMER.
const DAD_TIME: Duration = Duration::from_secs(1);
/// First interval of router solicitations (RFC 7559 section 2, IRT).
const SOLICIT_MIN: Duration = Duration::from_secs(4);
/// Last interval of router solicitations (RFC 7559 section 2, MRT). Their number has no maximum.
const SOLICIT_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of identifiers that are tried for a prefix (RFC 7217 section 7, IDGEN_RETRIES).
const IDENTIFIERS_MAX: u8 = 3;
/// Lifetime below which an advertisement cannot shorten an address's (RFC 4862 section 5.5.3 e).
const VALID_MIN: Duration = Duration::from_secs(7200);
/// Length of the prefixes that addresses are formed from (RFC 4291 section 2.5.1).
const PREFIX_LEN: u8 = 64;
/// Smallest MTU that is accepted (RFC 8200 section 5).
const MTU_MIN: u16 = 1280;
/// Fixed part of a router advertisement.
const ADVERT_BYTES: usize = 16;
const INFINITE: u32 = u32::MAX;

const ROUTER_ADVERT: u8 = 134;
const NEIGHBOR_SOLICIT: u8 = 135;
const NEIGHBOR_ADVERT: u8 = 136;

/// State of the link-local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkLocalState {
    /// The check begins at this time; `None` until the first call.
    Waiting(Option<Instant>),
    /// Unique unless a station answers until then.
    Tentative(Instant),
    /// In use.
    Valid,
    /// In use by another station: no address is formed (RFC 4862 section 5.4.5).
    Duplicate,
}

/// State of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlaacAddrState {
    /// Unique unless a station answers until then.
    Tentative(Instant),
    /// In use.
    Assigned,
    /// Every identifier that was tried is in use.
    Duplicate,
}

/// An address formed from a prefix.
#[derive(Debug)]
struct SlaacAddr {
    prefix: Ipv6Addr,
    addr: Ipv6Addr,
    /// Identifiers found in use so far.
    conflicts: u8,
    state: SlaacAddrState,
    /// Stations of the prefix are neighbors.
    on_link: bool,
    /// End of the lifetimes; `None` is never.
    preferred_until: Option<Instant>,
    valid_until: Option<Instant>,
    deprecated: bool,
}

#[derive(Debug)]
struct DefaultRouter {
    addr: Ipv6Addr,
    until: Instant,
}

/// A client of router advertisements.
#[derive(Debug)]
pub(super) struct Slaac {
    mac: [u8; 6],
    secret: (u64, u64),
    prng: Prng,
    link_local: LinkLocalState,
    /// Time and interval of the next router solicitation; `None` once a router has answered.
    solicit: Option<(Instant, Duration)>,
    addrs: Vec<SlaacAddr>,
    routers: Vec<DefaultRouter>,
    mtu: Option<u16>,
    /// No host answers neighbor solicitations yet.
    answers: bool,
}

impl Slaac {
    pub(super) const fn new(mac: [u8; 6], secret: (u64, u64), prng: Prng) -> Self {
        Self {
            mac,
            secret,
            prng,
            link_local: LinkLocalState::Waiting(None),
            solicit: None,
            addrs: Vec::new(),
            routers: Vec::new(),
            mtu: None,
            answers: true,
        }
    }

    /// Returns the addresses in use, preferred ones before deprecated ones.
    pub(super) fn addrs(&self) -> impl Iterator<Item = Cidr> + '_ {
        let used = |deprecated: bool| {
            self.addrs
                .iter()
                .filter(move |a| a.state == SlaacAddrState::Assigned && a.deprecated == deprecated)
        };
        used(false).chain(used(true)).map(|a| Cidr {
            addr: a.addr.into(),
            prefix_len: if a.on_link { PREFIX_LEN } else { 128 },
        })
    }

    /// Returns the default router.
    pub(super) fn router(&self, now: Instant) -> Option<Ipv6Addr> {
        self.routers.iter().find(|router| router.until > now).map(|router| router.addr)
    }

    pub(super) const fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let of_link_local = match self.link_local {
            LinkLocalState::Waiting(at) => Some(at.unwrap_or(Instant::ZERO)),
            LinkLocalState::Tentative(until) => Some(until),
            LinkLocalState::Valid => None,
            LinkLocalState::Duplicate => return None,
        };
        let of_addrs = self.addrs.iter().flat_map(|a| {
            let checked = match a.state {
                SlaacAddrState::Tentative(until) => Some(until),
                _ => None,
            };
            let deprecated = a.preferred_until.filter(|_| !a.deprecated);
            [checked, deprecated, a.valid_until].into_iter().flatten()
        });
        Instant::earliest([
            of_link_local,
            self.solicit.map(|(at, _)| at),
            of_addrs.min(),
            self.routers.iter().map(|router| router.until).min(),
        ])
    }

    pub(super) fn handle_timeout(&mut self, out: &mut AutoOutput, now: Instant) {
        match self.link_local {
            LinkLocalState::Waiting(None) => {
                let delay = Duration::from_millis(self.prng.below(START_DELAY_MS));
                self.link_local = LinkLocalState::Waiting(Some(now + delay));
            }
            LinkLocalState::Waiting(Some(at)) if at <= now => {
                self.send_dad_solicit(out, link_local(self.mac));
                self.link_local = LinkLocalState::Tentative(now + DAD_TIME);
            }
            LinkLocalState::Tentative(until) if until <= now => {
                self.link_local = LinkLocalState::Valid;
                self.solicit = Some((now, SOLICIT_MIN));
            }
            LinkLocalState::Duplicate => return,
            _ => {}
        }
        if let Some((at, interval)) = self.solicit.filter(|&(at, _)| at <= now) {
            debug_assert!(at <= now, "it is due");
            self.send_router_solicit(out);
            // RFC 8415 section 15: plus or minus a tenth.
            let tenth = interval.as_millis() / 10;
            let varied = interval.as_millis() - tenth + self.prng.below(2 * tenth + 1);
            let doubled = Duration::from_millis(interval.as_millis() * 2).min(SOLICIT_MAX);
            self.solicit = Some((now + Duration::from_millis(varied), doubled));
        }
        self.expire(out, now);
    }

    /// Assigns the addresses that no station claimed in time, and ends lifetimes.
    fn expire(&mut self, out: &mut AutoOutput, now: Instant) {
        self.addrs.retain_mut(|a| {
            if matches!(a.state, SlaacAddrState::Tentative(until) if until <= now) {
                a.state = SlaacAddrState::Assigned;
                out.counters.slaac_assigned += 1;
            }
            a.deprecated |= a.preferred_until.is_some_and(|until| until <= now);
            let is_valid = a.valid_until.is_none_or(|until| until > now);
            out.counters.slaac_expired += u64::from(!is_valid);
            is_valid
        });
        let before = self.routers.len();
        self.routers.retain(|router| router.until > now);
        if before > 0 && self.routers.is_empty() {
            self.solicit = Some((now, SOLICIT_MIN));
        }
    }

    /// Handles a message of neighbor discovery with a correct checksum. `from` are its source and
    /// hop limit, `link_source` its source's link address.
    pub(super) fn handle_message(
        &mut self,
        out: &mut AutoOutput,
        now: Instant,
        from: (Ipv6Addr, u8),
        link_source: &[u8],
        body: &[u8],
    ) {
        let (source, hop_limit) = from;
        let on_link = hop_limit == 255 && body.get(1) == Some(&0);
        match body.first() {
            Some(&ROUTER_ADVERT) => {
                let is_running = self.link_local == LinkLocalState::Valid;
                if !is_running {
                    return;
                }
                if on_link && source.is_unicast_link_local() && has_valid_options(body) {
                    out.counters.router_adverts += 1;
                    self.handle_advert(out, now, source, body);
                } else {
                    out.counters.router_adverts_invalid += 1;
                }
            }
            Some(&NEIGHBOR_SOLICIT) if on_link && !source.is_unspecified() => {
                self.answer_solicit(out, source, link_source, body);
            }
            // An advertisement of the address, or a solicitation of a station that checks it too.
            Some(&kind @ (NEIGHBOR_SOLICIT | NEIGHBOR_ADVERT)) if on_link => {
                let claims = kind == NEIGHBOR_ADVERT || source.is_unspecified();
                let target = body.get(8..24).and_then(|t| <[u8; 16]>::try_from(t).ok());
                if let Some(target) = target.filter(|_| claims && link_source != self.mac) {
                    self.handle_claim(out, now, target.into());
                }
            }
            _ => {}
        }
    }

    /// Answers a router that looks for our link-local address, to send its advertisement there.
    fn answer_solicit(
        &self,
        out: &mut AutoOutput,
        source: Ipv6Addr,
        link_source: &[u8],
        body: &[u8],
    ) {
        let ours = link_local(self.mac);
        let is_ours = body.get(8..24) == Some(&ours.octets()[..]);
        let Ok(to_mac) = <[u8; 6]>::try_from(link_source) else { return };
        if !self.answers || !is_ours || self.link_local != LinkLocalState::Valid {
            return;
        }
        let repr = NdiscRepr::NeighborAdvert {
            flags: NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE,
            target_addr: ours,
            lladdr: Some(arp::raw(self.mac)),
        };
        out.send(arp::ndisc_frame(self.mac, ours, (source, to_mac), repr).map(plain_frame));
    }

    /// Leaves the answers to neighbor solicitations to the host.
    pub(super) const fn stop_answering(&mut self) {
        self.answers = false;
    }

    /// Handles a message of another station that uses `target`.
    fn handle_claim(&mut self, out: &mut AutoOutput, now: Instant, target: Ipv6Addr) {
        if target == link_local(self.mac) {
            if matches!(self.link_local, LinkLocalState::Tentative(_)) {
                self.link_local = LinkLocalState::Duplicate;
                out.counters.dad_conflicts += 1;
                out.report(AutoAddrEvent::Duplicate(target));
            }
            return;
        }
        let is_tentative = |a: &&mut SlaacAddr| matches!(a.state, SlaacAddrState::Tentative(_));
        let Some(entry) = self.addrs.iter_mut().find(|a| a.addr == target).filter(is_tentative)
        else {
            return;
        };
        out.counters.dad_conflicts += 1;
        out.report(AutoAddrEvent::Duplicate(target));
        entry.conflicts += 1;
        if entry.conflicts == IDENTIFIERS_MAX {
            entry.state = SlaacAddrState::Duplicate;
            return;
        }
        entry.addr = stable_addr(self.secret, self.mac, entry.prefix, entry.conflicts);
        entry.state = SlaacAddrState::Tentative(now + DAD_TIME);
        let addr = entry.addr;
        self.send_dad_solicit(out, addr);
    }

    /// Handles a router advertisement whose options are well-formed.
    fn handle_advert(&mut self, out: &mut AutoOutput, now: Instant, source: Ipv6Addr, body: &[u8]) {
        let lifetime = u64::from(u16::from_be_bytes([body[6], body[7]]));
        self.set_router(out, now, source, Duration::from_secs(lifetime));
        for option in options(body).flatten() {
            match option.option_type() {
                NdiscOptionType::Mtu => {
                    let mtu = u16::try_from(option.mtu()).unwrap_or(u16::MAX);
                    self.mtu = (mtu >= MTU_MIN).then_some(mtu).or(self.mtu);
                }
                NdiscOptionType::PrefixInformation => self.handle_prefix(out, now, &option),
                _ => {}
            }
        }
    }

    fn set_router(
        &mut self,
        out: &mut AutoOutput,
        now: Instant,
        addr: Ipv6Addr,
        lifetime: Duration,
    ) {
        let until = now + lifetime;
        if lifetime == Duration::ZERO {
            self.routers.retain(|router| router.addr != addr);
            return;
        }
        self.solicit = None;
        if let Some(router) = self.routers.iter_mut().find(|router| router.addr == addr) {
            router.until = until;
        } else if self.routers.len() < ROUTERS_MAX {
            self.routers.push(DefaultRouter { addr, until });
        } else {
            out.counters.router_table_full += 1;
        }
    }

    /// Handles a prefix: RFC 4862 section 5.5.3.
    fn handle_prefix(&mut self, out: &mut AutoOutput, now: Instant, option: &NdiscOption<&[u8]>) {
        let flags = option.prefix_flags();
        let prefix = option.prefix();
        let seconds = |at: usize| {
            let field = option.data().get(at..at + 4).and_then(|f| <[u8; 4]>::try_from(f).ok());
            field.map_or(0, u32::from_be_bytes)
        };
        // After type and length, prefix length and flags.
        let (valid, preferred) = (seconds(2), seconds(6));
        let ignored = !flags.contains(NdiscPrefixInfoFlags::ADDRCONF)
            || option.prefix_len() != PREFIX_LEN
            || prefix.is_unicast_link_local()
            || prefix.is_multicast()
            || prefix.is_unspecified()
            || preferred > valid;
        if ignored {
            return;
        }
        let prefix = Ipv6Addr::from_bits(prefix.to_bits() & !u128::from(u64::MAX));
        let end =
            |seconds: u32| (seconds != INFINITE).then(|| now + Duration::from_secs(seconds.into()));
        let on_link = flags.contains(NdiscPrefixInfoFlags::ON_LINK);
        if let Some(entry) = self.addrs.iter_mut().find(|a| a.prefix == prefix) {
            entry.preferred_until = end(preferred);
            entry.deprecated = preferred == 0;
            entry.on_link |= on_link;
            entry.valid_until = extended_validity(now, entry.valid_until, valid, end(valid));
        } else if valid == 0 {
            // It never was in use.
        } else if self.addrs.len() < PREFIXES_MAX {
            let addr = stable_addr(self.secret, self.mac, prefix, 0);
            self.addrs.push(SlaacAddr {
                prefix,
                addr,
                conflicts: 0,
                state: SlaacAddrState::Tentative(now + DAD_TIME),
                on_link,
                preferred_until: end(preferred),
                valid_until: end(valid),
                deprecated: preferred == 0,
            });
            self.send_dad_solicit(out, addr);
        } else {
            out.counters.router_table_full += 1;
        }
    }

    /// Sends the solicitation that detects duplicates: from the unspecified address, without a link
    /// address (RFC 4862 section 5.4.2).
    fn send_dad_solicit(&self, out: &mut AutoOutput, target: Ipv6Addr) {
        let repr = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: None };
        let group = arp::solicited_node(target);
        let frame = arp::ndisc_frame(
            self.mac,
            Ipv6Addr::UNSPECIFIED,
            (group, arp::multicast_mac(group)),
            repr,
        );
        out.send(frame.map(plain_frame));
    }

    fn send_router_solicit(&self, out: &mut AutoOutput) {
        out.counters.router_solicitations += 1;
        let repr = NdiscRepr::RouterSolicit { lladdr: Some(arp::raw(self.mac)) };
        let to = (arp::ALL_ROUTERS, arp::multicast_mac(arp::ALL_ROUTERS));
        let frame = arp::ndisc_frame(self.mac, link_local(self.mac), to, repr);
        out.send(frame.map(plain_frame));
    }
}

/// Returns the end of an address's validity after an advertisement with `seconds`, which end at
/// `end`: rules 1 to 3 of RFC 4862 section 5.5.3 e. `None` is never.
fn extended_validity(
    now: Instant,
    current: Option<Instant>,
    seconds: u32,
    end: Option<Instant>,
) -> Option<Instant> {
    let new = end?;
    let long = Duration::from_secs(seconds.into()) > VALID_MIN;
    let extends = current.is_some_and(|current| new > current);
    if long || extends {
        return end;
    }
    match current {
        Some(current) if current.since(now) <= VALID_MIN => Some(current),
        _ => Some(now + VALID_MIN),
    }
}

/// Returns the address of a prefix with a stable identifier (RFC 7217 section 5), after
/// `conflicts` identifiers were found in use.
fn stable_addr(secret: (u64, u64), mac: [u8; 6], prefix: Ipv6Addr, conflicts: u8) -> Ipv6Addr {
    let mut hasher = SipHasher24::new_with_keys(secret.0, secret.1);
    hasher.write(&prefix.octets()[..8]);
    hasher.write(&mac);
    hasher.write(&[conflicts]);
    // The subnet-router anycast address has the identifier zero (RFC 4291 section 2.6.1).
    let identifier = hasher.finish().max(1);
    Ipv6Addr::from_bits(prefix.to_bits() | u128::from(identifier))
}

/// Returns the options of a router advertisement: `None` for one that is malformed, which is the
/// last.
fn options(body: &[u8]) -> impl Iterator<Item = Option<NdiscOption<&[u8]>>> {
    let mut rest = body.get(ADVERT_BYTES..);
    core::iter::from_fn(move || {
        let bytes = rest.filter(|rest| !rest.is_empty())?;
        let option = NdiscOption::new_checked(bytes).ok();
        let len = option.as_ref().map_or(0, |option| usize::from(option.data_len()) * 8);
        rest = if len > 0 { bytes.get(len..) } else { None };
        Some(option.filter(|_| len > 0))
    })
}

/// Returns whether a router advertisement is complete and has no malformed option (RFC 4861 section
/// 6.1.2).
fn has_valid_options(body: &[u8]) -> bool {
    body.len() >= ADVERT_BYTES && options(body).all(|option| option.is_some())
}

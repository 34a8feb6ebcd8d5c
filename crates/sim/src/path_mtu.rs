//! Path MTU discovery in a scenario: a link in the middle that drops large frames silently, a
//! "black hole" (RFC 2923 section 2.1), and the discovery that the hosts use.
//!
//! Applied by [`crate::net`] and to the hosts' configurations. Every host finds the path MTU
//! without ICMP, so all transfers complete; [`crate::checkers::path_mtu`] checks the counters.

use base::{Duration, Instant, Prng};
use host::MtuProbing;
use wire::ETHERNET_BYTES;
use wire::frame::{ParsedFrame, parse, protocol};

const SALT: u64 = 0x3741_0f0b;
/// Minimum of IPv6 (RFC 8200 section 5).
const MTU_MIN_V6: usize = 1_280;

/// A link in the middle of all paths with a smaller MTU than the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlackHole {
    /// Its MTU over IPv4; over IPv6 at least the minimum of that. Datagrams pass: quinn-proto has
    /// its own discovery, and a debug assertion that fails if a handshake needs several attempts.
    mtu: u16,
    /// Time from which all frames cross it.
    from: Instant,
}

impl BlackHole {
    /// Returns whether the link drops a frame, or a run of segments with `segment_size` bytes of
    /// payload, 0 for a single one. A run is dropped as a whole.
    pub(crate) fn drops(self, at: Instant, bytes: &[u8], segment_size: u16) -> bool {
        if at < self.from || bytes.len() <= ETHERNET_BYTES + usize::from(self.mtu) {
            return false;
        }
        let Ok(ParsedFrame::Ip(ip)) = parse(bytes) else { return false };
        if ip.protocol != protocol::TCP {
            return false;
        }
        let v4 = bytes[ip.l3] >> 4 == 4;
        let header = bytes.get(ip.l4 + 12).map_or(0, |offset| usize::from(offset >> 4) * 4);
        let packet = match segment_size {
            0 => ip.end - ip.l3,
            size => ip.l4 - ip.l3 + header + usize::from(size),
        };
        let mtu = usize::from(self.mtu);
        packet > if v4 { mtu } else { mtu.max(MTU_MIN_V6) }
    }
}

/// Path MTUs and their discovery in a scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathMtuScenario {
    pub(crate) black_hole: Option<BlackHole>,
    /// Discovery by servers and by other hosts.
    pub(crate) probing: [MtuProbing; 2],
}

impl PathMtuScenario {
    /// Uses a generator of its own: the rest of the scenario does not depend on these draws.
    /// `may_drop` is true if large frames may be lost; faults last for `fault_time`.
    pub(crate) fn draw(seed: u64, may_drop: bool, link_mtu: u16, fault_time: Duration) -> Self {
        let r = &mut Prng::new(seed ^ SALT);
        let drops = r.chance(0.35) && may_drop;
        let mtu = if r.chance(0.3) { r.range(576, 1_279) } else { r.range(1_280, 1_499) };
        let from = if r.chance(0.3) { 0 } else { r.below(fault_time.as_nanos()) };
        let probing = [(); 2].map(|()| match r.below(10) {
            // A host without discovery does not get through a black hole.
            0 if !drops => MtuProbing::Off,
            1..=3 => MtuProbing::Always,
            _ => MtuProbing::BlackHole,
        });
        let mtu = mtu as u16;
        let black_hole =
            (drops && mtu < link_mtu).then(|| BlackHole { mtu, from: Instant::from_nanos(from) });
        Self { black_hole, probing }
    }
}

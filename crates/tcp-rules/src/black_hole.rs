//! Paths that drop large packets and report nothing (RFC 2923 section 2.1): the number of time-outs
//! after which smaller segments are sent, and their size.
//!
//! Called by the host for its connections; the device gets the smaller size from the host, and
//! applies it to connections that it tears down after as many time-outs.

use core::net::IpAddr;

/// Consecutive time-outs of one segment after which the path is thought to drop segments of its
/// size: R1 of RFC 1122 section 4.2.3.5, and Linux's `tcp_retries1`. RFC 4821 section 7.7 has the
/// response to such time-outs.
pub const BLACK_HOLE_TIMEOUTS: u8 = 3;

/// MTU that nearly every path has, for IPv4 and IPv6: with RFC 4821 section 7.2's 1024 bytes of
/// payload (Linux: `tcp_base_mss`), and IPv6's minimum.
const BASE_MTU: [u16; 2] = [1064, 1280];
/// MTU that every path has: what an IPv4 host must accept (RFC 791). A packet of IPv6 may be
/// translated to one of IPv4 on its way (RFC 7915), by a device that splices two connections for
/// example, and loses 20 bytes thereby.
const LEAST_MTU: [u16; 2] = [576, 596];

/// Returns the MTU that every link of a path must have: what an IPv4 host must accept (RFC 791), or
/// the minimum of IPv6 (RFC 8200 section 5). A router that reports less is not believed.
#[must_use]
pub const fn minimum_mtu(addr: IpAddr) -> u16 {
    if addr.is_ipv4() { 576 } else { 1280 }
}

/// Returns the MTU to be assumed on a path that drops packets of `mtu` bytes: first one that nearly
/// every path has, then one that every path has. `None` if packets are as small as that.
#[must_use]
pub const fn mtu_below(addr: IpAddr, mtu: u16) -> Option<u16> {
    let family = addr.is_ipv6() as usize;
    let (base, least) = (BASE_MTU[family], LEAST_MTU[family]);
    match mtu {
        _ if mtu > base => Some(base),
        _ if mtu > least => Some(least),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_end_at_what_every_path_carries() {
        let [v4, v6] = ["10.0.0.1", "fd77::1"].map(|addr| addr.parse().unwrap());
        assert_eq!(mtu_below(v4, 9000), Some(1064));
        assert_eq!(mtu_below(v4, 1064), Some(576));
        assert_eq!(mtu_below(v4, 576), None);
        assert_eq!(mtu_below(v6, 1500), Some(1280));
        assert_eq!(mtu_below(v6, 1280), Some(596));
        assert_eq!(mtu_below(v6, 596), None);
        assert_eq!([v4, v6].map(minimum_mtu), [576, 1280]);
    }
}

//! The rules of the XDP program as a function, for comparison.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::RedirectRules;

/// Returns whether the program redirects a frame.
pub(super) fn is_redirected(rules: &RedirectRules, frame: &[u8]) -> bool {
    decide(rules, frame).unwrap_or(false)
}

/// Returns `None` if the frame is too short for the decision: it is the kernel's.
fn decide(rules: &RedirectRules, frame: &[u8]) -> Option<bool> {
    let is_ours = |addr: IpAddr| rules.addrs.contains(&addr);
    let body = frame.get(14..)?;
    match number(frame, 12)? {
        0x0806 => {
            let fixed = body.get(..28)?;
            let is_ipv4 = number(fixed, 2)? == 0x0800 && number(fixed, 4)? == 0x0604;
            Some(rules.shared.is_none() && is_ipv4 && is_ours(ipv4(fixed, 24)?))
        }
        0x0800 => {
            let header = body.get(..20)?;
            if !is_ours(ipv4(header, 16)?) || rules.shared.is_none() {
                return Some(is_ours(ipv4(header, 16)?));
            }
            let len = usize::from(header[0] & 15) * 4;
            if number(header, 6)? & 0x3fff != 0 || len < 20 {
                return Some(false);
            }
            by_transport(rules, header[9], body.get(len..)?)
        }
        0x86dd => {
            let header = body.get(..40)?;
            let ours = is_ours(ipv6(header, 24)?);
            if rules.shared.is_some() {
                return if ours {
                    by_transport(rules, header[6], &body[40..])
                } else {
                    Some(false)
                };
            }
            let solicits = || header[6] == 58 && body.len() >= 64 && body[40] == 135;
            Some(ours || (solicits() && is_ours(ipv6(body, 48)?)))
        }
        _ => Some(false),
    }
}

fn by_transport(rules: &RedirectRules, protocol: u8, packet: &[u8]) -> Option<bool> {
    packet.get(..8)?;
    match (protocol, packet[0]) {
        (1, 3 | 11 | 12) => {
            let inner = packet.get(8..32)?;
            Some(inner[0] == 0x45 && has_port(rules, inner[9], number(inner, 20)?))
        }
        (58, 1..=4) => {
            let inner = packet.get(8..52)?;
            Some(has_port(rules, inner[6], number(inner, 40)?))
        }
        (1 | 58, _) => Some(false),
        _ => Some(has_port(rules, protocol, number(packet, 2)?)),
    }
}

fn has_port(rules: &RedirectRules, protocol: u8, port: u16) -> bool {
    let shared = rules.shared.as_ref().expect("only of a shared address");
    [6, 17].contains(&protocol)
        && (shared.listeners.contains(&port) || shared.active.contains(&port))
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn ipv4(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets).into())
}

fn ipv6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
}

//! XDP features that a driver reports, by the generic netlink family `netdev` (Linux 6.3).
//!
//! Called by `outboard doctor`. Reads only: no program is attached.

use std::io::{self, Read};

use crate::netlink::{HEAD_BYTES, NLMSG_ERROR, attribute, open_socket, send};

/// Type of messages to the controller of generic netlink, which knows the families.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// Size of `struct genlmsghdr`: command, version, reserved.
const GENL_HEAD_BYTES: usize = 4;
/// Bits of the features.
const BASIC: u64 = 1;
const ZERO_COPY: u64 = 8;

/// XDP features of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures {
    /// True if the driver runs XDP programs itself.
    pub native: bool,
    /// True if AF_XDP sockets need no copy of a frame.
    pub zero_copy: bool,
}

/// Returns the XDP features of the interface with this index.
///
/// # Errors
/// If the kernel does not have the family `netdev`, or no such interface.
pub fn xdp_features(index: u32) -> io::Result<XdpFeatures> {
    let family = ask(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, b"netdev\0")?;
    let no_answer = || io::Error::other("no answer of generic netlink");
    let family = find(&family, CTRL_ATTR_FAMILY_ID).ok_or_else(no_answer)?;
    let family = u16::from_ne_bytes(family.try_into().map_err(|_| no_answer())?);
    let device = ask(family, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes())?;
    let bits = find(&device, NETDEV_A_DEV_XDP_FEATURES).ok_or_else(no_answer)?;
    let bits = u64::from_ne_bytes(bits.try_into().map_err(|_| no_answer())?);
    Ok(XdpFeatures { native: bits & BASIC != 0, zero_copy: bits & ZERO_COPY != 0 })
}

/// Sends a command with one attribute, and returns the attributes of its answer.
fn ask(family: u16, command: u8, kind: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    let mut socket = open_socket(libc::NETLINK_GENERIC, 0)?;
    let mut body = vec![command, 1, 0, 0];
    attribute(&mut body, kind, value);
    send(&mut socket, family, 0, &body)?;
    let mut answer = [0; 8192];
    let len = socket.read(&mut answer)?;
    let answer = &answer[..len];
    let is_error = answer.get(4..6) == Some(&NLMSG_ERROR.to_ne_bytes());
    let body = answer.get(HEAD_BYTES..).unwrap_or_default();
    if is_error {
        let errno =
            body.get(..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
        return Err(io::Error::from_raw_os_error(errno.saturating_neg()));
    }
    Ok(body.get(GENL_HEAD_BYTES..).unwrap_or_default().to_vec())
}

/// Returns the value of an attribute.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let half =
            |at: usize| Some(u16::from_ne_bytes(attributes.get(at..at + 2)?.try_into().ok()?));
        let len = usize::from(half(0)?);
        let value = attributes.get(4..len)?;
        if half(2)? == kind {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_with_any_length() {
        let mut all = Vec::new();
        attribute(&mut all, 2, b"netdev\0");
        attribute(&mut all, 1, &[7, 0]);
        assert_eq!((find(&all, 2), find(&all, 1)), (Some(&b"netdev\0"[..]), Some(&[7, 0][..])));
        assert_eq!(find(&all, 3), None);
        for len in 0..all.len() {
            assert!(find(&all[..len], 3).is_none());
        }
        assert_eq!(find(&[0, 0, 1, 0], 1), None);
    }

    #[test]
    fn the_loopback_interface_has_none_of_its_own() {
        // Kernels before 6.3 return an error.
        if let Ok(features) = xdp_features(1) {
            assert!(!features.zero_copy, "{features:?}");
            assert!(xdp_features(0x7fff_fff0).is_err());
        }
    }
}

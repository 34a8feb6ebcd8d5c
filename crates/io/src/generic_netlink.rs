//! Generic netlink (genetlink(7)): questions to a family of the kernel, and its multicast groups.
//!
//! Called by [`crate::xdp_features`] and [`crate::queue_events`], rarely. Answers come from the
//! kernel only, but are parsed with every length checked.

use std::io::{self, Read};

use crate::netlink::{HEAD_BYTES, NLMSG_ERROR, attribute, open_socket, send};

/// Type of messages to the controller, which knows the families.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;
/// Size of `struct genlmsghdr`: command, version, reserved.
const GENL_HEAD_BYTES: usize = 4;

/// A family, as the controller describes it.
pub(crate) struct GenericFamily {
    attributes: Vec<u8>,
}

impl GenericFamily {
    /// Asks for a family by its name.
    ///
    /// # Errors
    /// If the kernel does not have it.
    pub(crate) fn find(name: &str) -> io::Result<Self> {
        let name = [name.as_bytes(), &[0]].concat();
        let attributes = ask(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, &name)?;
        Ok(Self { attributes })
    }

    /// Sends the family a command with one attribute, and returns the attributes of its answer.
    pub(crate) fn ask(&self, command: u8, kind: u16, value: &[u8]) -> io::Result<Vec<u8>> {
        let family = find(&self.attributes, CTRL_ATTR_FAMILY_ID);
        let family = family.and_then(|id| id.try_into().ok()).ok_or_else(no_answer)?;
        ask(u16::from_ne_bytes(family), command, kind, value)
    }

    /// Returns the number of a multicast group of the family.
    pub(crate) fn group(&self, name: &str) -> io::Result<u32> {
        let mut groups = find(&self.attributes, CTRL_ATTR_MCAST_GROUPS).unwrap_or_default();
        let name = [name.as_bytes(), &[0]].concat();
        while let Some((_, group, rest)) = split(groups) {
            if find(group, CTRL_ATTR_MCAST_GRP_NAME) == Some(&name) {
                let id = find(group, CTRL_ATTR_MCAST_GRP_ID).and_then(|id| id.try_into().ok());
                return id.map(u32::from_ne_bytes).ok_or_else(no_answer);
            }
            groups = rest;
        }
        Err(no_answer())
    }
}

pub(crate) fn no_answer() -> io::Error {
    io::Error::other("no answer of generic netlink")
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

/// Splits attributes into the kind and value of the first, and the rest.
fn split(attributes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let half = |at: usize| Some(u16::from_ne_bytes(attributes.get(at..at + 2)?.try_into().ok()?));
    let len = usize::from(half(0)?);
    let value = attributes.get(4..len)?;
    let rest = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
    // The upper bits mark nested attributes (NLA_F_NESTED).
    Some((half(2)? & 0x3fff, value, rest))
}

/// Returns the value of an attribute.
pub(crate) fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some((kind, value, rest)) = split(attributes) {
        if kind == wanted {
            return Some(value);
        }
        attributes = rest;
    }
    None
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
    fn groups_are_found_by_name() {
        let (mut group, mut groups, mut attributes) = (Vec::new(), Vec::new(), Vec::new());
        attribute(&mut group, CTRL_ATTR_MCAST_GRP_ID, &9_u32.to_ne_bytes());
        attribute(&mut group, CTRL_ATTR_MCAST_GRP_NAME, b"monitor\0");
        attribute(&mut groups, 1, &group);
        attribute(&mut attributes, CTRL_ATTR_MCAST_GROUPS, &groups);
        let family = GenericFamily { attributes };
        assert_eq!(family.group("monitor").unwrap(), 9);
        assert!(family.group("mon").is_err());
    }
}

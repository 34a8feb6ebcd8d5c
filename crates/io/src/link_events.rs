//! The kernel's reports about interfaces (rtnetlink(7), group `RTNLGRP_LINK`).
//!
//! Read by the thread of [`crate::watched_link`]. Messages come from the kernel only, but are
//! parsed with every length checked. No report is lost unnoticed: if the kernel had no room for
//! one, the state is queried again, and the answer is a report as well.
#![expect(unsafe_code, reason = "bind")]

use std::fs::File;
use std::io::{self, Read};
use std::mem::size_of;
use std::os::fd::{AsRawFd, RawFd};

use base::Duration;

use crate::netlink::{
    HEAD_BYTES, IFINFOMSG_BYTES, IFLA_ADDRESS, IFLA_IFNAME, IFLA_MASTER, IFLA_MTU, NLMSG_ERROR,
    interface_message, open_socket, send,
};
use crate::notify::Poller;

/// Size of the buffer for messages; one has up to a few KiB.
const BUFFER_BYTES: usize = 32 * 1024;
/// `RTMGRP_LINK`: the bit of the group `RTNLGRP_LINK`.
const GROUP_LINK: u32 = 1;

/// Time within which the kernel answers a question.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// A report about an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkEvent {
    /// Index of the interface.
    pub(crate) index: u32,
    /// State of the interface; `None` if it was removed.
    pub(crate) state: Option<InterfaceState>,
}

/// State of an interface. A report need not have all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InterfaceState {
    /// Name.
    pub(crate) name: Option<String>,
    /// True if the interface is administratively up (`IFF_UP`).
    pub(crate) is_enabled: bool,
    /// True if it has a carrier (`IFF_LOWER_UP`).
    pub(crate) has_carrier: bool,
    /// MTU in bytes; 65535 if it is larger.
    pub(crate) mtu: Option<u16>,
    /// Link address.
    pub(crate) address: Option<[u8; 6]>,
    /// Hardware type (`ARPHRD_ETHER`, ...).
    pub(crate) hardware: u16,
    /// Index of the bridge or bond that it is a port of.
    pub(crate) master: Option<u32>,
}

/// A socket that receives reports.
#[derive(Debug)]
pub(crate) struct LinkEventSocket {
    socket: File,
    buffer: Vec<u8>,
}

impl LinkEventSocket {
    /// Opens a socket that receives the reports about all interfaces from now on.
    pub(crate) fn open() -> io::Result<Self> {
        let socket = open_socket(libc::NETLINK_ROUTE, libc::SOCK_NONBLOCK)?;
        // SAFETY: a sockaddr_nl is plain data, valid as zeros.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).unwrap_or(0);
        address.nl_groups = GROUP_LINK;
        let len = libc::socklen_t::try_from(size_of::<libc::sockaddr_nl>()).unwrap_or(0);
        // SAFETY: the pointer and the length are those of `address`.
        match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
            0 => Ok(Self { socket, buffer: vec![0; BUFFER_BYTES] }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Asks for a report about the interface with this index.
    pub(crate) fn query(&mut self, index: u32) -> io::Result<()> {
        send(&mut self.socket, libc::RTM_GETLINK, 0, &interface_message(index))
    }

    /// Waits for the report about an interface that was asked for; `None` if it does not exist.
    pub(crate) fn wait_for(&mut self, index: u32) -> io::Result<Option<InterfaceState>> {
        let mut poller = Poller::new();
        poller.add(self.fd());
        self.query(index)?;
        while poller.wait(Some(ANSWER_TIME_MAX))? > 0 {
            let mut answer = None;
            self.read(|event| {
                if event.index == index {
                    answer = Some(event.state);
                }
            });
            if let Some(state) = answer {
                return Ok(state);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Reads reports, and calls `handle` with each. Returns false if the kernel had no room for
    /// some, so that the caller must query the state.
    pub(crate) fn read(&mut self, mut handle: impl FnMut(LinkEvent)) -> bool {
        loop {
            match self.socket.read(&mut self.buffer) {
                Ok(len) => parse(&self.buffer[..len], &mut handle),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
    }

    /// Returns a descriptor that polls readable when there are reports.
    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses netlink messages; stops at one that is malformed.
fn parse(mut bytes: &[u8], handle: &mut impl FnMut(LinkEvent)) {
    while let Some(len) = word(bytes, 0).and_then(|len| usize::try_from(len).ok()) {
        let Some(message) = bytes.get(..len).filter(|_| len >= HEAD_BYTES) else { return };
        let body = &message[HEAD_BYTES..];
        match half(message, 4) {
            Some(libc::RTM_NEWLINK) => parse_interface(body, true).map(&mut *handle),
            Some(libc::RTM_DELLINK) => parse_interface(body, false).map(&mut *handle),
            // The answer to a query about an interface that does not exist: the error number, and
            // the request.
            Some(NLMSG_ERROR) if word(body, 0) != Some(0) => body
                .get(4 + HEAD_BYTES..)
                .and_then(|request| parse_interface(request, false))
                .map(&mut *handle),
            _ => None,
        };
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Parses a `struct ifinfomsg` with its attributes.
fn parse_interface(body: &[u8], exists: bool) -> Option<LinkEvent> {
    // Other families report a role of the interface, such as the port of a bridge.
    if *body.first()? != 0 {
        return None;
    }
    let (index, flags) = (word(body, 4)?, word(body, 8)?);
    let has = |flag: libc::c_int| flags & u32::from_ne_bytes(flag.to_ne_bytes()) != 0;
    let mut state = InterfaceState {
        is_enabled: has(libc::IFF_UP),
        has_carrier: has(libc::IFF_LOWER_UP),
        hardware: half(body, 2)?,
        ..InterfaceState::default()
    };
    let mut rest = body.get(IFINFOMSG_BYTES..)?;
    while let Some(len) = half(rest, 0).map(usize::from) {
        let Some(value) = rest.get(4..len) else { break };
        match half(rest, 2) {
            Some(IFLA_IFNAME) => {
                let name = value.split(|&b| b == 0).next().unwrap_or_default();
                state.name = Some(String::from_utf8_lossy(name).into_owned());
            }
            Some(IFLA_MTU) => {
                state.mtu = word(value, 0).map(|mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
            }
            Some(IFLA_MASTER) => state.master = word(value, 0),
            Some(IFLA_ADDRESS) => state.address = value.try_into().ok(),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(LinkEvent { index, state: exists.then_some(state) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a message of `kind` about interface 7.
    fn message(kind: u16, family: u8, flags: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![family, 0];
        body.extend(libc::ARPHRD_ETHER.to_ne_bytes());
        body.extend(7_u32.to_ne_bytes());
        body.extend(flags.to_ne_bytes());
        body.extend([0; 4]);
        for (kind, value) in attributes {
            body.extend(u16::try_from(4 + value.len()).unwrap().to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut all = u32::try_from(16 + body.len()).unwrap().to_ne_bytes().to_vec();
        all.extend(kind.to_ne_bytes());
        all.extend([0; 10]);
        all.extend(body);
        all
    }

    fn parsed(bytes: &[u8]) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        parse(bytes, &mut |event| events.push(event));
        events
    }

    #[test]
    fn reports_are_parsed() {
        let up = message(
            libc::RTM_NEWLINK,
            0,
            0x1_0001,
            &[
                (3, b"eth0\0"),
                (4, &9000_u32.to_ne_bytes()),
                (1, &[2, 0, 0, 0, 0, 9]),
                (10, &3_u32.to_ne_bytes()),
            ],
        );
        let gone = message(libc::RTM_DELLINK, 0, 0, &[(3, b"eth0\0")]);
        let state = InterfaceState {
            name: Some("eth0".into()),
            is_enabled: true,
            has_carrier: true,
            mtu: Some(9000),
            address: Some([2, 0, 0, 0, 0, 9]),
            hardware: 1,
            master: Some(3),
        };
        let both = [up.as_slice(), &gone].concat();
        let want =
            [LinkEvent { index: 7, state: Some(state) }, LinkEvent { index: 7, state: None }];
        assert_eq!(parsed(&both), want);
        // The end of its membership in a bridge is not the end of the interface.
        let bridge = u8::try_from(libc::AF_BRIDGE).unwrap();
        assert_eq!(parsed(&message(libc::RTM_DELLINK, bridge, 0, &[])), []);
        // Any part of the messages is harmless.
        for len in 0..both.len() {
            assert!(parsed(&both[..len]).len() < 2);
        }
    }

    #[test]
    fn an_unknown_interface_is_removed() {
        let request = message(libc::RTM_GETLINK, 0, 0, &[]);
        let mut error = u32::try_from(16 + 4 + request.len()).unwrap().to_ne_bytes().to_vec();
        error.extend(NLMSG_ERROR.to_ne_bytes());
        error.extend([0; 10]);
        error.extend((-libc::ENODEV).to_ne_bytes());
        error.extend(request);
        assert_eq!(parsed(&error), [LinkEvent { index: 7, state: None }]);
        let mut socket = LinkEventSocket::open().unwrap();
        assert_eq!(socket.wait_for(0x7fff_fff0).unwrap(), None);
        let lo = socket.wait_for(1).unwrap().unwrap();
        assert_eq!((lo.name.as_deref(), lo.hardware), (Some("lo"), libc::ARPHRD_LOOPBACK));
    }
}

//! Configuration of interfaces by rtnetlink(7): addresses of the kernel's end of a TAP, and macvtap
//! interfaces. Also a query for the interfaces that have an address, and the kernel's neighbor
//! table.
//!
//! Called while a link is opened, and when a macvtap ends; the neighbor table for each solicitation
//! of a stack that shares an address. [`crate::link_events`] reads the kernel's reports about
//! interfaces with the formats that are here. Netlink is used rather than
//! ioctl(2) because it takes any number of addresses of both families, can disable duplicate
//! address detection, which would make an IPv6 address unusable for a second, and creates
//! interfaces.
#![expect(unsafe_code, reason = "socket and getifaddrs")]

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::socket_option::set_option;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLMSG_ERROR: u16 = 2;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// No duplicate address detection (RFC 4862 section 5.4): the only other station on this link is
/// ours.
const IFA_F_NODAD: u8 = 2;
/// Size of `struct nlmsghdr`.
pub(crate) const HEAD_BYTES: usize = 16;
const IFADDRMSG_BYTES: usize = 8;

pub(crate) const IFLA_ADDRESS: u16 = 1;
pub(crate) const IFLA_IFNAME: u16 = 3;
pub(crate) const IFLA_MTU: u16 = 4;
pub(crate) const IFLA_MASTER: u16 = 10;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_MACVLAN_MODE: u16 = 1;
pub(crate) const IFINFOMSG_BYTES: usize = 16;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NTF_USE: u8 = 1;
/// States in which the link address may be used: reachable, stale, delay, probe, no ARP, permanent.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
const NDMSG_BYTES: usize = 12;

/// An address with its network's prefix length, as in `10.77.0.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPrefix {
    /// The address.
    pub addr: IpAddr,
    /// Prefix length: up to 32, or 128 for IPv6.
    pub prefix: u8,
}

/// An interface that this process has created. It is deleted when this is dropped.
#[derive(Debug)]
pub(crate) struct CreatedInterface {
    index: u32,
}

impl CreatedInterface {
    pub(crate) const fn new(index: u32) -> Self {
        Self { index }
    }
}

impl Drop for CreatedInterface {
    fn drop(&mut self) {
        // An error means that it is gone already, for example with the interface below.
        let _ = delete_interface(self.index);
    }
}

/// Adds an address to the interface with this index. It is no error if the interface has it
/// already.
pub(crate) fn add_address(index: u32, address: IpPrefix) -> io::Result<()> {
    let (family, bytes) = match address.addr {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    // struct ifaddrmsg: family, prefix, flags, scope (global), index.
    let family = u8::try_from(family).map_err(io::Error::other)?;
    let mut body = vec![family, address.prefix, IFA_F_NODAD, 0];
    body.extend_from_slice(&index.to_ne_bytes());
    debug_assert_eq!(body.len(), IFADDRMSG_BYTES);
    for kind in [IFA_LOCAL, IFA_ADDRESS] {
        attribute(&mut body, kind, &bytes);
    }
    match request(libc::RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &body) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        result => result,
    }
}

/// Creates a macvtap interface with this name and index on the interface with the index `lower`, of
/// a mode of `enum macvlan_mode`. It is down.
pub(crate) fn add_macvtap(
    (name, index): (&str, u32),
    lower: u32,
    mode: u32,
    mac: [u8; 6],
) -> io::Result<()> {
    let mut body = interface_message(index);
    attribute(&mut body, IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
    attribute(&mut body, IFLA_LINK, &lower.to_ne_bytes());
    attribute(&mut body, IFLA_ADDRESS, &mac);
    let (mut data, mut info) = (Vec::new(), Vec::new());
    attribute(&mut data, IFLA_MACVLAN_MODE, &mode.to_ne_bytes());
    attribute(&mut info, IFLA_INFO_KIND, b"macvtap");
    attribute(&mut info, IFLA_INFO_DATA, &data);
    attribute(&mut body, IFLA_LINKINFO, &info);
    request(libc::RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &body)
}

/// Deletes the interface with this index.
pub(crate) fn delete_interface(index: u32) -> io::Result<()> {
    request(libc::RTM_DELLINK, 0, &interface_message(index))
}

/// Returns a `struct ifinfomsg`: family, padding, type, index, flags, change mask.
pub(crate) fn interface_message(index: u32) -> Vec<u8> {
    let mut body = vec![0; IFINFOMSG_BYTES];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body
}

/// Appends an attribute, padded to four bytes.
pub(crate) fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    // Values are names, addresses and numbers, and lists of a few of them.
    let len = u16::try_from(4 + value.len()).expect("a short attribute");
    body.extend_from_slice(&len.to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Makes the kernel resolve a neighbor on the interface with this index, or confirm it, as if it
/// had sent a packet to it.
pub(crate) fn use_neighbor(index: u32, addr: IpAddr) -> io::Result<()> {
    request(libc::RTM_NEWNEIGH, NLM_F_CREATE, &neighbor_message(index, addr, NTF_USE))
}

/// Returns the link address of a neighbor on the interface with this index; `None` if the kernel
/// does not know it.
pub(crate) fn neighbor(index: u32, addr: IpAddr) -> io::Result<Option<[u8; 6]>> {
    let reply = exchange(libc::RTM_GETNEIGH, 0, &neighbor_message(index, addr, 0))?;
    Ok(neighbor_address(&reply))
}

/// Returns a `struct ndmsg`: family, padding, index, state, flags, type; and the address.
fn neighbor_message(index: u32, addr: IpAddr, flags: u8) -> Vec<u8> {
    let (family, bytes) = match addr {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let mut body = vec![0; NDMSG_BYTES];
    // Address families are below 256.
    body[0] = family.to_le_bytes()[0];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[10] = flags;
    attribute(&mut body, NDA_DST, &bytes);
    body
}

/// Returns the link address in an `RTM_NEWNEIGH` message, if it is valid.
fn neighbor_address(reply: &[u8]) -> Option<[u8; 6]> {
    let half = |at: usize| Some(u16::from_ne_bytes(reply.get(at..at + 2)?.try_into().ok()?));
    let end = u32::from_ne_bytes(reply.get(..4)?.try_into().ok()?);
    let reply = reply.get(..usize::try_from(end).ok()?)?;
    if half(4)? != libc::RTM_NEWNEIGH || half(HEAD_BYTES + 8)? & NUD_VALID == 0 {
        return None;
    }
    let mut at = HEAD_BYTES + NDMSG_BYTES;
    loop {
        let (len, kind) = (usize::from(half(at)?), half(at + 2)?);
        if kind == NDA_LLADDR {
            return reply.get(at + 4..at + len)?.try_into().ok();
        }
        at += len.max(4).next_multiple_of(4);
    }
}

/// Sends a request to the kernel, and waits for its acknowledgment.
fn request(kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let reply = exchange(kind, NLM_F_ACK | flags, body)?;
    match acknowledgment(&reply) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other("no netlink acknowledgment")),
    }
}

/// Sends a message to the kernel, and returns the first message of its reply.
fn exchange(kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let mut socket = open_socket(libc::NETLINK_ROUTE, 0)?;
    send(&mut socket, kind, flags, body)?;
    let mut reply = vec![0; 512];
    let len = socket.read(&mut reply)?;
    reply.truncate(len);
    Ok(reply)
}

/// Opens a netlink socket of a protocol such as `NETLINK_ROUTE`, with flags such as
/// `SOCK_NONBLOCK`.
pub(crate) fn open_socket(protocol: libc::c_int, flags: libc::c_int) -> io::Result<File> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags;
    // SAFETY: no pointers are passed; the result is checked before use.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Makes a netlink socket receive the messages of a multicast group.
pub(crate) fn join_group(socket: &File, group: u32) -> io::Result<()> {
    set_option(socket, (libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP), &group)
}

/// Sends a request to the kernel.
pub(crate) fn send(socket: &mut File, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    // struct nlmsghdr: length, type, flags, sequence, port.
    let len = u32::try_from(HEAD_BYTES + body.len()).map_err(io::Error::other)?;
    let mut message = len.to_ne_bytes().to_vec();
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(body);
    // An unconnected netlink socket sends to the kernel.
    socket.write_all(&message)
}

/// Returns the error number of an `NLMSG_ERROR` message, 0 for success.
fn acknowledgment(reply: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?);
    let error = i32::from_ne_bytes(reply.get(HEAD_BYTES..HEAD_BYTES + 4)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then(|| error.saturating_neg())
}

/// Returns the names of the interfaces that have this address.
pub(crate) fn interfaces_with_address(addr: IpAddr) -> io::Result<Vec<String>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is valid for the pointer that the call stores.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut names, mut at) = (Vec::new(), list);
    // SAFETY: `at` points into the list that getifaddrs allocated, which is freed only below.
    while let Some(entry) = unsafe { at.as_ref() } {
        if address_of(entry) == Some(addr) {
            // SAFETY: `ifa_name` of a list entry is a NUL-terminated string.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            names.push(name.to_string_lossy().into_owned());
        }
        at = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, and no reference into it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(names)
}

fn address_of(entry: &libc::ifaddrs) -> Option<IpAddr> {
    // SAFETY: `ifa_addr` is null or points to a sockaddr of the entry, whose type its family
    // determines.
    let family = unsafe { entry.ifa_addr.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: an AF_INET address is a sockaddr_in; it may be unaligned for us, so it is
            // copied.
            let sin = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(sin.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: an AF_INET6 address is a sockaddr_in6, copied as above.
            let sin = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(sin.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

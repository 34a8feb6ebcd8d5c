//! Addresses of the kernel's end of a TAP, by rtnetlink(7), and a query for the interfaces that
//! have an address.
//!
//! Called once, while a TAP is opened. Netlink is used rather than ioctl(2) because it takes any
//! number of addresses of both families, and can disable duplicate address detection, which would
//! make an IPv6 address unusable for a second.
#![expect(unsafe_code, reason = "socket and getifaddrs")]

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{FromRawFd, OwnedFd};

use super::setup::IpPrefix;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// No duplicate address detection (RFC 4862 section 5.4): the only other station on this link is
/// ours.
const IFA_F_NODAD: u8 = 2;
/// Size of `struct nlmsghdr`.
const HEAD_BYTES: usize = 16;
const IFADDRMSG_BYTES: usize = 8;

/// Adds an address to the interface with this index. It is no error if the interface has it
/// already.
pub(super) fn add_address(index: u32, address: IpPrefix) -> io::Result<()> {
    // SAFETY: no pointers are passed; the result is checked before use.
    let fd = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    let mut socket = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // An unconnected netlink socket sends to the kernel.
    socket.write_all(&new_address(index, address)?)?;
    let mut reply = [0; 512];
    let len = socket.read(&mut reply)?;
    match acknowledgment(&reply[..len]) {
        Some(0 | libc::EEXIST) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other("no netlink acknowledgment")),
    }
}

/// Returns an `RTM_NEWADDR` request.
fn new_address(index: u32, address: IpPrefix) -> io::Result<Vec<u8>> {
    let (family, bytes) = match address.addr {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let attribute = 4 + bytes.len();
    let total = HEAD_BYTES + IFADDRMSG_BYTES + 2 * attribute;
    let short = |n: usize| u16::try_from(n).map_err(io::Error::other);
    let mut out = Vec::with_capacity(total);
    // struct nlmsghdr: length, type, flags, sequence, port.
    out.extend_from_slice(&u32::from(short(total)?).to_ne_bytes());
    out.extend_from_slice(&libc::RTM_NEWADDR.to_ne_bytes());
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&[0; 8]);
    // struct ifaddrmsg: family, prefix, flags, scope (global), index.
    let family = u8::try_from(family).map_err(io::Error::other)?;
    out.extend_from_slice(&[family, address.prefix, IFA_F_NODAD, 0]);
    out.extend_from_slice(&index.to_ne_bytes());
    for kind in [IFA_LOCAL, IFA_ADDRESS] {
        out.extend_from_slice(&short(attribute)?.to_ne_bytes());
        out.extend_from_slice(&kind.to_ne_bytes());
        out.extend_from_slice(&bytes);
    }
    Ok(out)
}

/// Returns the error number of an `NLMSG_ERROR` message, 0 for success.
fn acknowledgment(reply: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?);
    let error = i32::from_ne_bytes(reply.get(HEAD_BYTES..HEAD_BYTES + 4)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then(|| error.saturating_neg())
}

/// Returns the names of the interfaces that have this address.
pub(super) fn interfaces_with_address(addr: IpAddr) -> io::Result<Vec<String>> {
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

//! Opens a TAP: descriptors, offloads, MTU, addresses, interface up.
//!
//! Called once per run. The interface is never made persistent, so the kernel removes it with its
//! last descriptor, however the process ends. An interface that was persistent already is used as
//! it is; only settings in the configuration are changed.
#![expect(unsafe_code, reason = "ioctl")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use super::vnet::VNET_BYTES;
use super::{Tap, TapError, TapOffloads, netlink};

/// An address with its network's prefix length, as in `10.77.0.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPrefix {
    /// The address.
    pub addr: IpAddr,
    /// Prefix length: up to 32, or 128 for IPv6.
    pub prefix: u8,
}

/// Configuration of a TAP.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// Name of the interface: 1 to 15 bytes.
    pub name: String,
    /// Descriptors to open, one per queue of the device, at least 1. The kernel keeps each flow on
    /// one.
    pub queues: usize,
    /// Addresses of the kernel's end.
    pub peer: Vec<IpPrefix>,
    /// MTU in bytes; `None` keeps that of the interface (1500 for a new one).
    pub mtu: Option<u16>,
    /// True if runs of segments and partial checksums may cross, in both directions.
    pub offloads: bool,
}

/// Payload of a long run over IPv4: 256 KiB of a file with the head of its response, which takes
/// about half of the fragments in which the kernel can store a frame.
const LONG_RUN_BYTES: u32 = (256 + 8) * 1024;
/// Without BIG TCP: a packet with the longest headers is 64 KiB.
const PLAIN_RUN_BYTES: u32 = 65_536 - 120;

/// Returns the largest payload in bytes of a frame with a segment size, over IPv4. Frames above 64
/// KiB have a length field of zero: Linux accepts them since 6.3 (BIG TCP) and drops them before.
#[must_use]
pub fn run_bytes_max() -> u32 {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if takes_long_runs(&release) { LONG_RUN_BYTES } else { PLAIN_RUN_BYTES }
}

fn takes_long_runs(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 3)
}

pub(super) fn open(config: &TapConfig) -> Result<Vec<Tap>, TapError> {
    let name = check_name(&config.name)?;
    for peer in &config.peer {
        if let Some(interface) = (netlink::interfaces_with_address(peer.addr)
            .map_err(tap_error(name, "query"))?)
        .into_iter()
        .find(|holder| holder != name)
        {
            return Err(TapError::AddressInUse { addr: peer.addr, interface });
        }
    }
    let queues = config.queues.max(1);
    let files = (0..queues)
        .map(|queue| open_queue(name, queue, queues > 1, config.offloads))
        .collect::<Result<Vec<_>, _>>()?;
    let mtu = configure(config, name)?;
    Ok(files.into_iter().map(|(file, offloads)| Tap::new(file, name, mtu, offloads)).collect())
}

fn check_name(name: &str) -> Result<&str, TapError> {
    let bad = |why| Err(TapError::BadName { name: name.to_owned(), why });
    match name {
        "" => bad("it is empty"),
        _ if name.len() >= libc::IFNAMSIZ => bad("longer than 15 bytes"),
        "." | ".." => bad("reserved by the kernel"),
        // The kernel would replace "%d" by a number of its choice, and refuses the others
        // (`dev_valid_name`).
        _ if name.bytes().any(|b| b"/:%\0".contains(&b) || b.is_ascii_whitespace()) => {
            bad("contains an invalid character")
        }
        _ => Ok(name),
    }
}

fn tap_error<'a>(
    name: &'a str,
    doing: &'static str,
) -> impl FnOnce(io::Error) -> TapError + use<'a> {
    move |error| TapError::from_io(name, doing, error)
}

fn open_queue(
    name: &str,
    queue: usize,
    many: bool,
    offloads: bool,
) -> Result<(File, TapOffloads), TapError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TapError::NoDevice,
            Some(libc::EPERM | libc::EACCES) => TapError::DeviceDenied,
            _ => TapError::from_io(name, "open /dev/net/tun for", error),
        })?;
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if many {
        flags |= libc::IFF_MULTI_QUEUE;
        // With several queues the kernel would let a second process attach; with one it returns
        // EBUSY.
        if queue == 0 {
            flags |= libc::IFF_TUN_EXCL;
        }
    }
    let mut request = ifreq(name);
    // The flag word has 16 bits; IFF_TUN_EXCL is its sign bit.
    request.ifr_ifru.ifru_flags = libc::c_short::from_ne_bytes(low_word(flags));
    ioctl(&file, libc::TUNSETIFF, &mut request).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => {
            TapError::BadName { name: name.to_owned(), why: "used by an interface of another type" }
        }
        _ => TapError::from_io(name, "attach to", error),
    })?;
    // The default, set again because a persistent interface may have another size.
    let mut size = libc::c_int::try_from(VNET_BYTES).unwrap_or(0);
    ioctl(&file, libc::TUNSETVNETHDRSZ, &mut size)
        .map_err(tap_error(name, "set the virtio-net header size of"))?;
    let offloads = set_offloads(&file, offloads).map_err(tap_error(name, "set the offloads of"))?;
    Ok((file, offloads))
}

const fn low_word(flags: libc::c_int) -> [u8; 2] {
    let bytes = flags.to_ne_bytes();
    if cfg!(target_endian = "little") { [bytes[0], bytes[1]] } else { [bytes[2], bytes[3]] }
}

/// Tells the kernel which offloads we accept, and returns those that it accepts.
///
/// The kernel accepts runs of datagrams if it knows the flags `TUN_F_USO*` (Linux 6.2;
/// `set_offload`). We do not accept such runs ourselves: the device decrypts QUIC datagrams one at
/// a time.
fn set_offloads(file: &File, on: bool) -> io::Result<TapOffloads> {
    let all = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = on && set_flags(file, all | libc::TUN_F_USO4 | libc::TUN_F_USO6).is_ok();
    set_flags(file, if on { all } else { 0 })?;
    Ok(TapOffloads { tcp: on, udp })
}

fn set_flags(file: &File, flags: libc::c_uint) -> io::Result<()> {
    let offloads = libc::c_ulong::from(flags);
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Applies those settings of `config` that the interface does not have yet, and returns its MTU. An
/// interface with all of them needs no privilege.
fn configure(config: &TapConfig, name: &str) -> Result<u16, TapError> {
    // Interface ioctls work on any socket; a UDP socket needs no privilege.
    let socket = UdpSocket::bind(("0.0.0.0", 0)).map_err(tap_error(name, "reach"))?;
    if let Some(mtu) = config.mtu {
        if read_mtu(&socket, name)? != mtu {
            let mut request = ifreq(name);
            request.ifr_ifru.ifru_mtu = mtu.into();
            ioctl(&socket, libc::SIOCSIFMTU, &mut request)
                .map_err(tap_error(name, "set the MTU of"))?;
        }
    }
    if config.peer.iter().any(|peer| peer.addr.is_ipv6()) {
        prepare_ipv6(name);
    }
    let index = interface_index(name)?;
    for &peer in &config.peer {
        let holders =
            netlink::interfaces_with_address(peer.addr).map_err(tap_error(name, "query"))?;
        if holders.is_empty() {
            netlink::add_address(index, peer).map_err(tap_error(name, "add an address to"))?;
        }
    }
    let mut request = ifreq(name);
    ioctl(&socket, libc::SIOCGIFFLAGS, &mut request).map_err(tap_error(name, "query"))?;
    // SAFETY: SIOCGIFFLAGS has filled in this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    let up = libc::c_short::try_from(libc::IFF_UP).unwrap_or(0);
    if flags & up == 0 {
        request.ifr_ifru.ifru_flags = flags | up;
        ioctl(&socket, libc::SIOCSIFFLAGS, &mut request).map_err(tap_error(name, "bring up"))?;
    }
    read_mtu(&socket, name)
}

/// Enables IPv6, which may be off by default, and disables duplicate address detection, so that the
/// link-local address is usable at once. Errors are ignored here: adding the address would fail.
fn prepare_ipv6(name: &str) {
    for knob in ["disable_ipv6", "accept_dad"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/{knob}"), "0");
    }
}

fn read_mtu(socket: &UdpSocket, name: &str) -> Result<u16, TapError> {
    let mut request = ifreq(name);
    ioctl(socket, libc::SIOCGIFMTU, &mut request).map_err(tap_error(name, "read the MTU of"))?;
    // SAFETY: SIOCGIFMTU has filled in this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
}

fn interface_index(name: &str) -> Result<u32, TapError> {
    let gone = || TapError::from_io(name, "find", io::Error::last_os_error());
    let c_name = CString::new(name).map_err(|_| gone())?;
    // SAFETY: `c_name` is a NUL-terminated string.
    match unsafe { libc::if_nametoindex(c_name.as_ptr()) } {
        0 => Err(gone()),
        index => Ok(index),
    }
}

/// Returns a request for the interface `name`, whose length [`check_name`] has verified.
fn ifreq(name: &str) -> libc::ifreq {
    // SAFETY: an ifreq is plain data, valid as zeros.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request
}

fn ioctl<T>(file: &impl AsRawFd, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    // SAFETY: the callers pair each request with the type that the kernel reads and writes for it.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument)) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_need_a_new_kernel() {
        assert!(takes_long_runs("6.3.0-1-amd64\n") && takes_long_runs("7.0-rc1"));
        assert!(!takes_long_runs("6.2.16") && !takes_long_runs("5.15") && !takes_long_runs(""));
    }
}

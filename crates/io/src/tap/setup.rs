//! Opening a TAP: descriptors, offloads, MTU, addresses, and up.
//!
//! Called once per run. The interface is never made persistent, so it goes away with its last
//! descriptor, whatever ends the process; one that somebody else made persistent is used and left
//! as it was found, except for what the configuration asks for.
#![expect(unsafe_code, reason = "ioctl")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use super::vnet::VNET_BYTES;
use super::{Offloads, Tap, TapError, netlink};

/// An address and the length of its network's prefix, as in `10.77.0.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPrefix {
    /// The address.
    pub addr: IpAddr,
    /// Leading bits that the network shares: up to 32, or 128 for IPv6.
    pub prefix: u8,
}

/// What TAP to open.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// Name of the interface: 1 to 15 bytes.
    pub name: String,
    /// Descriptors to open, one per queue of the device; the kernel keeps each flow on one. At
    /// least 1.
    pub queues: usize,
    /// Addresses of the kernel's end.
    pub peer: Vec<IpPrefix>,
    /// Largest packet above Ethernet, in bytes; `None` leaves the interface's own (1500 for a new
    /// one).
    pub mtu: Option<u16>,
    /// Whether runs of segments and unfinished checksums may cross, both ways.
    pub offloads: bool,
}

/// Payload of a run over IPv4 that the kernel takes as one frame: a file of 256 KiB with its
/// response's head, in half of the pieces that the kernel can keep a frame in.
const LONG_RUN_BYTES: u32 = (256 + 8) * 1024;
/// The same without BIG TCP: a packet with the longest headers has 64 KiB.
const PLAIN_RUN_BYTES: u32 = 65_536 - 120;

/// Most payload bytes in one frame with a segment size, over IPv4. Frames above 64 KiB have a
/// length field of zero: Linux takes them since 6.3 (BIG TCP), and drops them before.
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
        if let Some(interface) = (netlink::holders(peer.addr).map_err(other(name, "look at"))?)
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
        _ if name.len() >= libc::IFNAMSIZ => bad("it is longer than 15 bytes"),
        "." | ".." => bad("the kernel reserves it"),
        // The kernel would replace "%d" by a number of its choice; the others it refuses
        // (dev_valid_name).
        _ if name.bytes().any(|b| b"/:%\0".contains(&b) || b.is_ascii_whitespace()) => {
            bad("it contains a character that names cannot have")
        }
        _ => Ok(name),
    }
}

fn other<'a>(name: &'a str, doing: &'static str) -> impl FnOnce(io::Error) -> TapError + use<'a> {
    move |error| TapError::from_io(name, doing, error)
}

fn open_queue(
    name: &str,
    queue: usize,
    many: bool,
    offloads: bool,
) -> Result<(File, Offloads), TapError> {
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
        // With several queues the kernel would let a second process join in; with one it says EBUSY
        // by itself.
        if queue == 0 {
            flags |= libc::IFF_TUN_EXCL;
        }
    }
    let mut request = ifreq(name);
    // The flag word is 16 bits, and IFF_TUN_EXCL its sign bit.
    request.ifr_ifru.ifru_flags = libc::c_short::from_ne_bytes(low_word(flags));
    ioctl(&file, libc::TUNSETIFF, &mut request).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => {
            TapError::BadName { name: name.to_owned(), why: "an interface of another kind has it" }
        }
        _ => TapError::from_io(name, "attach to", error),
    })?;
    // The default, set for the sake of persistent interfaces that were told otherwise.
    let mut size = libc::c_int::try_from(VNET_BYTES).unwrap_or(0);
    ioctl(&file, libc::TUNSETVNETHDRSZ, &mut size).map_err(other(name, "set the header of"))?;
    let offloads = set_offloads(&file, offloads).map_err(other(name, "set the offloads of"))?;
    Ok((file, offloads))
}

const fn low_word(flags: libc::c_int) -> [u8; 2] {
    let bytes = flags.to_ne_bytes();
    if cfg!(target_endian = "little") { [bytes[0], bytes[1]] } else { [bytes[2], bytes[3]] }
}

/// Says what we take of the kernel, and finds out what it takes of us.
///
/// It takes runs of datagrams if it knows the flags that say that we do (Linux 6.2), which is how
/// it wants to be asked (`set_offload`). We do not: the device opens datagrams of QUIC one at a
/// time.
fn set_offloads(file: &File, on: bool) -> io::Result<Offloads> {
    let all = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = on && set_flags(file, all | libc::TUN_F_USO4 | libc::TUN_F_USO6).is_ok();
    set_flags(file, if on { all } else { 0 })?;
    Ok(Offloads { tcp: on, udp })
}

fn set_flags(file: &File, flags: libc::c_uint) -> io::Result<()> {
    let offloads = libc::c_ulong::from(flags);
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the interface what `config` asks for, as far as it does not have it, and tells its MTU. An
/// interface that is already as it should be needs no privilege.
fn configure(config: &TapConfig, name: &str) -> Result<u16, TapError> {
    // Any socket serves to name interfaces by; a UDP one needs no privilege.
    let socket = UdpSocket::bind(("0.0.0.0", 0)).map_err(other(name, "reach"))?;
    if let Some(mtu) = config.mtu {
        if read_mtu(&socket, name)? != mtu {
            let mut request = ifreq(name);
            request.ifr_ifru.ifru_mtu = mtu.into();
            ioctl(&socket, libc::SIOCSIFMTU, &mut request)
                .map_err(other(name, "set the MTU of"))?;
        }
    }
    if config.peer.iter().any(|peer| peer.addr.is_ipv6()) {
        prepare_ipv6(name);
    }
    let index = interface_index(name)?;
    for &peer in &config.peer {
        let holders = netlink::holders(peer.addr).map_err(other(name, "look at"))?;
        if holders.is_empty() {
            netlink::add_address(index, peer).map_err(other(name, "give an address to"))?;
        }
    }
    let mut request = ifreq(name);
    ioctl(&socket, libc::SIOCGIFFLAGS, &mut request).map_err(other(name, "look at"))?;
    // SAFETY: SIOCGIFFLAGS has filled in this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    let up = libc::c_short::try_from(libc::IFF_UP).unwrap_or(0);
    if flags & up == 0 {
        request.ifr_ifru.ifru_flags = flags | up;
        ioctl(&socket, libc::SIOCSIFFLAGS, &mut request).map_err(other(name, "bring up"))?;
    }
    read_mtu(&socket, name)
}

/// Where IPv6 is off by default it is wanted here, and the link-local address shall not wait for
/// duplicates that cannot be. What does not work out shows when the address is given.
fn prepare_ipv6(name: &str) {
    for knob in ["disable_ipv6", "accept_dad"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/{knob}"), "0");
    }
}

fn read_mtu(socket: &UdpSocket, name: &str) -> Result<u16, TapError> {
    let mut request = ifreq(name);
    ioctl(socket, libc::SIOCGIFMTU, &mut request).map_err(other(name, "read the MTU of"))?;
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

/// A request about the interface `name`, which [`check_name`] has found to fit.
fn ifreq(name: &str) -> libc::ifreq {
    // SAFETY: an ifreq is plain data, valid as zeroes.
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

//! Linux TAP interface: a link to the kernel's network stack.
//!
//! Opens descriptors, and sets offloads, MTU and addresses of the kernel's end, once per run;
//! [`crate::vnet`] carries the frames. The interface is never made persistent, so the kernel
//! removes it with its last descriptor, however the process ends. An interface that was persistent
//! already is used as it is; only settings in the configuration are changed.
//!
//! The kernel's end answers ARP and neighbor discovery for its own addresses; the host stack does
//! so for ours.
#![expect(unsafe_code, reason = "ioctl")]

#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use abi::steering::FlowSteering;

use crate::interface::{InterfaceControl, ifreq, ioctl, low_word};
use crate::netlink;
pub use crate::netlink::IpPrefix;
use crate::open_error::{LinkKind, OpenLinkError};
use crate::queue_steering;
use crate::vnet::{LinkOffloads, VNET_BYTES, VnetLink};

/// Configuration of a TAP.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// Name of the interface: 1 to 15 bytes.
    pub name: String,
    /// Descriptors to open, one per queue of the device, at least 1. The kernel keeps each flow on
    /// one.
    pub queues: usize,
    /// The kernel selects the queue as this does, if it can; otherwise by a hash of its own.
    pub steering: Option<Arc<FlowSteering>>,
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

/// Returns the largest payload in bytes of a frame with a segment size, over IPv4. Frames above 64
/// KiB have a length field of zero: Linux accepts them since 6.3 (BIG TCP) and drops them before.
#[must_use]
pub fn run_bytes_max() -> u32 {
    if kernel_version() >= (6, 3) { LONG_RUN_BYTES } else { crate::vnet::RUN_BYTES_MAX }
}

/// Returns the version of the running kernel; zeros if it is not known.
#[must_use]
pub fn kernel_version() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version_of(&release)
}

fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Opens the interface, creates it if it does not exist, assigns addresses to the kernel's end and
/// brings it up. Returns one link for each queue; a created interface is removed with the last of
/// them.
///
/// # Errors
/// As [`OpenLinkError`] lists them. An interface that was created is removed again.
pub fn open(config: &TapConfig) -> Result<Vec<VnetLink>, OpenLinkError> {
    let interface = InterfaceControl::new(LinkKind::Tap, &config.name)?;
    for peer in &config.peer {
        if let Some(interface) = (netlink::interfaces_with_address(peer.addr)
            .map_err(interface.error("query"))?)
        .into_iter()
        .find(|holder| *holder != config.name)
        {
            return Err(OpenLinkError::AddressInUse { addr: peer.addr, interface });
        }
    }
    let queues = config.queues.max(1);
    let files = (0..queues)
        .map(|queue| open_queue(&interface, queue, queues > 1, config.offloads))
        .collect::<Result<Vec<_>, _>>()?;
    let mut steering = match (&config.steering, files.first()) {
        // Without the program devices hand frames over to each other.
        (Some(steering), Some((first, _))) => queue_steering::attach_to_tap(first, steering).ok(),
        _ => None,
    };
    let mtu = configure(config, &interface)?;
    let link = |(file, offloads)| {
        VnetLink::new(file, &config.name, mtu, offloads).with_steering(steering.take())
    };
    Ok(files.into_iter().map(link).collect())
}

fn open_queue(
    interface: &InterfaceControl,
    queue: usize,
    many: bool,
    offloads: bool,
) -> Result<(File, LinkOffloads), OpenLinkError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => OpenLinkError::NoTunDriver,
            Some(libc::EPERM | libc::EACCES) => {
                OpenLinkError::DeviceDenied { node: "/dev/net/tun".to_owned() }
            }
            _ => interface.error("open /dev/net/tun for")(error),
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
    let mut request = ifreq(interface.name());
    // The flag word has 16 bits; IFF_TUN_EXCL is its sign bit.
    request.ifr_ifru.ifru_flags = libc::c_short::from_ne_bytes(low_word(flags));
    ioctl(&file, libc::TUNSETIFF, &mut request).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => OpenLinkError::BadName {
            kind: LinkKind::Tap,
            name: interface.name().to_owned(),
            why: "used by an interface of another type",
        },
        _ => interface.error("attach to")(error),
    })?;
    let offloads = set_up_queue(&file, interface, offloads)?;
    Ok((file, offloads))
}

/// Sets the header size and the offloads of a descriptor of a TAP or macvtap.
pub(crate) fn set_up_queue(
    file: &File,
    interface: &InterfaceControl,
    offloads: bool,
) -> Result<LinkOffloads, OpenLinkError> {
    // The default, set again because a persistent interface may have another size.
    let mut size = libc::c_int::try_from(VNET_BYTES).unwrap_or(0);
    ioctl(file, libc::TUNSETVNETHDRSZ, &mut size)
        .map_err(interface.error("set the virtio-net header size of"))?;
    set_offloads(file, offloads).map_err(interface.error("set the offloads of"))
}

/// Tells the kernel which offloads we accept, and returns those that it accepts.
///
/// The kernel accepts runs of datagrams if it knows the flags `TUN_F_USO*` (Linux 6.2;
/// `set_offload`). We do not ask for such runs ourselves: the device decrypts QUIC datagrams one at
/// a time.
fn set_offloads(file: &File, on: bool) -> io::Result<LinkOffloads> {
    let all = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = on && set_flags(file, all | libc::TUN_F_USO4 | libc::TUN_F_USO6).is_ok();
    set_flags(file, if on { all } else { 0 })?;
    Ok(LinkOffloads { tcp: on, udp })
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
fn configure(config: &TapConfig, interface: &InterfaceControl) -> Result<u16, OpenLinkError> {
    if let Some(mtu) = config.mtu {
        if interface.mtu()? != mtu {
            interface.set_mtu(mtu)?;
        }
    }
    if config.peer.iter().any(|peer| peer.addr.is_ipv6()) {
        // IPv6 may be off by default, and duplicate address detection would make the link-local
        // address unusable for a second. If this fails, adding the address does too.
        interface.set_ipv6_option("disable_ipv6", "0");
        interface.set_ipv6_option("accept_dad", "0");
        // Or the kernel would remove the addresses when the interface goes down.
        interface.set_ipv6_option("keep_addr_on_down", "1");
    }
    let index = interface.index()?;
    for &peer in &config.peer {
        let holders =
            netlink::interfaces_with_address(peer.addr).map_err(interface.error("query"))?;
        if holders.is_empty() {
            netlink::add_address(index, peer).map_err(interface.error("add an address to"))?;
        }
    }
    interface.set_flags(libc::IFF_UP)?;
    interface.mtu()
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn versions_of_kernels() {
        assert_eq!(version_of("6.3.0-1-amd64\n"), (6, 3));
        assert_eq!((version_of("7.0-rc1"), version_of("")), ((7, 0), (0, 0)));
    }
}

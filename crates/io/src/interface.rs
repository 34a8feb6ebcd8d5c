//! Network interfaces of Linux: name, index, MTU, link address and flags (netdevice(7)).
//!
//! Called by the modules that open links, once per run. Errors become messages for the user
//! ([`OpenLinkError`]). Addresses of interfaces are set by [`crate::netlink`].
#![expect(unsafe_code, reason = "ioctl")]

use std::ffi::CString;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use crate::open_error::{LinkKind, OpenLinkError};

/// `SIOCETHTOOL` and `ETHTOOL_GCHANNELS` of `linux/sockios.h` and `linux/ethtool.h`.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_channels`.
#[derive(Debug, Default)]
#[repr(C)]
struct EthtoolChannels {
    cmd: u32,
    /// Maximums in the order of the counts.
    max: [u32; 4],
    rx_count: u32,
    tx_count: u32,
    other_count: u32,
    combined_count: u32,
}

/// Control of one interface.
#[derive(Debug)]
pub(crate) struct InterfaceControl {
    kind: LinkKind,
    name: String,
    /// Interface ioctls work on any socket; a UDP socket needs no privilege.
    socket: UdpSocket,
}

impl InterfaceControl {
    /// Returns the control of the interface `name`, which need not exist yet.
    pub(crate) fn new(kind: LinkKind, name: &str) -> Result<Self, OpenLinkError> {
        check_name(kind, name)?;
        let socket = UdpSocket::bind(("0.0.0.0", 0))
            .map_err(|e| OpenLinkError::from_io(kind, name, "reach", e))?;
        Ok(Self { kind, name: name.to_owned(), socket })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Converts the kernel's error after the action `doing`.
    pub(crate) fn error(&self, doing: &'static str) -> impl FnOnce(io::Error) -> OpenLinkError {
        move |error| OpenLinkError::from_io(self.kind, &self.name, doing, error)
    }

    /// Returns the index of the interface.
    pub(crate) fn index(&self) -> Result<u32, OpenLinkError> {
        let none = || OpenLinkError::NoInterface { name: self.name.clone() };
        index_of(&self.name).ok_or_else(none)
    }

    /// Returns the MTU in bytes.
    pub(crate) fn mtu(&self) -> Result<u16, OpenLinkError> {
        let mut request = ifreq(&self.name);
        ioctl(&self.socket, libc::SIOCGIFMTU, &mut request)
            .map_err(self.error("read the MTU of"))?;
        // SAFETY: SIOCGIFMTU has filled in this member.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
    }

    pub(crate) fn set_mtu(&self, mtu: u16) -> Result<(), OpenLinkError> {
        let mut request = ifreq(&self.name);
        request.ifr_ifru.ifru_mtu = mtu.into();
        ioctl(&self.socket, libc::SIOCSIFMTU, &mut request).map_err(self.error("set the MTU of"))
    }

    /// Fails if the interface has no Ethernet header.
    pub(crate) fn require_ethernet(&self) -> Result<(), OpenLinkError> {
        self.ethernet_address().map(|_| ())
    }

    /// Returns the link address. Fails if the interface has no Ethernet header.
    pub(crate) fn ethernet_address(&self) -> Result<[u8; 6], OpenLinkError> {
        let mut request = ifreq(&self.name);
        ioctl(&self.socket, libc::SIOCGIFHWADDR, &mut request).map_err(self.error("query"))?;
        // SAFETY: SIOCGIFHWADDR has filled in this member.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        if address.sa_family != libc::ARPHRD_ETHER {
            return Err(OpenLinkError::NotEthernet { name: self.name.clone() });
        }
        let [a, b, c, d, e, f, ..] = address.sa_data.map(|byte| byte.to_ne_bytes()[0]);
        Ok([a, b, c, d, e, f])
    }

    /// Returns the numbers of receive queues (`ethtool -l`): those in use, and their maximum. One
    /// if the driver does not report them.
    pub(crate) fn receive_queues(&self) -> Result<(u32, u32), OpenLinkError> {
        let mut channels = EthtoolChannels { cmd: ETHTOOL_GCHANNELS, ..Default::default() };
        let mut request = ifreq(&self.name);
        request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut channels).cast();
        match ioctl(&self.socket, SIOCETHTOOL, &mut request) {
            Ok(()) => {
                let count = (channels.rx_count + channels.combined_count).max(1);
                let [rx_max, _, _, combined_max] = channels.max;
                Ok((count, rx_max.saturating_add(combined_max).max(count)))
            }
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok((1, 1)),
            Err(error) => Err(self.error("query the queues of")(error)),
        }
    }

    /// Sets flags of the interface (`IFF_UP`) unless all of them are set: only a change needs a
    /// privilege.
    pub(crate) fn set_flags(&self, flags: libc::c_int) -> Result<(), OpenLinkError> {
        let mut request = ifreq(&self.name);
        ioctl(&self.socket, libc::SIOCGIFFLAGS, &mut request).map_err(self.error("query"))?;
        // SAFETY: SIOCGIFFLAGS has filled in this member.
        let old = unsafe { request.ifr_ifru.ifru_flags };
        let new = old | libc::c_short::from_ne_bytes(low_word(flags));
        if new == old {
            return Ok(());
        }
        request.ifr_ifru.ifru_flags = new;
        ioctl(&self.socket, libc::SIOCSIFFLAGS, &mut request).map_err(self.error("bring up"))
    }

    /// Writes a setting of the interface in `/proc/sys/net/ipv6/conf`. Errors are ignored: the
    /// kernel may have no IPv6.
    pub(crate) fn set_ipv6_option(&self, option: &str, value: &str) {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/{option}", self.name), value);
    }
}

/// Returns the index of the interface with this name; `None` if there is none.
pub(crate) fn index_of(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: `name` is a NUL-terminated string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        index => Some(index),
    }
}

/// Returns the number of receive queues of the interface with this name; `None` if there is none.
pub(crate) fn receive_queues(name: &str) -> Option<u32> {
    let (count, _) = InterfaceControl::new(LinkKind::Xdp, name).ok()?.receive_queues().ok()?;
    Some(count)
}

/// Returns the name of the interface with this index; `None` if there is none.
pub(crate) fn name_of(index: u32) -> Option<String> {
    let mut name = [0; libc::IFNAMSIZ];
    // SAFETY: the buffer has the size that the call requires.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    let bytes = name.iter().take_while(|&&c| c != 0).flat_map(|c| c.to_ne_bytes()).collect();
    String::from_utf8(bytes).ok()
}

fn check_name(kind: LinkKind, name: &str) -> Result<(), OpenLinkError> {
    let bad = |why| Err(OpenLinkError::BadName { kind, name: name.to_owned(), why });
    match name {
        "" => bad("it is empty"),
        _ if name.len() >= libc::IFNAMSIZ => bad("longer than 15 bytes"),
        "." | ".." => bad("reserved by the kernel"),
        // The kernel would replace "%d" by a number of its choice, and refuses the others
        // (`dev_valid_name`).
        _ if name.bytes().any(|b| b"/:%\0".contains(&b) || b.is_ascii_whitespace()) => {
            bad("contains an invalid character")
        }
        _ => Ok(()),
    }
}

/// Returns the lower 16 bits, which the flag words of a request have.
pub(crate) const fn low_word(flags: libc::c_int) -> [u8; 2] {
    let bytes = flags.to_ne_bytes();
    if cfg!(target_endian = "little") { [bytes[0], bytes[1]] } else { [bytes[2], bytes[3]] }
}

/// Returns a request for the interface `name`, whose length [`check_name`] has verified.
pub(crate) fn ifreq(name: &str) -> libc::ifreq {
    // SAFETY: an ifreq is plain data, valid as zeros.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request
}

pub(crate) fn ioctl<T>(
    file: &impl AsRawFd,
    request: libc::Ioctl,
    argument: &mut T,
) -> io::Result<()> {
    // SAFETY: the callers pair each request with the type that the kernel reads and writes for it.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument)) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

//! State, driver, queues and offloads of an interface, by rtnetlink(7) and the ethtool requests of
//! ioctl(2). Unlike /sys, they always describe the network namespace of this process.
//!
//! Called by `outboard doctor`. Reads only: nothing here changes an interface, and no privilege is
//! needed.
#![expect(unsafe_code, reason = "ioctl")]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use crate::interface::{ifreq, index_of, name_of};
use crate::link_events::LinkEventSocket;

// Requests of linux/ethtool.h.
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GRXCSUM: u32 = 0x14;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_GGSO: u32 = 0x23;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// Bit of `ETHTOOL_GFLAGS`.
const ETH_FLAG_LRO: u32 = 1 << 15;
/// Words of `struct ethtool_drvinfo`, and the bytes of its field `driver`.
const DRIVER_INFO_WORDS: usize = 49;
const DRIVER_NAME: std::ops::Range<usize> = 4..36;
/// Words of `struct ethtool_channels`.
const CHANNEL_WORDS: usize = 9;

/// State of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStatus {
    /// Its index.
    pub index: u32,
    /// True if it has an Ethernet header, and is not the loopback interface.
    pub is_ethernet: bool,
    /// True if it is administratively up.
    pub is_up: bool,
    /// True if it has a carrier.
    pub has_carrier: bool,
    /// MTU in bytes; 65535 if it is larger.
    pub mtu: u16,
    /// Name of the bridge, bond or other interface that it is a port of.
    pub master: Option<String>,
}

/// Returns the state of the interface `name`; `None` if there is none.
///
/// # Errors
/// If the kernel does not answer.
pub fn interface_status(name: &str) -> io::Result<Option<InterfaceStatus>> {
    let Some(index) = index_of(name) else { return Ok(None) };
    let state = LinkEventSocket::open()?.wait_for(index)?;
    Ok(state.map(|state| InterfaceStatus {
        index,
        is_ethernet: state.hardware == libc::ARPHRD_ETHER,
        is_up: state.is_enabled,
        has_carrier: state.has_carrier,
        mtu: state.mtu.unwrap_or(0),
        master: state.master.and_then(name_of),
    }))
}

/// Driver, queues and offloads of an interface. Each is `None` if the driver does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceInfo {
    /// Name of the driver.
    pub driver: Option<String>,
    /// Receive queues in use.
    pub rx_queues: Option<u32>,
    /// Maximum number of receive queues.
    pub rx_queues_max: Option<u32>,
    /// Transmit queues in use.
    pub tx_queues: Option<u32>,
    /// True if the interface verifies checksums.
    pub rx_checksum: Option<bool>,
    /// True if it computes checksums.
    pub tx_checksum: Option<bool>,
    /// True if it segments TCP.
    pub tso: Option<bool>,
    /// True if the kernel delays segmentation until the driver.
    pub gso: Option<bool>,
    /// True if the kernel merges received segments.
    pub gro: Option<bool>,
    /// True if the interface merges received segments, and loses their boundaries.
    pub lro: Option<bool>,
}

/// Returns the driver, the queues and the offloads of the interface `name`.
///
/// # Errors
/// If no socket can be opened, or the name is too long.
pub fn interface_info(name: &str) -> io::Result<InterfaceInfo> {
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    let flag = |request| get::<2>(&socket, name, request).map(|words| words[1] != 0);
    let driver = get::<DRIVER_INFO_WORDS>(&socket, name, ETHTOOL_GDRVINFO).map(|words| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = bytes[DRIVER_NAME].split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    });
    // Command, four maxima (rx, tx, other, combined), the same four in use.
    let channels = get::<CHANNEL_WORDS>(&socket, name, ETHTOOL_GCHANNELS);
    let sum = |a: usize, b: usize| channels.map(|words| words[a].saturating_add(words[b]));
    Ok(InterfaceInfo {
        driver,
        rx_queues_max: sum(1, 4),
        rx_queues: sum(5, 8),
        tx_queues: sum(6, 8),
        rx_checksum: flag(ETHTOOL_GRXCSUM),
        tx_checksum: flag(ETHTOOL_GTXCSUM),
        tso: flag(ETHTOOL_GTSO),
        gso: flag(ETHTOOL_GGSO),
        gro: flag(ETHTOOL_GGRO),
        lro: get::<2>(&socket, name, ETHTOOL_GFLAGS).map(|words| words[1] & ETH_FLAG_LRO != 0),
    })
}

/// Returns the answer to a request of `N` words, the first of which is its number.
fn get<const N: usize>(socket: &UdpSocket, name: &str, request: u32) -> Option<[u32; N]> {
    let mut words = [0; N];
    words[0] = request;
    let mut argument = ifreq(name);
    argument.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the kernel reads the request and the name, and writes at most the N words that the
    // structure of the request has; both live until the call returns.
    let rc = unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, std::ptr::from_mut(&mut argument))
    };
    (rc >= 0).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_described() {
        let info = interface_info("lo").unwrap();
        assert_eq!((info.tx_checksum, info.tso), (Some(true), Some(true)));
        assert_eq!(info.lro, Some(false));
        let status = interface_status("lo").unwrap().unwrap();
        assert_eq!((status.index, status.is_ethernet, status.master), (1, false, None));
        assert_eq!(interface_status("none").unwrap(), None);
        assert_eq!(interface_info("none").unwrap(), InterfaceInfo::default());
        assert!(interface_info("a-name-of-16-byt").is_err());
    }
}

//! XDP features that a driver reports, by the generic netlink family `netdev` (Linux 6.3).
//!
//! Called by `outboard doctor` and [`crate::xdp`]. Reads only: no program is attached.

use std::io;

use crate::generic_netlink::{GenericFamily, find, no_answer};

const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// Since Linux 6.8.
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
/// Bits of the features.
const BASIC: u64 = 1;
const ZERO_COPY: u64 = 8;
/// Bit of the features of AF_XDP sockets: `NETDEV_XSK_FLAGS_TX_CHECKSUM`.
const TX_CHECKSUM: u64 = 2;

/// XDP features of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures {
    /// True if the driver runs XDP programs itself.
    pub native: bool,
    /// True if AF_XDP sockets need no copy of a frame.
    pub zero_copy: bool,
    /// True if the interface completes checksums of frames that it takes without a copy.
    pub tx_checksum: bool,
}

/// Returns the XDP features of the interface with this index.
///
/// # Errors
/// If the kernel does not have the family `netdev`, or no such interface.
pub fn xdp_features(index: u32) -> io::Result<XdpFeatures> {
    let family = GenericFamily::find("netdev")?;
    let device = family.ask(NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes())?;
    let word = |attribute| {
        let bytes = find(&device, attribute)?.try_into().ok()?;
        Some(u64::from_ne_bytes(bytes))
    };
    let bits = word(NETDEV_A_DEV_XDP_FEATURES).ok_or_else(no_answer)?;
    let socket_bits = word(NETDEV_A_DEV_XSK_FEATURES).unwrap_or(0);
    Ok(XdpFeatures {
        native: bits & BASIC != 0,
        zero_copy: bits & ZERO_COPY != 0,
        tx_checksum: socket_bits & TX_CHECKSUM != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_none_of_its_own() {
        // Kernels before 6.3 return an error.
        if let Ok(features) = xdp_features(1) {
            assert!(!features.zero_copy && !features.tx_checksum, "{features:?}");
            assert!(xdp_features(0x7fff_fff0).is_err());
        }
    }
}

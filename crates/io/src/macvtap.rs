//! macvtap interface: a station of its own on the network of an existing interface.
//!
//! The interface is created with our link address on top of another one (`eth0`), and removed with
//! its last queue; the network sees a second station. [`crate::vnet`] carries the frames. The
//! kernel of this machine cannot be reached through it; other macvlan and macvtap interfaces on the
//! same lower interface can, in the mode `bridge`.
//!
//! The kernel must not use the interface itself: IPv6 is disabled on it, and it has no address.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::str::FromStr;
use std::sync::Arc;

use crate::clock::entropy;
use crate::disk;
use crate::interface::{InterfaceControl, ifreq, ioctl};
use crate::netlink::{self, CreatedInterface};
use crate::open_error::{LinkKind, OpenLinkError};
use crate::tap;
use crate::vnet::VnetLink;

/// Traffic between interfaces on the same lower interface (`macvlan` in ip-link(8)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MacvtapMode {
    /// None.
    Private,
    /// Through a switch that reflects it.
    Vepa,
    /// Directly.
    #[default]
    Bridge,
    /// There is only one, which takes over the lower interface and its link address.
    Passthru,
}

impl MacvtapMode {
    /// Returns the number in `enum macvlan_mode` of Linux.
    const fn number(self) -> u32 {
        match self {
            Self::Private => 1,
            Self::Vepa => 2,
            Self::Bridge => 4,
            Self::Passthru => 8,
        }
    }

    /// Returns the name, as in ip-link(8).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Vepa => "vepa",
            Self::Bridge => "bridge",
            Self::Passthru => "passthru",
        }
    }
}

impl FromStr for MacvtapMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Private, Self::Vepa, Self::Bridge, Self::Passthru];
        all.into_iter().find(|mode| mode.name() == text).ok_or_else(|| {
            format!("unknown macvtap mode `{text}`; expected private, vepa, bridge or passthru")
        })
    }
}

/// Configuration of a macvtap.
#[derive(Clone, Debug)]
pub struct MacvtapConfig {
    /// Interface below.
    pub lower: String,
    /// Traffic between interfaces on `lower`.
    pub mode: MacvtapMode,
    /// Descriptors to open, one per queue of the device, at least 1. The kernel keeps each flow on
    /// one.
    pub queues: usize,
    /// Link address of the interface.
    pub mac: [u8; 6],
    /// True if runs of segments and partial checksums may cross, in both directions.
    pub offloads: bool,
}

/// Minimum index of a created interface, and the number of indexes to choose from.
const INDEX_MIN: u32 = 1 << 30;

/// Returns the name of the macvtap on an interface: with `ob-` before it, and at most 15 bytes.
#[must_use]
pub fn interface_name(lower: &str) -> String {
    let mut name = format!("ob-{lower}");
    while name.len() >= libc::IFNAMSIZ {
        name.pop();
    }
    name
}

/// Creates the interface and opens it. Returns one link for each queue; the interface is removed
/// with the last of them. An interface of a process that was killed is replaced.
///
/// # Errors
/// As [`OpenLinkError`] lists them. An interface that was created is removed again.
pub fn open(config: &MacvtapConfig) -> Result<Vec<VnetLink>, OpenLinkError> {
    let lower = InterfaceControl::new(LinkKind::Macvtap, &config.lower)?;
    let index = lower.index()?;
    lower.require_ethernet()?;
    create(config, index)
}

fn create(config: &MacvtapConfig, lower: u32) -> Result<Vec<VnetLink>, OpenLinkError> {
    let name = interface_name(&config.lower);
    let interface = InterfaceControl::new(LinkKind::Macvtap, &name)?;
    // The nodes of all network namespaces are in one /dev, named by the interface's index, and each
    // namespace counts from one: a random index avoids a common name.
    let index = INDEX_MIN + u32::try_from(entropy() % u64::from(INDEX_MIN)).unwrap_or(0);
    let add = || netlink::add_macvtap((&name, index), lower, config.mode.number(), config.mac);
    let mut added = add();
    if matches!(&added, Err(error) if error.raw_os_error() == Some(libc::EEXIST)) {
        let old = interface.index()?;
        // The lock shows that no process uses it.
        drop(open_queue(&interface, old).and_then(|file| lock_node(&interface, file))?);
        netlink::delete_interface(old).map_err(interface.error("delete"))?;
        added = add();
    }
    added.map_err(|source| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => interface.error("create")(source),
        _ => OpenLinkError::NoMacvtap { lower: config.lower.clone(), source },
    })?;
    let created = Arc::new(CreatedInterface::new(index));
    interface.set_ipv6_option("disable_ipv6", "1");
    // Multicast of IPv6 neighbor discovery arrives without a kernel address that asks for it.
    interface.set_flags(libc::IFF_UP | libc::IFF_ALLMULTI)?;
    let mtu = interface.mtu()?;
    let mut links = Vec::new();
    for queue in 0..config.queues.max(1) {
        let mut file = open_queue(&interface, index)?;
        if queue == 0 {
            file = lock_node(&interface, file)?;
        }
        let offloads = tap::set_up_queue(&file, &interface, config.offloads)?;
        let link = VnetLink::new(file, &name, mtu, offloads);
        links.push(link.with_interface(Arc::clone(&created)));
    }
    Ok(links)
}

/// Opens a queue of the interface, through its device node.
fn open_queue(interface: &InterfaceControl, index: u32) -> Result<File, OpenLinkError> {
    let node = format!("/dev/tap{index}");
    let no_node = |why: String| OpenLinkError::NoMacvtapNode {
        node: node.clone(),
        name: interface.name().to_owned(),
        why,
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&node)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenLinkError::DeviceDenied { node: node.clone() },
            _ => no_node(error.to_string()),
        })?;
    // A container may have a /dev of its own, with other nodes.
    let mut request = ifreq("");
    ioctl(&file, libc::TUNGETIFF, &mut request).map_err(|error| no_node(error.to_string()))?;
    let is_named = |name: &str| request.ifr_name == ifreq(name).ifr_name;
    if !is_named(interface.name()) {
        return Err(no_node("it belongs to another interface".to_owned()));
    }
    Ok(file)
}

/// Locks the device node, so that another process finds the interface in use.
fn lock_node(interface: &InterfaceControl, file: File) -> Result<File, OpenLinkError> {
    if disk::lock(&file).map_err(interface.error("lock"))? {
        return Ok(file);
    }
    let name = interface.name().to_owned();
    Err(OpenLinkError::Busy { kind: LinkKind::Macvtap, name })
}

//! Facts about a machine, as the kernel reports them.
//!
//! Filled in by [`super::collect`], and by tests. The checks read nothing else.

use io::interface_info::InterfaceInfo;
use io::xdp_features::XdpFeatures;

/// Facts about the machine and this process.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineFacts {
    /// Version of the kernel.
    pub(super) kernel: (u32, u32),
    /// Maker of the machine as its firmware reports it, such as "Amazon EC2"; empty if it is not
    /// known.
    pub(super) vendor: String,
    /// Features of the first CPU, as in /proc/cpuinfo.
    pub(super) cpu_flags: Vec<String>,
    /// Cores that this process may use.
    pub(super) cores: usize,
    /// Effective capabilities, as a mask.
    pub(super) capabilities: u64,
    /// Soft limit of open files; `None` if there is none.
    pub(super) open_files_max: Option<u64>,
    /// Soft limit of locked memory in bytes; `None` if there is none.
    pub(super) locked_bytes_max: Option<u64>,
    /// `net.core.rmem_max` and `net.core.wmem_max`, in bytes.
    pub(super) socket_buffers_max: Option<(u64, u64)>,
    /// `net.core.busy_poll`, in microseconds.
    pub(super) busy_poll_us: u64,
    /// `net.ipv4.ip_forward` is on.
    pub(super) forwards: bool,
    /// User namespaces may be created without privileges.
    pub(super) user_namespaces: bool,
    /// `kernel.unprivileged_bpf_disabled` is not 0.
    pub(super) bpf_needs_privilege: bool,
    /// Why io_uring cannot be used; `None` if it can.
    pub(super) uring_failure: Option<String>,
    /// /dev/net/tun.
    pub(super) tun: DeviceNode,
    /// The driver of macvtap; `None` if that is not known.
    pub(super) has_macvtap: Option<bool>,
    /// TAP interfaces that exist and belong to this user.
    pub(super) own_taps: Vec<String>,
    /// NetworkManager runs.
    pub(super) network_manager: bool,
    /// The folder of `--folder`.
    pub(super) folder: Option<FolderFacts>,
    /// The interface to examine; `None` if none was named and there is no default route.
    pub(super) interface: Option<InterfaceFacts>,
}

/// State of a device node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DeviceNode {
    #[default]
    Missing,
    Denied,
    Usable,
}

/// Facts about a folder.
#[derive(Clone, Debug)]
pub(super) struct FolderFacts {
    /// Its path.
    pub(super) path: String,
    /// A file in it can be read without the page cache; `None` if it has no file to try.
    pub(super) direct_io: Option<bool>,
}

/// Facts about an interface.
#[derive(Clone, Debug, Default)]
pub(super) struct InterfaceFacts {
    /// Its name.
    pub(super) name: String,
    /// It has an Ethernet header (`ARPHRD_ETHER`).
    pub(super) is_ethernet: bool,
    /// It is administratively up.
    pub(super) is_up: bool,
    /// It has a carrier.
    pub(super) has_carrier: bool,
    /// It is a wireless interface.
    pub(super) is_wireless: bool,
    /// Kind and name of the interface that it is a port of, such as `bridge br0`.
    pub(super) master: Option<String>,
    /// MTU in bytes; 65535 if it is larger.
    pub(super) mtu: u16,
    /// Prefix length of its first IPv4 address.
    pub(super) prefix: Option<u8>,
    /// Gateway of the default route through it.
    pub(super) gateway: Option<String>,
    /// Driver, queues and offloads.
    pub(super) info: InterfaceInfo,
    /// XDP features; `None` if the kernel does not tell.
    pub(super) xdp: Option<XdpFeatures>,
}

/// Numbers of capabilities(7).
pub(super) const CAP_NET_ADMIN: u32 = 12;
pub(super) const CAP_NET_RAW: u32 = 13;
pub(super) const CAP_IPC_LOCK: u32 = 14;
pub(super) const CAP_BPF: u32 = 39;

impl MachineFacts {
    /// Returns whether this process has a capability.
    pub(super) const fn has(&self, capability: u32) -> bool {
        self.capabilities & (1 << capability) != 0
    }

    /// Returns whether the CPU has a feature.
    pub(super) fn has_cpu(&self, flag: &str) -> bool {
        self.cpu_flags.iter().any(|f| f == flag)
    }
}

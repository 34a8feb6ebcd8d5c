//! Errors of opening a link. Each message is one line that says what to do.

use std::fmt;
use std::io;
use std::net::IpAddr;

/// Kind of a link that is opened by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// A TAP interface.
    Tap,
    /// A macvtap interface.
    Macvtap,
    /// A packet socket on an interface.
    PacketSocket,
    /// XDP sockets on an interface.
    Xdp,
}

impl LinkKind {
    /// Returns how to get the permission to open such a link.
    const fn permission_advice(self) -> &'static str {
        match self {
            Self::Tap | Self::Macvtap => {
                "run as root, grant CAP_NET_ADMIN, or use `make run`, which creates a private \
                 network namespace"
            }
            Self::PacketSocket => {
                "run as root, grant CAP_NET_RAW, or use `make run`, which creates a private \
                 network namespace"
            }
            Self::Xdp => "run as root, or grant CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF",
        }
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tap => "TAP",
            Self::Macvtap => "macvtap",
            Self::PacketSocket => "packet socket on",
            Self::Xdp => "XDP socket on",
        })
    }
}

/// Reason for which a link could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenLinkError {
    /// The process may not create or configure network interfaces, or open packet sockets.
    #[error(
        "cannot set up {kind} {name}: Operation not permitted; {}",
        kind.permission_advice()
    )]
    NoPermission {
        /// The link.
        kind: LinkKind,
        /// The interface.
        name: String,
    },
    /// The process may not open the device node of a TAP or macvtap, which only root may on this
    /// machine.
    #[error(
        "cannot open {node}: Permission denied; run as root, or allow access with `chmod 666 \
         {node}`"
    )]
    DeviceDenied {
        /// The device node.
        node: String,
    },
    /// Another process holds the interface.
    #[error(
        "cannot open {kind} {name}: in use by another process; stop it, or choose another \
         interface with --link"
    )]
    Busy {
        /// The link.
        kind: LinkKind,
        /// The interface.
        name: String,
    },
    /// The kernel has no TUN/TAP driver, or the device node is missing.
    #[error(
        "cannot open /dev/net/tun: no such device; run `modprobe tun`, or start the container \
         with --device /dev/net/tun"
    )]
    NoTunDriver,
    /// The kernel has no macvtap driver, or the interface cannot have a macvtap on it.
    #[error(
        "cannot create a macvtap on {lower}: {source}; run `modprobe macvtap`, and use an \
         interface that is in no bridge or bond"
    )]
    NoMacvtap {
        /// The interface below.
        lower: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The device node of a macvtap is missing, or is that of another interface.
    #[error(
        "cannot open {node} for macvtap {name}: {why}; /dev must be a devtmpfs, or create the \
         node with the number in /sys/class/net/{name}/macvtap/*/dev"
    )]
    NoMacvtapNode {
        /// The device node.
        node: String,
        /// The interface.
        name: String,
        /// The reason.
        why: String,
    },
    /// There is no interface of this name.
    #[error("no interface {name}; `ip link` lists them")]
    NoInterface {
        /// The name.
        name: String,
    },
    /// Not an Ethernet interface.
    #[error("interface {name} is not an Ethernet interface; `ip link` lists the types")]
    NotEthernet {
        /// The name.
        name: String,
    },
    /// Not a valid interface name, or the name of an interface of another type.
    #[error("invalid {kind} name {name:?}: {why}; choose another with --link")]
    BadName {
        /// The link.
        kind: LinkKind,
        /// The name.
        name: String,
        /// The rule that the name violates.
        why: &'static str,
    },
    /// The address for the kernel's end is already on another interface.
    #[error(
        "address {addr} is already in use on interface {interface}; choose another with --peer"
    )]
    AddressInUse {
        /// The address.
        addr: IpAddr,
        /// The interface that has it.
        interface: String,
    },
    /// A frame of this MTU does not fit a chunk of the memory of XDP sockets.
    #[error(
        "interface {name} has MTU {mtu}, and XDP sockets take at most {max}; run `ip link set \
         {name} mtu {max}`"
    )]
    MtuTooLarge {
        /// The interface.
        name: String,
        /// Its MTU.
        mtu: u16,
        /// The limit.
        max: u16,
    },
    /// The device has more queues than the interface.
    #[error(
        "interface {name} has fewer receive queues ({has}) than --queues ({asked}); reduce \
         --queues, or add queues with `ethtool -L {name}`"
    )]
    TooFewQueues {
        /// The interface.
        name: String,
        /// Its receive queues.
        has: u32,
        /// Queues of the device.
        asked: u32,
    },
    /// The interface has an XDP program.
    #[error(
        "interface {name} has an XDP program already; stop the process that has attached it, or \
         remove it with `ip link set dev {name} xdp off`"
    )]
    HasXdpProgram {
        /// The interface.
        name: String,
    },
    /// The driver does not support zero-copy.
    #[error("the driver of interface {name} has no zero-copy; omit `zerocopy` from --link")]
    NoZeroCopy {
        /// The interface.
        name: String,
    },
    /// The interface does not complete checksums.
    #[error(
        "interface {name} cannot complete checksums of XDP frames, which takes Linux 6.11, and \
         without a copy a driver that can; omit `tx-checksum` from --link, or add `copy`"
    )]
    NoTxChecksum {
        /// The interface.
        name: String,
    },
    /// The process may not lock as much memory as an XDP socket needs.
    #[error(
        "cannot lock the memory of an XDP socket on {name}; run `ulimit -l unlimited` before, or \
         grant CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// The interface.
        name: String,
    },
    /// An address of the stack is the kernel's.
    #[error(
        "address {addr} is already in use on interface {interface}; choose another with --addr, \
         or use both stacks on it with --share-address"
    )]
    AddressOfKernel {
        /// The address.
        addr: IpAddr,
        /// The interface that has it.
        interface: String,
    },
    /// An address to share is not on the interface.
    #[error(
        "interface {interface} does not have address {addr}; give its address with --addr, or \
         omit --share-address"
    )]
    AddressNotShared {
        /// The address.
        addr: IpAddr,
        /// The interface.
        interface: String,
    },
    /// The kernel may use the stack's ports of active opens.
    #[error(
        "the kernel's local ports {}-{} overlap those of --share-address, {first}-{last}; run \
         `sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"`",
        kernel.0,
        kernel.1
    )]
    PortsOfKernel {
        /// First and last port of the kernel.
        kernel: (u16, u16),
        /// First port of the stack.
        first: u16,
        /// Last port of the stack.
        last: u16,
    },
    /// More ports than the XDP program can have.
    #[error("--share-address with {count} listening ports; at most {max} are possible")]
    TooManyPorts {
        /// Ports to listen on.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// Any other error.
    #[error("cannot {doing} interface {name}: {source}; check `ip link show {name}`")]
    Other {
        /// The interface.
        name: String,
        /// The failed action: a verb, and a preposition if the interface's name needs one.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl OpenLinkError {
    /// Converts the kernel's error after the action `doing` on interface `name`.
    pub(crate) fn from_io(
        kind: LinkKind,
        name: &str,
        doing: &'static str,
        source: io::Error,
    ) -> Self {
        let name = name.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NoPermission { kind, name },
            Some(libc::EBUSY) => Self::Busy { kind, name },
            _ => Self::Other { name, doing, source },
        }
    }
}

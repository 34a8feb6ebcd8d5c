//! Which links can be used, and which to take.

use serde::Serialize;

use io::xdp;

use super::facts::{
    CAP_BPF, CAP_IPC_LOCK, CAP_NET_ADMIN, CAP_NET_RAW, DeviceNode, InterfaceFacts, MachineFacts,
};

/// Bytes of locked memory of an XDP socket, with some for its rings.
const XDP_SOCKET_BYTES: u64 = 17 << 20;

/// Reason for which a link cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Obstacle {
    /// A privilege is missing.
    Permission,
    /// The machine or the network does not allow it.
    Unavailable,
}

/// Verdict on the use of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct LinkVerdict {
    /// The value of `--link`.
    pub(super) link: String,
    /// `None` if it can be used.
    pub(super) obstacle: Option<Obstacle>,
    /// Why it cannot be used, or a remark.
    pub(super) why: String,
    /// What to do; empty if nothing can be done or needs to be.
    pub(super) fix: String,
}

impl LinkVerdict {
    fn usable(link: String, why: &str) -> Self {
        Self { link, obstacle: None, why: why.to_owned(), fix: String::new() }
    }

    /// A link that can be used, but costs more than it has to, or needs something of the peer.
    fn slow(link: String, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { link, obstacle: None, why: why.into(), fix: fix.into() }
    }

    fn refused(
        link: String,
        obstacle: Obstacle,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { link, obstacle: Some(obstacle), why: why.into(), fix: fix.into() }
    }

    pub(super) const fn is_usable(&self) -> bool {
        self.obstacle.is_none()
    }
}

/// The link to take, and the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Recommendation {
    pub(super) link: String,
    pub(super) queues: usize,
    pub(super) crypto_workers: usize,
    /// Why this link.
    pub(super) why: String,
    /// Commands in order; the last one starts a server.
    pub(super) commands: Vec<String>,
}

/// Returns a verdict about each link, the one to prefer first.
pub(super) fn verdicts(facts: &MachineFacts) -> Vec<LinkVerdict> {
    let mut all = Vec::new();
    if let Some(interface) = &facts.interface {
        all.push(macvtap(facts, interface));
        all.push(packet(facts, interface));
    }
    all.push(tap(facts));
    // Last, because no driver but that of veth has been tested.
    all.extend(facts.interface.as_ref().map(|interface| xdp(facts, interface)));
    all
}

/// Returns why the network drops frames of a second station, if it is known to.
fn station_filter(facts: &MachineFacts, interface: &InterfaceFacts) -> Option<String> {
    let name = &interface.name;
    if interface.is_wireless {
        return Some(format!(
            "{name} is wireless: its network admits one link address per station"
        ));
    }
    let driver = interface.info.driver.as_deref().unwrap_or_default();
    let cloud = ["Amazon", "Google", "Microsoft"].into_iter().find(|v| facts.vendor.contains(v));
    let filter = match (driver, cloud) {
        ("ena", _) | ("virtio_net", Some("Amazon")) => "Amazon EC2",
        ("gve", _) | ("virtio_net", Some("Google")) => "Google Cloud",
        ("hv_netvsc" | "mana", _) => "Hyper-V and Azure",
        ("vmxnet3", _) => "VMware with forged transmits rejected, its default,",
        _ => return None,
    };
    Some(format!("{filter} drops frames of other link addresses than that of {name} ({driver})"))
}

/// Returns why an interface carries no frames of ours.
fn unusable(facts: &MachineFacts, interface: &InterfaceFacts) -> Option<(String, String)> {
    let name = &interface.name;
    if !interface.is_ethernet {
        return Some((format!("{name} is not an Ethernet interface"), String::new()));
    }
    let filter = station_filter(facts, interface)?;
    Some((filter, "use tap:ob0 with routing or NAT".to_owned()))
}

fn macvtap(facts: &MachineFacts, interface: &InterfaceFacts) -> LinkVerdict {
    let link = format!("macvtap:{}", interface.name);
    let refused = |why: String, fix: String| {
        LinkVerdict::refused(link.clone(), Obstacle::Unavailable, why, fix)
    };
    if let Some((why, fix)) = unusable(facts, interface) {
        return refused(why, fix);
    }
    if let Some(master) = &interface.master {
        let why = format!("{} is a port of {master}, which takes all its frames", interface.name);
        return refused(why, "use tap:ob0, and make it a port as well".to_owned());
    }
    if facts.has_macvtap == Some(false) {
        let why = "this kernel has no macvtap driver".to_owned();
        return refused(why, "install the kernel's extra modules".to_owned());
    }
    if !facts.has(CAP_NET_ADMIN) {
        let fix = "run with sudo, or grant CAP_NET_ADMIN";
        return LinkVerdict::refused(link, Obstacle::Permission, "needs CAP_NET_ADMIN", fix);
    }
    let remark = if facts.network_manager {
        "a station of its own; tell NetworkManager not to manage ob-*"
    } else {
        "a station of its own on the network"
    };
    LinkVerdict::usable(link, remark)
}

fn packet(facts: &MachineFacts, interface: &InterfaceFacts) -> LinkVerdict {
    let link = format!("packet:{}", interface.name);
    if let Some((why, fix)) = unusable(facts, interface) {
        return LinkVerdict::refused(link, Obstacle::Unavailable, why, fix);
    }
    if !facts.has(CAP_NET_RAW) {
        let fix = "run with sudo, or grant CAP_NET_RAW";
        return LinkVerdict::refused(link, Obstacle::Permission, "needs CAP_NET_RAW", fix);
    }
    LinkVerdict::usable(link, "a station of its own; the kernel sees the frames too")
}

fn tap(facts: &MachineFacts) -> LinkVerdict {
    let own = facts.own_taps.first();
    let link = own.map_or_else(|| "tap:ob0".to_owned(), |name| format!("tap:{name}"));
    match facts.tun {
        DeviceNode::Missing => LinkVerdict::refused(
            link,
            Obstacle::Unavailable,
            "there is no /dev/net/tun",
            "sudo modprobe tun, or start the container with --device /dev/net/tun",
        ),
        DeviceNode::Denied => LinkVerdict::refused(
            link,
            Obstacle::Permission,
            "/dev/net/tun may not be opened",
            "run with sudo, or sudo chmod 666 /dev/net/tun",
        ),
        DeviceNode::Usable if facts.has(CAP_NET_ADMIN) => {
            LinkVerdict::usable(link, "to this machine, whose kernel routes or bridges")
        }
        DeviceNode::Usable if own.is_some() => {
            LinkVerdict::usable(link, "a TAP of this user, with one queue")
        }
        DeviceNode::Usable => {
            let fix = if facts.user_namespaces {
                "run with sudo, or try it in a private namespace: unshare -rn"
            } else {
                "run with sudo, or grant CAP_NET_ADMIN"
            };
            LinkVerdict::refused(link, Obstacle::Permission, "needs CAP_NET_ADMIN", fix)
        }
    }
}

/// XDP sockets use the interface's link address, so that no network drops their frames.
fn xdp(facts: &MachineFacts, interface: &InterfaceFacts) -> LinkVerdict {
    let name = &interface.name;
    let link = format!("xdp:{name}");
    if let Some((why, fix)) = xdp_obstacle(facts, interface) {
        return LinkVerdict::refused(link, Obstacle::Unavailable, why, fix);
    }
    let needed =
        [(CAP_NET_ADMIN, "CAP_NET_ADMIN"), (CAP_NET_RAW, "CAP_NET_RAW"), (CAP_BPF, "CAP_BPF")];
    let missing: Vec<_> =
        needed.iter().filter(|(number, _)| !facts.has(*number)).map(|(_, name)| *name).collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        let fix = format!("run with sudo, or grant {missing} (AmbientCapabilities= in the unit)");
        return LinkVerdict::refused(link, Obstacle::Permission, format!("needs {missing}"), fix);
    }
    let sockets = interface.info.rx_queues.unwrap_or(1).max(1);
    let locked = u64::from(sockets) * XDP_SOCKET_BYTES;
    if !facts.has(CAP_IPC_LOCK) && facts.locked_bytes_max.is_some_and(|max| max < locked) {
        let why =
            format!("{} of 17 MiB each do not fit the limit of locked memory", queues(sockets));
        let fix = "ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, or grant CAP_IPC_LOCK";
        return LinkVerdict::refused(link, Obstacle::Permission, why, fix);
    }
    xdp_speed(link, interface)
}

/// Returns why the kernel or the interface cannot have XDP sockets, and what to do.
fn xdp_obstacle(facts: &MachineFacts, interface: &InterfaceFacts) -> Option<(String, String)> {
    let InterfaceFacts { name, mtu, .. } = interface;
    if !interface.is_ethernet {
        return Some((format!("{name} is not an Ethernet interface"), String::new()));
    }
    if let Some(master) = &interface.master {
        let why = format!("{name} is a port of {master}, whose link address its packets have");
        return Some((why, "use tap:ob0, and make it a port as well".to_owned()));
    }
    if facts.kernel < (5, 9) {
        let fix = "install Linux 5.9 or later".to_owned();
        return Some(("programs are attached by BPF links".to_owned(), fix));
    }
    let max = xdp::mtu_max(facts.kernel);
    let too_large = *mtu > max;
    too_large.then(|| {
        let why = format!("the MTU of {mtu} is above {max}, which sockets take");
        (why, format!("sudo ip link set {name} mtu {max}"))
    })
}

/// Returns the verdict on a link that can be used, with the part that costs most.
fn xdp_speed(link: String, interface: &InterfaceFacts) -> LinkVerdict {
    let InterfaceFacts { name, mtu, info, .. } = interface;
    let chunk = xdp::mtu_max_of_chunk();
    let features = interface.xdp;
    if features.is_some_and(|features| !features.native) {
        let why = "in the kernel: the driver runs no XDP programs, so a frame costs as with packet";
        return LinkVerdict::slow(link, why, format!("use packet:{name} if the network admits it"));
    }
    if info.driver.as_deref() == Some("veth") {
        let why = "in the driver, with a copy; the peer must send complete packets";
        let fix = "at the other end: ethtool -K PEER tx off tso off gso off";
        return LinkVerdict::slow(link, why, fix);
    }
    if *mtu > chunk {
        let why = format!("a frame takes several chunks of memory with the MTU of {mtu}");
        return LinkVerdict::slow(link, why, format!("sudo ip link set {name} mtu {chunk}"));
    }
    if info.lro == Some(true) {
        let why = "drivers refuse a program, or cut frames, while the interface merges them";
        return LinkVerdict::slow(link, why, format!("sudo ethtool -K {name} lro off"));
    }
    let how = match features {
        Some(features) if features.zero_copy => "in the driver, without a copy",
        Some(_) => "in the driver, with a copy",
        None => "in the driver if it can",
    };
    let sockets = queues(info.rx_queues.unwrap_or(1).max(1));
    LinkVerdict::usable(link, &format!("the link address of {name}, {how}; {sockets}"))
}

/// Returns the number of sockets, one for each receive queue, in words.
fn queues(count: u32) -> String {
    cli::counted(usize::try_from(count).unwrap_or(usize::MAX), "socket")
}

/// Returns the recommendation; `None` if no link can be used.
pub(super) fn recommend(facts: &MachineFacts, links: &[LinkVerdict]) -> Option<Recommendation> {
    let best = links.iter().find(|verdict| verdict.is_usable())?;
    let is_tap = best.link.starts_with("tap:");
    // A persistent TAP of an unprivileged user has one queue.
    let one_queue = is_tap && !facts.has(CAP_NET_ADMIN);
    // Two threads for each queue, and one that encrypts beside them.
    let queues = if one_queue { 1 } else { (facts.cores / 3).clamp(1, 16) };
    let crypto_workers = usize::from(facts.cores >= 3);
    let mut start = format!("outboard serve DIR --link {}", best.link);
    let mut commands = Vec::new();
    match &facts.interface {
        _ if is_tap => {
            if !facts.forwards && facts.has(CAP_NET_ADMIN) {
                commands.push("sysctl -w net.ipv4.ip_forward=1".to_owned());
            }
            start.push_str(" --gateway 10.77.0.1");
        }
        Some(interface) => {
            let prefix = interface.prefix.unwrap_or(24);
            start.push_str(&format!(" --addr FREE_ADDRESS/{prefix}"));
            if let Some(gateway) = &interface.gateway {
                start.push_str(&format!(" --gateway {gateway}"));
            }
        }
        None => {}
    }
    if queues > 1 {
        start.push_str(&format!(" --queues {queues}"));
    }
    if crypto_workers > 0 {
        start.push_str(&format!(" --crypto-workers {crypto_workers}"));
    }
    commands.push(start);
    let mut why = best.why.clone();
    if queues > 1 {
        why.push_str("; the device splices and closes connections with --queues 1 only");
    }
    Some(Recommendation { link: best.link.clone(), queues, crypto_workers, why, commands })
}

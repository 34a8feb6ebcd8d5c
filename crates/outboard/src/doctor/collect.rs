//! Collects the facts of this machine.
//!
//! Reads /proc, /sys and the kernel's answers. Changes nothing: it opens /dev/net/tun without
//! attaching to an interface, and an io_uring that it closes again.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use io::disk;
use io::interface_info::{InterfaceStatus, interface_info, interface_status};
use io::xdp_features::xdp_features;

use super::facts::{DeviceNode, FolderFacts, InterfaceFacts, MachineFacts};

/// Files of a folder that are looked at for one to try.
const FILES_MAX: usize = 1000;

/// Returns the facts about this machine, an interface and a folder. Without an interface, that of
/// the default route is examined.
pub(super) fn collect(interface: Option<&str>, folder: Option<&Path>) -> MachineFacts {
    let status = text("/proc/self/status");
    let limits = text("/proc/self/limits");
    let routes = text("/proc/net/route");
    let route = default_route(&routes);
    let name =
        interface.map(str::to_owned).or_else(|| route.as_ref().map(|(name, _)| name.clone()));
    let buffers = number("/proc/sys/net/core/rmem_max").zip(number("/proc/sys/net/core/wmem_max"));
    MachineFacts {
        kernel: io::tap::kernel_version(),
        vendor: text("/sys/class/dmi/id/sys_vendor").trim().to_owned(),
        cpu_flags: cpu_flags(&text("/proc/cpuinfo")),
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        capabilities: field(&status, "CapEff:")
            .and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .unwrap_or(0),
        open_files_max: limit(&limits, "Max open files"),
        locked_bytes_max: limit(&limits, "Max locked memory"),
        socket_buffers_max: buffers,
        busy_poll_us: number("/proc/sys/net/core/busy_poll").unwrap_or(0),
        forwards: number("/proc/sys/net/ipv4/ip_forward") == Some(1_u64),
        user_namespaces: number("/proc/sys/user/max_user_namespaces").unwrap_or(0) > 0_u64
            && number("/proc/sys/kernel/unprivileged_userns_clone") != Some(0_u64),
        bpf_needs_privilege: number("/proc/sys/kernel/unprivileged_bpf_disabled") != Some(0_u64),
        uring_failure: uring_failure(),
        tun: tun(),
        has_macvtap: has_macvtap(),
        own_taps: own_taps(field(&status, "Uid:").and_then(|uid| uid.parse().ok())),
        network_manager: Path::new("/run/NetworkManager").exists(),
        folder: folder.map(folder_facts),
        interface: name.and_then(|name| {
            let status = interface_status(&name).ok().flatten()?;
            let gateway = route.filter(|(of, _)| *of == name).map(|(_, gateway)| gateway);
            let prefix = on_link_prefix(&routes, &name);
            Some(InterfaceFacts { gateway, prefix, ..interface_facts(name, status) })
        }),
    }
}

/// Returns the folder of an interface in /sys, if that describes our network namespace.
fn sys(interface: &str) -> Option<PathBuf> {
    let folder = Path::new("/sys/class/net").join(interface);
    let index = interface_status(interface).ok().flatten()?.index;
    (number(folder.join("ifindex")) == Some(index)).then_some(folder)
}

/// Returns the content of a file of the kernel; empty if it cannot be read.
fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn number<T: FromStr>(path: impl AsRef<Path>) -> Option<T> {
    text(path).trim().parse().ok()
}

/// Returns the first word after a label at the beginning of a line.
fn field<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(label))?.split_whitespace().next()
}

/// Returns a soft limit; `None` if there is none.
fn limit(limits: &str, label: &str) -> Option<u64> {
    field(limits, label)?.parse().ok()
}

fn cpu_flags(cpuinfo: &str) -> Vec<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let flags = line.split_once(':').map_or("", |(_, flags)| flags);
    flags.split_whitespace().map(str::to_owned).collect()
}

/// A route in /proc/net/route.
struct Route<'a> {
    interface: &'a str,
    destination: u32,
    gateway: u32,
    mask: u32,
}

/// Parses /proc/net/route. Its numbers have the byte order of the machine, and are of addresses in
/// network byte order.
fn routes(text: &str) -> impl Iterator<Item = Route<'_>> {
    text.lines().skip(1).filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let hex = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
        let interface = words.first()?;
        Some(Route { interface, destination: hex(1)?, gateway: hex(2)?, mask: hex(7)? })
    })
}

/// Returns the interface and the gateway of the default route.
fn default_route(text: &str) -> Option<(String, String)> {
    let route = routes(text).find(|route| (route.destination, route.mask) == (0, 0))?;
    let gateway = std::net::Ipv4Addr::from(route.gateway.to_ne_bytes());
    Some((route.interface.to_owned(), gateway.to_string()))
}

/// Returns the prefix length of the network of an interface.
fn on_link_prefix(text: &str, interface: &str) -> Option<u8> {
    let is_ours =
        |route: &Route<'_>| route.interface == interface && route.gateway == 0 && route.mask != 0;
    u8::try_from(routes(text).find(is_ours)?.mask.count_ones()).ok()
}

fn uring_failure() -> Option<String> {
    let error = disk::check_uring().err()?;
    let disabled = number("/proc/sys/kernel/io_uring_disabled").unwrap_or(0) > 0_u64;
    Some(match disabled {
        true => "disabled by kernel.io_uring_disabled".to_owned(),
        false => error.to_string(),
    })
}

fn tun() -> DeviceNode {
    match OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => DeviceNode::Usable,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => DeviceNode::Denied,
        Err(_) => DeviceNode::Missing,
    }
}

/// Returns whether the kernel has the driver, loaded, built in or as a module.
fn has_macvtap() -> Option<bool> {
    if Path::new("/sys/module/macvtap").exists() {
        return Some(true);
    }
    let release = text("/proc/sys/kernel/osrelease");
    let modules = Path::new("/lib/modules").join(release.trim());
    let lists = ["modules.builtin", "modules.dep"].map(|list| text(modules.join(list)));
    if lists.iter().all(String::is_empty) {
        return None;
    }
    Some(lists.iter().any(|list| list.contains("/macvtap.ko")))
}

/// Returns the TAP interfaces that belong to a user.
fn own_taps(uid: Option<u32>) -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let is_own = |name: &String| {
        uid.is_some() && sys(name).and_then(|sys| number::<u32>(sys.join("owner"))) == uid
    };
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_own).collect()
}

fn folder_facts(folder: &Path) -> FolderFacts {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().take(FILES_MAX);
    let file = files
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .find_map(|entry| File::open(entry.path()).ok());
    let direct_io = file.as_ref().map(disk::accepts_direct_io);
    FolderFacts { path: folder.display().to_string(), direct_io }
}

fn interface_facts(name: String, status: InterfaceStatus) -> InterfaceFacts {
    let InterfaceStatus { index, is_ethernet, is_up, has_carrier, mtu, master } = status;
    let kind = |master: String| {
        let driver = interface_info(&master).unwrap_or_default().driver;
        format!("{} {master}", driver.as_deref().unwrap_or("interface"))
    };
    InterfaceFacts {
        is_ethernet,
        is_up,
        has_carrier,
        is_wireless: is_wireless(&name),
        master: master.map(kind),
        mtu,
        prefix: None,
        gateway: None,
        info: interface_info(&name).unwrap_or_default(),
        xdp: xdp_features(index).ok(),
        name,
    }
}

fn is_wireless(name: &str) -> bool {
    let listed = text("/proc/net/wireless")
        .lines()
        .any(|line| line.split_once(':').is_some_and(|(first, _)| first.trim() == name));
    let has = |entry| sys(name).is_some_and(|sys| sys.join(entry).exists());
    listed || has("wireless") || has("phy80211")
}

/// Returns the file of `--folder`, to fail early.
pub(super) fn open_folder(folder: &Path) -> Result<File, std::io::Error> {
    let file = File::open(folder)?;
    match file.metadata()?.is_dir() {
        true => Ok(file),
        false => Err(ErrorKind::NotADirectory.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_parsed() {
        let routes = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
            eth0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n\
            eth0\t00000000\t0102000A\t0003\t0\t0\t100\t00000000\t0\n";
        assert_eq!(default_route(routes), Some(("eth0".into(), "10.0.2.1".into())));
        assert_eq!(on_link_prefix(routes, "eth0"), Some(24));
        assert_eq!((default_route(""), on_link_prefix(routes, "eth1")), (None, None));
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
            Max open files            1024                 524288               files\n\
            Max locked memory         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024));
        assert_eq!(limit(limits, "Max locked memory"), None);
        assert_eq!(cpu_flags("processor\t: 0\nflags\t\t: fpu aes\n"), ["fpu", "aes"]);
        assert_eq!(field("Uid:\t1000\t1000\n", "Uid:"), Some("1000"));
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = collect(Some("lo"), Some(Path::new(env!("CARGO_MANIFEST_DIR"))));
        assert!(facts.kernel > (4, 0) && facts.cores > 0 && !facts.cpu_flags.is_empty());
        let lo = facts.interface.unwrap();
        assert!(!lo.is_ethernet && lo.name == "lo" && lo.mtu > 0);
        assert!(facts.folder.unwrap().direct_io.is_some());
    }
}

//! The device of a program under test in a process of its own, if `OUTBOARD_NIC` is `unix` or
//! `ether`: the kind of carrier between the two. With `ether` it runs over a veth pair in the
//! program's namespace.
//!
//! [`split_arguments`] divides the arguments of a test into those of `outboard nic` and those of
//! the program that attaches to it, so that the same tests run with both arrangements. Programs
//! that need what a device process does not have, such as a balance of queues, keep their own
//! device. Servers get their device from [`TestServer`](crate::TestServer), programs that a test
//! starts itself ([`crate::outboard`]) from the program `attached`.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Netns, run_for_output};

/// Options of the device alone, each with a value.
const OF_DEVICE: [&str; 21] = [
    "--link",
    BACKEND_LINK,
    "--backend-peer",
    "--peer",
    "--seed",
    "--drop",
    "--reorder",
    "--dup",
    "--corrupt",
    "--pcap",
    "--record",
    "--device-memory",
    "--max-contexts",
    "--max-quic-entries",
    "--max-splices",
    "--max-closures",
    "--max-nvme-buffers",
    "--file-memory",
    "--file-block",
    "--file-read-ahead",
    "--crypto-workers",
];
/// Option without a meaning: device and host have a thread each.
const THREADS: &str = "--threads";
/// Options of both sides with a value, and without.
const OF_BOTH: [&str; 2] = ["--offload", "--disk"];
const FLAGS_OF_BOTH: [&str; 4] = ["--strict-files", "--direct-io", "--sandbox", "--share-address"];
/// Options with which a program keeps its own device.
const NOT_YET: [&str; 1] = ["--queue-balance"];
/// Addresses of a program without `--addr`.
const DEFAULT_ADDRS: [&str; 2] = ["10.77.0.2/24", "fd77::2/64"];
const BACKEND_LINK: &str = "--backend-link";
/// Addresses of a proxy with `--backend-link`, but without `--backend-addr`.
const BACKEND_ADDRS: [&str; 4] = ["--backend-addr", "10.78.0.2/24", "--backend-addr", "fd78::2/64"];

/// Arguments of a device and of its program.
#[derive(Debug)]
pub struct SplitArguments {
    /// Of `outboard nic`, without its sockets.
    pub device: Vec<OsString>,
    /// Of the program, without `--nic`.
    pub program: Vec<OsString>,
}

/// Carriers between a program and its device process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarrierKind {
    /// Shared memory.
    Unix,
    /// Ethernet.
    Ether,
}

/// Returns the carrier, if the tests run with device processes.
///
/// # Panics
/// If `OUTBOARD_NIC` has another value.
pub(crate) fn selected() -> Option<CarrierKind> {
    let kind = std::env::var_os("OUTBOARD_NIC")?;
    match kind.to_str() {
        Some("unix") => Some(CarrierKind::Unix),
        Some("ether") => Some(CarrierKind::Ether),
        _ => panic!("OUTBOARD_NIC is unix or ether, not {}", kind.to_string_lossy()),
    }
}

/// Returns whether the device of a program under test is a process of its own, so that the
/// program's reports lack the device's counters.
#[must_use]
pub fn has_device_process() -> bool {
    selected().is_some()
}

/// Creates a veth pair for a carrier in a namespace. Returns the name of the program's interface,
/// and name and link address of the device's.
pub(crate) fn create_carrier_link(netns: &Netns) -> (String, String, String) {
    static PAIRS: AtomicU32 = AtomicU32::new(0);
    let number = PAIRS.fetch_add(1, Ordering::Relaxed);
    let (program, device) = (format!("obp{number}"), format!("obd{number}"));
    let script = format!(
        "ip link add {program} type veth peer name {device} && \
         ip link set {program} up && ip link set {device} up"
    );
    run_for_output(netns.command("sh").args(["-c", &script]));
    let address = link_address(netns, &device);
    (program, device, address)
}

/// Returns the link address of an interface.
pub(crate) fn link_address(netns: &Netns, interface: &str) -> String {
    let said = run_for_output(netns.command("ip").args(["-o", "link", "show", "dev", interface]));
    let (_, rest) = said.split_once("link/ether ").expect("an Ethernet interface");
    rest.split_whitespace().next().expect("an address").to_owned()
}

/// Divides arguments that begin with a verb; `None` if the program keeps its own device.
#[must_use]
pub fn split_arguments(args: &[OsString]) -> Option<SplitArguments> {
    let mut device = vec![OsString::from("nic")];
    let mut program = Vec::new();
    let verb = args.first()?.to_str()?;
    let sub = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default();
    match (verb, sub) {
        ("serve", source) if !source.contains("nvme://") => {
            device.extend(["--root".into(), root("site", source.as_ref())]);
        }
        ("nvme", "target") => device.extend(["--root".into(), root("all", Path::new("/"))]),
        ("nvme", "ctl" | "key") => return None,
        ("serve" | "proxy" | "get" | "nvme", _) => {}
        _ => return None,
    }
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let text = arg.to_str().unwrap_or_default();
        let (name, joined) = text.split_once('=').map_or((text, false), |(name, _)| (name, true));
        if ["--nic", "--check"].contains(&name) || NOT_YET.contains(&name) {
            return None;
        }
        if name == THREADS {
            if !joined {
                rest.next();
            }
            continue;
        }
        let flag = FLAGS_OF_BOTH.contains(&name);
        let (of_device, of_both) = (OF_DEVICE.contains(&name), OF_BOTH.contains(&name));
        let mut item = vec![arg.clone()];
        if (of_device || of_both) && !joined {
            item.extend(rest.next().cloned());
        }
        if of_device || of_both || flag {
            device.extend(item.iter().cloned());
        }
        if !of_device {
            program.extend(item);
        }
    }
    // The program of an XDP link selects frames by their addresses.
    if device.iter().any(|arg| arg.to_string_lossy().starts_with("xdp:")) {
        let given = program.windows(2).filter(|args| args[0] == "--addr");
        let mut addrs: Vec<_> = given.map(|args| args[1].clone()).collect();
        if addrs.is_empty() {
            addrs.extend(DEFAULT_ADDRS.map(OsString::from));
        }
        device.extend(addrs.into_iter().flat_map(|addr| ["--addr".into(), addr]));
    }
    if device.iter().any(|arg| arg == BACKEND_LINK)
        && !program.iter().any(|arg| arg == BACKEND_ADDRS[0])
    {
        program.extend(BACKEND_ADDRS.map(OsString::from));
    }
    Some(SplitArguments { device, program })
}

fn root(name: &str, path: &Path) -> OsString {
    let mut root = OsString::from(format!("{name}="));
    root.push::<&OsStr>(path.as_ref());
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_text(args: &str) -> Option<(String, String)> {
        let args: Vec<_> = args.split(' ').map(OsString::from).collect();
        let joined = |args: Vec<OsString>| args.join(OsStr::new(" ")).into_string().unwrap();
        split_arguments(&args).map(|split| (joined(split.device), joined(split.program)))
    }

    #[test]
    fn each_side_gets_its_options() {
        let (device, program) = split_text(
            "serve /srv --link tap:ob0 --addr 10.0.0.2/24 --drop=0.1 --offload none --tls \
             --strict-files",
        )
        .unwrap();
        assert_eq!(
            device,
            "nic --root site=/srv --link tap:ob0 --drop=0.1 --offload none --strict-files"
        );
        assert_eq!(program, "serve /srv --addr 10.0.0.2/24 --offload none --tls --strict-files");
        let (device, _) = split_text("proxy --addr 10.0.0.2/24 --link xdp:e0").unwrap();
        assert_eq!(device, "nic --link xdp:e0 --addr 10.0.0.2/24");
        let (device, program) = split_text("serve /srv --link xdp:e0 --share-address").unwrap();
        assert_eq!(
            device,
            "nic --root site=/srv --link xdp:e0 --share-address --addr 10.77.0.2/24 \
             --addr fd77::2/64"
        );
        assert_eq!(program, "serve /srv --share-address");
        let (device, program) = split_text("proxy --link xdp:e0 --share-address").unwrap();
        assert_eq!(
            device,
            "nic --link xdp:e0 --share-address --addr 10.77.0.2/24 --addr fd77::2/64"
        );
        assert_eq!(program, "proxy --share-address");
        let (device, program) = split_text("proxy --link tap:a --backend-link tap:b").unwrap();
        assert_eq!(device, "nic --link tap:a --backend-link tap:b");
        assert_eq!(program, "proxy --backend-addr 10.78.0.2/24 --backend-addr fd78::2/64");
        assert!(split_text("serve /srv --queues 2 --queue-balance 1").is_none());
        let (device, program) = split_text("serve /srv --link packet:e0 --addr dhcp").unwrap();
        assert_eq!(device, "nic --root site=/srv --link packet:e0");
        assert_eq!(program, "serve /srv --addr dhcp");
        let (device, program) =
            split_text("get http://h/ --crypto-workers 2 --threads two").unwrap();
        assert_eq!((&device[..], &program[..]), ("nic --crypto-workers 2", "get http://h/"));
        assert!(split_text("get http://h/ --nic unix:/run/nic").is_none());
        assert!(split_text("nvme ctl list --control c").is_none());
        assert!(split_text("stat --control c").is_none());
    }
}

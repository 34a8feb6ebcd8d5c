//! Checks of a machine and of an interface: each a function from facts to a finding.

use serde::Serialize;

use super::facts::{
    CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW, FolderFacts, InterfaceFacts, MachineFacts,
};

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FindingStatus {
    /// Nothing to do.
    Ok,
    /// Works, but something is slower than it could be.
    Slow,
    /// Something does not work.
    Missing,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Subject of the check.
    pub(super) check: &'static str,
    pub(super) status: FindingStatus,
    /// The facts, in a few words.
    pub(super) found: String,
    /// Consequence; empty if the status is ok.
    pub(super) why: String,
    /// What to do; empty if nothing can be done.
    pub(super) fix: String,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        let (why, fix) = (String::new(), String::new());
        Self { check, status: FindingStatus::Ok, found: found.into(), why, fix }
    }

    fn slow(
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (why, fix) = (why.into(), fix.into());
        Self { check, status: FindingStatus::Slow, found: found.into(), why, fix }
    }

    fn missing(
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { status: FindingStatus::Missing, ..Self::slow(check, found, why, fix) }
    }
}

/// Bytes that a packet socket wants to buffer in each direction.
const SOCKET_BUFFER_BYTES: u64 = 8 << 20;
/// Open files below which a busy server may run out of descriptors.
const OPEN_FILES_MIN: u64 = 65_536;
/// Bytes of locked memory that rings and their buffers may take.
const LOCKED_BYTES_MIN: u64 = 8 << 20;

/// Checks of the machine and this process, in the order in which they are shown.
const MACHINE_CHECKS: [fn(&MachineFacts) -> Finding; 10] = [
    kernel,
    uring,
    encryption,
    digests,
    cores,
    capabilities,
    open_files,
    locked_memory,
    socket_buffers,
    af_xdp_rights,
];

/// Checks of an interface.
const INTERFACE_CHECKS: [fn(&MachineFacts, &InterfaceFacts) -> Finding; 5] =
    [state, queues, offloads, merging, xdp];

/// Runs all checks.
pub(super) fn run(facts: &MachineFacts) -> Vec<Finding> {
    let mut all: Vec<Finding> = MACHINE_CHECKS.iter().map(|check| check(facts)).collect();
    all.extend(facts.folder.as_ref().map(direct_io));
    if let Some(interface) = &facts.interface {
        all.extend(INTERFACE_CHECKS.iter().map(|check| check(facts, interface)));
    }
    all
}

fn kernel(facts: &MachineFacts) -> Finding {
    let (major, minor) = facts.kernel;
    let found = format!("Linux {major}.{minor}");
    let fix = "install Linux 6.3 or later";
    match facts.kernel {
        (0..=4, _) | (5, 0..=5) => {
            let why = "openat2(2), which confines files to their directory, needs Linux 5.6";
            Finding::missing("kernel", found, why, fix)
        }
        (5, _) | (6, 0..=1) => {
            let why = "HTTP/3 sends one datagram per call: runs of datagrams need Linux 6.2";
            Finding::slow("kernel", found, why, fix)
        }
        (6, 2) => {
            let why = "runs above 64 KiB to a TAP need Linux 6.3";
            Finding::slow("kernel", found, why, fix)
        }
        _ => Finding::ok("kernel", found),
    }
}

fn uring(facts: &MachineFacts) -> Finding {
    match &facts.uring_failure {
        None => Finding::ok("io_uring", "all operations"),
        Some(failure) => Finding::slow(
            "io_uring",
            failure,
            "files are read by a pool of threads",
            "sudo sysctl -w kernel.io_uring_disabled=0, or permit io_uring in the seccomp profile",
        ),
    }
}

fn encryption(facts: &MachineFacts) -> Finding {
    let wide = ["vaes", "vpclmulqdq", "avx512f"].iter().all(|flag| facts.has_cpu(flag));
    if !facts.has_cpu("aes") || !facts.has_cpu("pclmulqdq") {
        return Finding::slow(
            "encryption",
            "no AES-NI or no PCLMULQDQ",
            "AES-GCM of TLS, QUIC and NVMe/TCP takes many times the cycles",
            "enable the instructions for the virtual machine (CPU model `host`)",
        );
    }
    let found = if wide { "AES-NI, VAES with AVX-512" } else { "AES-NI" };
    Finding::ok("encryption", found)
}

fn digests(facts: &MachineFacts) -> Finding {
    if facts.has_cpu("sse4_2") && facts.has_cpu("pclmulqdq") {
        return Finding::ok("crc32c", "SSE 4.2, PCLMULQDQ");
    }
    Finding::slow(
        "crc32c",
        "no SSE 4.2 or no PCLMULQDQ",
        "digests of NVMe/TCP take many times the cycles",
        "enable the instructions for the virtual machine (CPU model `host`)",
    )
}

fn cores(facts: &MachineFacts) -> Finding {
    let found = cli::counted(facts.cores, "core");
    if facts.cores > 1 {
        return Finding::ok("cores", found);
    }
    let why = "host and device share a thread";
    Finding::slow("cores", found, why, "give the process or the virtual machine more cores")
}

fn capabilities(facts: &MachineFacts) -> Finding {
    let all = [(CAP_NET_ADMIN, "NET_ADMIN"), (CAP_NET_RAW, "NET_RAW"), (CAP_BPF, "BPF")];
    let names: Vec<_> =
        all.iter().filter(|(number, _)| facts.has(*number)).map(|(_, name)| *name).collect();
    if facts.has(CAP_NET_ADMIN) && facts.has(CAP_NET_RAW) {
        return Finding::ok("capabilities", names.join(", "));
    }
    let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let why = "TAP and macvtap need CAP_NET_ADMIN, packet sockets CAP_NET_RAW";
    let fix = "run with sudo, or AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW in the unit";
    Finding::missing("capabilities", found, why, fix)
}

fn open_files(facts: &MachineFacts) -> Finding {
    match facts.open_files_max {
        Some(max) if max < OPEN_FILES_MIN => Finding::slow(
            "open files",
            format!("at most {max}"),
            "each file that is being served has a descriptor; further ones are refused",
            format!("ulimit -n {OPEN_FILES_MIN}, or LimitNOFILE={OPEN_FILES_MIN} in the unit"),
        ),
        Some(max) => Finding::ok("open files", format!("at most {max}")),
        None => Finding::ok("open files", "no limit"),
    }
}

fn locked_memory(facts: &MachineFacts) -> Finding {
    let counts_rings = facts.kernel < (5, 12);
    match facts.locked_bytes_max {
        Some(max) if max < LOCKED_BYTES_MIN && counts_rings => Finding::slow(
            "locked memory",
            format!("at most {max} bytes"),
            "before Linux 5.12 the rings of io_uring count, and may not fit",
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit",
        ),
        Some(max) => Finding::ok("locked memory", format!("at most {max} bytes")),
        None => Finding::ok("locked memory", "no limit"),
    }
}

fn socket_buffers(facts: &MachineFacts) -> Finding {
    let Some((receive, send)) = facts.socket_buffers_max else {
        return Finding::ok("socket buffers", "limits are not visible here");
    };
    let found = format!("rmem_max {receive}, wmem_max {send}");
    // The capability overrides the limits.
    if facts.has(CAP_NET_ADMIN) || receive.min(send) >= SOCKET_BUFFER_BYTES {
        return Finding::ok("socket buffers", found);
    }
    Finding::slow(
        "socket buffers",
        found,
        "packet sockets without CAP_NET_ADMIN lose frames in bursts",
        format!(
            "sudo sysctl -w net.core.rmem_max={SOCKET_BUFFER_BYTES} \
             net.core.wmem_max={SOCKET_BUFFER_BYTES}"
        ),
    )
}

/// Rights that a link over AF_XDP needs.
fn af_xdp_rights(facts: &MachineFacts) -> Finding {
    let poll = format!("busy_poll {} us", facts.busy_poll_us);
    if facts.has(CAP_BPF) || !facts.bpf_needs_privilege {
        return Finding::ok("bpf", format!("programs may be loaded, {poll}"));
    }
    Finding::ok("bpf", format!("no CAP_BPF, {poll}"))
}

fn direct_io(folder: &FolderFacts) -> Finding {
    let FolderFacts { path, direct_io } = folder;
    match direct_io {
        Some(true) => Finding::ok("direct I/O", format!("{path} can")),
        None => Finding::ok("direct I/O", format!("{path} has no file to try")),
        Some(false) => Finding::slow(
            "direct I/O",
            format!("{path} cannot"),
            "reads of files and namespaces go through the page cache",
            "move the files to ext4, XFS or another file system on a disk",
        ),
    }
}

fn state(_: &MachineFacts, interface: &InterfaceFacts) -> Finding {
    let InterfaceFacts { name, mtu, .. } = interface;
    let driver = interface.info.driver.as_deref().unwrap_or("unknown driver");
    let found = |state: &str| format!("{name} {state}, {driver}, MTU {mtu}");
    if !interface.is_ethernet {
        let why = "only a TAP works, with routing or NAT over this interface";
        return Finding::missing("interface", found("not Ethernet"), why, "name another interface");
    }
    if !interface.is_up {
        let fix = format!("sudo ip link set {name} up");
        return Finding::missing("interface", found("down"), "it carries no frames", fix);
    }
    if !interface.has_carrier {
        let why = "it carries no frames";
        return Finding::missing("interface", found("no carrier"), why, "plug in the cable");
    }
    Finding::ok("interface", found("up"))
}

fn queues(facts: &MachineFacts, interface: &InterfaceFacts) -> Finding {
    let info = &interface.info;
    let (Some(rx), Some(tx)) = (info.rx_queues, info.tx_queues) else {
        return Finding::ok("queues", "the driver does not tell");
    };
    let found = format!("{rx} receive, {tx} transmit");
    let max = info.rx_queues_max.unwrap_or(rx);
    if rx == 1 && facts.cores > 1 && max > 1 {
        let name = &interface.name;
        let wanted = usize::try_from(max).unwrap_or(1).min(facts.cores);
        let why = "the kernel takes in all frames on one core";
        return Finding::slow(
            "queues",
            found,
            why,
            format!("sudo ethtool -L {name} combined {wanted}"),
        );
    }
    Finding::ok("queues", found)
}

fn offloads(_: &MachineFacts, interface: &InterfaceFacts) -> Finding {
    let info = &interface.info;
    let all = [
        ("rx", "rx checksum", info.rx_checksum),
        ("tx", "tx checksum", info.tx_checksum),
        ("tso", "TSO", info.tso),
        ("gso", "GSO", info.gso),
        ("gro", "GRO", info.gro),
    ];
    let off: Vec<_> = all.iter().filter(|(_, _, is_on)| *is_on == Some(false)).collect();
    if off.is_empty() {
        return Finding::ok("offloads", "none is off");
    }
    let names: Vec<_> = off.iter().map(|(_, name, _)| *name).collect();
    let options: Vec<_> = off.iter().map(|(option, ..)| format!("{option} on")).collect();
    Finding::slow(
        "offloads",
        format!("{} off", names.join(", ")),
        "the kernel does the work for each packet",
        format!("sudo ethtool -K {} {}", interface.name, options.join(" ")),
    )
}

fn merging(_: &MachineFacts, interface: &InterfaceFacts) -> Finding {
    if interface.info.lro == Some(true) {
        let why = "frames that the interface merges lose their segment boundaries";
        let fix = format!("sudo ethtool -K {} lro off", interface.name);
        return Finding::slow("lro", "on", why, fix);
    }
    Finding::ok("lro", "off")
}

fn xdp(_: &MachineFacts, interface: &InterfaceFacts) -> Finding {
    let found = match interface.xdp {
        Some(features) if features.zero_copy => "native, zero copy",
        Some(features) if features.native => "native, with a copy",
        Some(_) => "generic only",
        None => "not reported (needs Linux 6.3)",
    };
    Finding::ok("xdp", found)
}

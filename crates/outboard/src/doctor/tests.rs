//! Examinations of machines that tests describe.

use io::interface_info::InterfaceInfo;
use io::xdp_features::XdpFeatures;

use super::checks::FindingStatus::{Missing, Ok as Fine, Slow};
use super::facts::{
    CAP_BPF, CAP_IPC_LOCK, CAP_NET_ADMIN, CAP_NET_RAW, DeviceNode, FolderFacts, InterfaceFacts,
    MachineFacts,
};
use super::*;

const ALL: u64 = 1 << CAP_NET_ADMIN | 1 << CAP_NET_RAW | 1 << CAP_BPF;

/// A wired server on which root runs the program.
fn server() -> MachineFacts {
    let flags = ["aes", "pclmulqdq", "sse4_2", "vaes", "vpclmulqdq", "avx512f"];
    MachineFacts {
        kernel: (6, 12),
        vendor: "Dell Inc.".into(),
        cpu_flags: flags.map(str::to_owned).into(),
        cores: 8,
        capabilities: ALL,
        open_files_max: Some(1 << 20),
        locked_bytes_max: None,
        socket_buffers_max: Some((212_992, 212_992)),
        forwards: true,
        user_namespaces: true,
        bpf_needs_privilege: true,
        tun: DeviceNode::Usable,
        has_macvtap: Some(true),
        folder: Some(FolderFacts { path: "/srv".into(), direct_io: Some(true) }),
        interface: Some(InterfaceFacts {
            name: "eth0".into(),
            is_ethernet: true,
            is_up: true,
            has_carrier: true,
            mtu: 1500,
            prefix: Some(22),
            gateway: Some("192.0.2.1".into()),
            info: nic("ixgbe"),
            xdp: Some(XdpFeatures { native: true, zero_copy: true, tx_checksum: false }),
            ..InterfaceFacts::default()
        }),
        ..MachineFacts::default()
    }
}

fn nic(driver: &str) -> InterfaceInfo {
    let on = Some(true);
    InterfaceInfo {
        driver: Some(driver.into()),
        rx_queues: Some(8),
        rx_queues_max: Some(64),
        tx_queues: Some(8),
        rx_checksum: on,
        tx_checksum: on,
        tso: on,
        gso: on,
        gro: on,
        lro: Some(false),
    }
}

/// Returns the server with changes of its interface.
fn server_with(change: impl FnOnce(&mut InterfaceFacts)) -> MachineFacts {
    let mut facts = server();
    change(facts.interface.as_mut().unwrap());
    facts
}

/// Returns the checks that are not ok.
fn faults(facts: &MachineFacts) -> Vec<(&'static str, FindingStatus)> {
    let findings = Diagnosis::of(facts).findings;
    for finding in &findings {
        assert_eq!(finding.status == Fine, finding.why.is_empty(), "{finding:?}");
        assert!(finding.status == Fine || !finding.fix.is_empty(), "{finding:?}");
        let lines = [&finding.found, &finding.why, &finding.fix];
        assert!(lines.iter().all(|line| !line.contains('\n') && line.len() < 160), "{finding:?}");
    }
    let bad = |f: Finding| (f.status != Fine).then_some((f.check, f.status));
    findings.into_iter().filter_map(bad).collect()
}

/// Returns the links that can be used, the best first.
fn usable(facts: &MachineFacts) -> Vec<String> {
    let links = Diagnosis::of(facts).links;
    links.into_iter().filter(LinkVerdict::is_usable).map(|verdict| verdict.link).collect()
}

fn commands(facts: &MachineFacts) -> Vec<String> {
    Diagnosis::of(facts).recommendation.unwrap().commands
}

fn code(facts: &MachineFacts) -> u8 {
    Diagnosis::of(facts).result().map_or_else(|failure| failure.code(), |()| 0)
}

#[test]
fn a_wired_server_takes_macvtap() {
    let facts = server();
    assert_eq!(faults(&facts), []);
    assert_eq!(usable(&facts), ["macvtap:eth0", "packet:eth0", "tap:ob0", "xdp:eth0"]);
    let command = "outboard serve DIR --link macvtap:eth0 --addr FREE_ADDRESS/22 \
                   --gateway 192.0.2.1 --queues 2 --crypto-workers 1";
    assert_eq!((commands(&facts), code(&facts)), (vec![command.to_owned()], 0));
    let text = Diagnosis::of(&facts).text();
    assert!(text.contains("kernel           ok       Linux 6.12\n"), "{text}");
    assert!(text.contains("\ntake macvtap:eth0: a station of its own"), "{text}");
    assert!(text.ends_with(&format!("  {command}\n")), "{text}");
    let json = Diagnosis::of(&facts).json();
    assert_eq!((&json["usable"], &json["recommendation"]["queues"]), (&json!(true), &json!(2)));
    assert_eq!(
        json["checks"][0],
        json!({"check": "kernel", "status": "ok",
        "found": "Linux 6.12", "why": "", "fix": ""})
    );
}

#[test]
fn the_network_may_admit_one_address_only() {
    let in_cloud = |driver: &str, vendor: &str| MachineFacts {
        vendor: vendor.into(),
        ..server_with(|eth| eth.info = nic(driver))
    };
    let filtered = [
        in_cloud("ena", "Amazon EC2"),
        in_cloud("gve", "Google"),
        in_cloud("virtio_net", "Google"),
        in_cloud("hv_netvsc", "Microsoft Corporation"),
        in_cloud("vmxnet3", "VMware, Inc."),
        server_with(|eth| eth.is_wireless = true),
        server_with(|eth| eth.is_ethernet = false),
    ];
    for facts in filtered {
        let has_xdp = facts.interface.as_ref().is_some_and(|eth| eth.is_ethernet);
        let links: &[&str] = if has_xdp { &["tap:ob0", "xdp:eth0"] } else { &["tap:ob0"] };
        assert_eq!(usable(&facts), links);
        let command =
            "outboard serve DIR --link tap:ob0 --gateway 10.77.0.1 --queues 2 --crypto-workers 1";
        assert_eq!(commands(&facts), [command]);
        let forward = "sysctl -w net.ipv4.ip_forward=1";
        assert_eq!(commands(&MachineFacts { forwards: false, ..facts }), [forward, command]);
    }
    assert_eq!(usable(&in_cloud("virtio_net", "QEMU")).len(), 4);
}

#[test]
fn ports_of_bridges_have_no_macvtap() {
    let facts = server_with(|eth| eth.master = Some("bridge br0".into()));
    assert_eq!(usable(&facts), ["packet:eth0", "tap:ob0"]);
    let no_driver = MachineFacts { has_macvtap: Some(false), ..server() };
    assert_eq!(usable(&no_driver)[0], "packet:eth0");
    assert_eq!(usable(&MachineFacts { has_macvtap: None, ..server() })[0], "macvtap:eth0");
    let managed = MachineFacts { network_manager: true, ..server() };
    let why = Diagnosis::of(&managed).recommendation.unwrap().why;
    assert!(why.contains("NetworkManager not to manage ob-*"), "{why}");
}

#[test]
fn privileges_decide() {
    let with = |capabilities| MachineFacts { capabilities, ..server() };
    assert_eq!(usable(&with(1 << CAP_NET_ADMIN)), ["macvtap:eth0", "tap:ob0"]);
    let raw = with(1 << CAP_NET_RAW);
    assert_eq!(usable(&raw), ["packet:eth0"]);
    assert_eq!(faults(&raw), [("capabilities", Missing), ("socket buffers", Slow)]);
    let none = with(0);
    assert_eq!((usable(&none), code(&none)), (vec![], 77));
    let line = Diagnosis::of(&none).result().unwrap_err().to_string();
    assert!(line.starts_with("no link can be used: macvtap:eth0: needs CAP_NET_ADMIN;"), "{line}");
    // A TAP of the user needs no privilege.
    let own = MachineFacts { own_taps: vec!["tap7".into()], ..none.clone() };
    assert_eq!((usable(&own), code(&own)), (vec!["tap:tap7".to_owned()], 0));
    assert!(!commands(&own)[0].contains("--queues"), "{:?}", commands(&own));
    let denied = MachineFacts { tun: DeviceNode::Denied, ..own };
    assert_eq!((usable(&denied), code(&denied)), (vec![], 77));
    let container = MachineFacts { tun: DeviceNode::Missing, interface: None, ..with(ALL) };
    assert_eq!((usable(&container), code(&container)), (vec![], 69));
}

/// Returns the verdict on the XDP link.
fn xdp_verdict(facts: &MachineFacts) -> LinkVerdict {
    let links = Diagnosis::of(facts).links;
    links.into_iter().find(|verdict| verdict.link == "xdp:eth0").expect("a verdict")
}

#[test]
fn xdp_links_have_a_verdict() {
    let fine = xdp_verdict(&server());
    assert_eq!(fine.why, "the link address of eth0, in the driver, without a copy; 8 sockets");
    assert!(fine.fix.is_empty() && fine.is_usable());
    let with = |capabilities| xdp_verdict(&MachineFacts { capabilities, ..server() });
    let unprivileged = with(1 << CAP_NET_ADMIN);
    assert_eq!(unprivileged.obstacle, Some(Obstacle::Permission));
    assert_eq!(unprivileged.why, "needs CAP_NET_RAW, CAP_BPF");
    // Eight sockets of 17 MiB.
    for (locked, is_usable) in [(135 << 20, false), (136 << 20, true)] {
        let limited = MachineFacts { locked_bytes_max: Some(locked), ..server() };
        assert_eq!(xdp_verdict(&limited).is_usable(), is_usable);
        let locks = MachineFacts { capabilities: ALL | 1 << CAP_IPC_LOCK, ..limited };
        assert!(xdp_verdict(&locks).is_usable());
    }
    let refused = |facts: &MachineFacts| {
        let verdict = xdp_verdict(facts);
        assert_eq!(verdict.obstacle, Some(Obstacle::Unavailable), "{verdict:?}");
        verdict.fix
    };
    assert_eq!(refused(&MachineFacts { kernel: (5, 8), ..server() }), "install Linux 5.9 or later");
    let mtu = |mtu| server_with(|eth| eth.mtu = mtu);
    assert_eq!(refused(&mtu(16_000)), "sudo ip link set eth0 mtu 15346");
    let old = MachineFacts { kernel: (6, 5), ..mtu(9000) };
    assert_eq!(refused(&old), "sudo ip link set eth0 mtu 3826");
    assert!(refused(&server_with(|eth| eth.master = Some("bond bond0".into()))).contains("tap"));
    assert_eq!(refused(&server_with(|eth| eth.is_ethernet = false)), "");
}

#[test]
fn slow_xdp_links_have_a_fix() {
    let slow = |change: fn(&mut InterfaceFacts)| {
        let facts = server_with(change);
        let verdict = xdp_verdict(&facts);
        assert!(verdict.is_usable() && !verdict.why.is_empty(), "{verdict:?}");
        let text = Diagnosis::of(&facts).text();
        assert!(text.contains("\nxdp:eth0         slow     "), "{text}");
        verdict.fix
    };
    let generic = |eth: &mut InterfaceFacts| {
        eth.xdp = Some(XdpFeatures { native: false, zero_copy: false, tx_checksum: false });
    };
    assert_eq!(slow(generic), "use packet:eth0 if the network admits it");
    assert_eq!(slow(|eth| eth.mtu = 9000), "sudo ip link set eth0 mtu 3826");
    assert_eq!(slow(|eth| eth.info.lro = Some(true)), "sudo ethtool -K eth0 lro off");
    let peer = slow(|eth| eth.info.driver = Some("veth".into()));
    assert!(peer.contains("ethtool -K PEER tx off tso off gso off"), "{peer}");
}

#[test]
fn slow_parts_are_named() {
    let old = |kernel| MachineFacts { kernel, ..server() };
    assert_eq!(faults(&old((4, 19))), [("kernel", Missing)]);
    assert_eq!(faults(&old((5, 5))), [("kernel", Missing)]);
    assert_eq!(faults(&old((5, 15))), [("kernel", Slow)]);
    assert_eq!(faults(&old((6, 2))), [("kernel", Slow)]);
    assert_eq!(faults(&old((7, 0))), []);
    let plain_cpu = MachineFacts { cpu_flags: vec!["sse4_2".into()], ..server() };
    assert_eq!(faults(&plain_cpu), [("encryption", Slow), ("crc32c", Slow)]);
    let small = MachineFacts {
        cores: 1,
        open_files_max: Some(1024),
        locked_bytes_max: Some(65_536),
        kernel: (5, 10),
        uring_failure: Some("Operation not permitted (os error 1)".into()),
        folder: Some(FolderFacts { path: "/dev/shm".into(), direct_io: Some(false) }),
        ..server()
    };
    let names = ["kernel", "io_uring", "cores", "open files", "locked memory", "direct I/O"];
    assert_eq!(faults(&small), names.map(|name| (name, Slow)));
    assert!(!commands(&small)[0].contains("--crypto-workers"));
    let empty = FolderFacts { path: "/srv".into(), direct_io: None };
    assert_eq!(faults(&MachineFacts { folder: Some(empty), ..server() }), []);
}

#[test]
fn interfaces_are_examined() {
    let off = Some(false);
    let off = InterfaceInfo { tso: off, tx_checksum: off, gro: off, ..nic("e1000") };
    let facts = server_with(|eth| eth.info = off);
    assert_eq!(faults(&facts), [("offloads", Slow)]);
    let fix = |facts: &MachineFacts, check: &str| {
        let all = Diagnosis::of(facts).findings;
        all.into_iter().find(|finding| finding.check == check).unwrap().fix
    };
    assert_eq!(fix(&facts, "offloads"), "sudo ethtool -K eth0 tx on tso on gro on");
    let facts = server_with(|eth| eth.info.rx_queues = Some(1));
    assert_eq!(faults(&facts), [("queues", Slow)]);
    assert_eq!(fix(&facts, "queues"), "sudo ethtool -L eth0 combined 8");
    let facts = server_with(|eth| eth.info.lro = Some(true));
    assert_eq!(faults(&facts), [("lro", Slow)]);
    let facts = server_with(|eth| eth.is_up = false);
    assert_eq!((faults(&facts), code(&facts)), (vec![("interface", Missing)], 0));
    assert_eq!(fix(&facts, "interface"), "sudo ip link set eth0 up");
    let facts = server_with(|eth| eth.has_carrier = false);
    assert_eq!(faults(&facts), [("interface", Missing)]);
    // A driver that tells nothing is no fault.
    let facts = server_with(|eth| (eth.info, eth.xdp) = (InterfaceInfo::default(), None));
    assert_eq!(faults(&facts), []);
}

//! Links whose interface changes during a download: down and up, removed and back, with another
//! MTU, link address or number of queues.
//!
//! The download continues after each change, because TCP retransmits; the program reports each
//! change on standard error and counts it. TAP, macvtap, packet socket and XDP sockets; all but the
//! first on one end of a veth pair.

use std::process::{Child, Stdio};
use std::sync::Arc;

use interop::{Counters, Files, Netns, TestServer, run_for_output, sha256};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const FILE_BYTES: u64 = 30_000_000;
/// Bytes per second of a download: a change must happen during it.
const RATE: &str = "15M";

/// A veth pair: `v0` for the server, `v1` with the client's address. Its kernel computes checksums
/// and segments, which an XDP link cannot.
const PAIR: &str = "ip link add v0 numrxqueues 4 numtxqueues 4 type veth \
        peer name v1 numrxqueues 4 numtxqueues 4 && \
    ethtool -L v1 rx 1 tx 1 && ethtool -K v1 tx off tso off gso off >/dev/null && \
    ip addr add 10.77.0.1/24 dev v1 && ip link set v0 up && ip link set v1 up";

const XDP: [&str; 2] = ["xdp:v0,native", "xdp:v0,generic"];

fn shell(netns: &Netns, script: &str) -> String {
    run_for_output(netns.command("sh").args(["-ec", script]))
}

/// A server on a link that changes, with a file to download.
struct ChangingLink {
    files: Files,
    server: TestServer,
    want: String,
    is_xdp: bool,
}

/// A download in progress.
struct SlowDownload {
    curl: Child,
    to: Files,
}

impl ChangingLink {
    /// Starts a server on `link`.
    fn new(link: &str, options: &[&str]) -> Self {
        Self::after(link, options, "")
    }

    /// Starts a server on `link` after a script has run in the namespace.
    fn after(link: &str, options: &[&str], script: &str) -> Self {
        let netns = Netns::new();
        if !link.starts_with("tap:") {
            shell(&netns, PAIR);
        }
        shell(&netns, script);
        let files = Files::new(TMP);
        let want = sha256(&files.fill("a.bin", FILE_BYTES));
        let network = ["--link", link, "--addr", "10.77.0.2/24"];
        let folder = files.path().to_string_lossy().into_owned();
        let server = TestServer::serve_namespace(Arc::new(netns), &folder, &network, options);
        Self { files, server, want, is_xdp: link.starts_with("xdp:") }
    }

    /// Starts a download, and returns once it is in progress.
    fn download(&self) -> SlowDownload {
        let to = Files::new(TMP);
        let before = self.server.stat();
        let mut curl = self.server.command("curl");
        curl.args(["-sSf", "--limit-rate", RATE, "--max-time", "60", "http://10.77.0.2/a.bin"]);
        curl.arg("-o").arg(to.path().join("got")).stdin(Stdio::null());
        let curl = curl.spawn().expect("curl");
        self.wait_for("a start", |stat| stat.moved(&before, "file_bytes") > 1_000_000);
        SlowDownload { curl, to }
    }

    /// Runs a script in the namespace, and returns its output.
    fn run(&self, script: &str) -> String {
        shell(self.server.netns(), script)
    }

    /// Reads the counters until `is_done` accepts them.
    fn wait_for(&self, what: &str, is_done: impl Fn(&Counters) -> bool) -> Counters {
        for _ in 0..2000 {
            let stat = self.server.stat();
            if is_done(&stat) {
                return stat;
            }
        }
        panic!("no {what}: {:?}", self.server.stat());
    }

    /// Waits until the counter `name` has a value.
    fn wait_until(&self, name: &str, value: u64) -> Counters {
        self.wait_for(name, |stat| stat.get(name) == value)
    }

    /// Waits until another frame was dropped because the interface cannot carry it, which a
    /// retransmission was.
    fn wait_for_dropped_frame(&self) {
        let before = self.server.stat();
        self.wait_for("dropped frame", |stat| stat.moved(&before, "link_tx_down") > 0);
    }

    /// Returns the ticks of CPU time that the server uses in a second without queries, each of
    /// which costs about one. A thread that spins uses a hundred.
    fn quiet_ticks(&self) -> u64 {
        let before = self.server.cpu_ticks();
        self.run("sleep 1");
        self.server.cpu_ticks() - before
    }

    /// Waits for the download's end, and compares its bytes.
    fn finish(&self, download: SlowDownload) {
        let SlowDownload { mut curl, to } = download;
        let status = curl.wait().expect("curl");
        assert!(status.success(), "{status}");
        assert_eq!(sha256(&to.path().join("got")), self.want);
    }

    /// Ends the server, and asserts that it wrote these lines to standard error, in order.
    fn expect_lines(self, lines: &[&str]) {
        let stat = self.server.stat();
        stat.expect_zero(&["link_tx_errors", "link_rx_malformed"]);
        // XDP sockets have no reads that could fail.
        stat.expect_zero(if self.is_xdp { &[] } else { &["link_rx_errors"] });
        let ended = self.server.stop();
        assert!(ended.status.success(), "{}", ended.stderr);
        drop(self.files);
        let mut rest = ended.stderr.as_str();
        for line in lines {
            let at = rest.find(line);
            rest = &rest[at.unwrap_or_else(|| panic!("no `{line}` in: {}", ended.stderr))..];
        }
    }
}

/// The interface `lower` goes down and comes up.
fn goes_down_and_up(link: &str, (lower, watched): (&str, &str), why: &str) {
    let net = ChangingLink::new(link, &[]);
    let download = net.download();
    net.run(&format!("ip link set {lower} down"));
    net.wait_until("link_down", 1);
    net.wait_for_dropped_frame();
    net.run(&format!("ip link set {lower} up"));
    let stat = net.wait_until("link_up", 1);
    net.finish(download);
    stat.expect_zero(&["link_reopened", "link_mtu_changed"]);
    assert!(net.server.stat().get("tcp_retrans") > 0);
    if watched == "ob0" {
        let addresses = net.run("ip -o addr show dev ob0");
        assert!(addresses.contains(" 10.77.0.1/24 ") && addresses.contains(" fd77::1/64 "));
    }
    net.expect_lines(&[
        &format!("outboard: interface {watched} {why}; frames are dropped until it is up"),
        &format!("outboard: interface {watched} is up after "),
    ]);
}

#[test]
fn down_and_up() {
    goes_down_and_up("packet:v0", ("v0", "v0"), "is down");
    // The other end of the cable.
    goes_down_and_up("packet:v0", ("v1", "v0"), "has no carrier");
    goes_down_and_up("macvtap:v0", ("v0", "ob-v0"), "has no carrier");
    goes_down_and_up("tap:ob0", ("ob0", "ob0"), "is down");
    for link in XDP {
        goes_down_and_up(link, ("v0", "v0"), "is down");
        goes_down_and_up(link, ("v1", "v0"), "has no carrier");
    }
}

/// The interface `lower` gets a smaller MTU, and a larger one afterwards.
fn changes_its_mtu(link: &str, lower: &str, watched: &str) {
    let net = ChangingLink::new(link, &[]);
    let download = net.download();
    net.run(&format!("ip link set {lower} mtu 1300"));
    net.wait_until("link_mtu_changed", 1);
    net.wait_until("tcp_pmtu_reductions", 1);
    let mss = |net: &ChangingLink| net.server.connections()[0]["mss"].as_u64();
    assert_eq!(mss(&net), Some(1300 - 52));
    net.run(&format!("ip link set {watched} mtu 1280"));
    net.wait_until("tcp_pmtu_reductions", 2);
    net.run(&format!("ip link set {lower} mtu 1500 && ip link set {watched} mtu 1500"));
    net.wait_until("link_mtu_changed", 3);
    assert_eq!(mss(&net), Some(1280 - 52), "a larger one is for later connections");
    net.finish(download);
    let download = net.download();
    assert_eq!(mss(&net), Some(1500 - 52));
    net.finish(download);
    net.server.stat().expect_zero(&["link_down", "link_reopened"]);
    net.expect_lines(&[
        &format!("outboard: MTU of interface {watched} is now 1300, was 1500"),
        &format!("outboard: MTU of interface {watched} is now 1280, was 1300"),
        &format!("outboard: MTU of interface {watched} is now 1500, was 1280"),
    ]);
}

#[test]
fn another_mtu() {
    changes_its_mtu("packet:v0", "v0", "v0");
    changes_its_mtu("macvtap:v0", "v0", "ob-v0");
    changes_its_mtu("tap:ob0", "ob0", "ob0");
    XDP.iter().for_each(|link| changes_its_mtu(link, "v0", "v0"));
}

/// The interface is removed, and `create` makes another one with its name. Nothing spins
/// meanwhile.
fn is_removed_and_back(link: &str, (watched, needs): (&str, &str), options: &[&str]) {
    let net = ChangingLink::new(link, options);
    let download = net.download();
    net.run("ip link del v0");
    net.wait_until("link_down", 1);
    net.wait_for_dropped_frame();
    net.wait_for_dropped_frame();
    let used = net.quiet_ticks();
    assert!(used < 20, "{used} ticks of CPU time while nothing could be sent");
    net.run(PAIR);
    net.wait_until("link_reopened", 1);
    net.wait_until("link_up", 1);
    net.finish(download);
    // Each queue works.
    for _ in 0..4 {
        net.finish(net.download());
    }
    net.expect_lines(&[
        &format!(
            "outboard: interface {watched} was removed; frames are dropped until {needs} can be \
             opened again"
        ),
        &format!("outboard: interface {watched} was opened again"),
        &format!("outboard: interface {watched} is up after "),
    ]);
}

#[test]
fn removed_and_back() {
    is_removed_and_back("packet:v0", ("v0", "v0"), &["--queues", "2"]);
    is_removed_and_back("macvtap:v0", ("ob-v0", "v0"), &["--queues", "2"]);
    XDP.iter().for_each(|link| is_removed_and_back(link, ("v0", "v0"), &["--queues", "2"]));
}

/// A TAP, and a macvtap alone, are created again at once.
#[test]
fn removed_and_created_again() {
    for (link, name) in [("tap:ob0", "ob0"), ("macvtap:v0", "ob-v0")] {
        let net = ChangingLink::new(link, &[]);
        let download = net.download();
        net.run(&format!("ip link del {name}"));
        net.wait_until("link_reopened", 1);
        net.wait_until("link_up", 1);
        net.finish(download);
        net.expect_lines(&[&format!("outboard: interface {name} was opened again")]);
    }
}

#[test]
fn another_link_address_or_number_of_queues() {
    let net = ChangingLink::new("packet:v0", &[]);
    let download = net.download();
    net.run("ethtool -L v0 rx 2 tx 2");
    net.run("ip link set v0 address 02:00:00:00:00:33");
    net.wait_until("link_address_changed", 1);
    net.run("ethtool -L v0 rx 4 tx 4");
    net.finish(download);
    net.expect_lines(&["outboard: link address of interface v0 is now 02:00:00:00:00:33"]);

    let net = ChangingLink::new("tap:ob0", &[]);
    let download = net.download();
    // The address of our peer, which the neighbor table has.
    net.run("ip link set ob0 address 02:00:00:00:00:44");
    net.finish(download);
    net.expect_lines(&["outboard: link address of interface ob0 is now 02:00:00:00:00:44"]);

    let net = ChangingLink::new("macvtap:v0", &[]);
    net.run("ip link set ob-v0 address 02:00:00:00:00:33");
    net.wait_until("link_address_changed", 1);
    net.expect_lines(&["are lost: run `ip link set ob-v0 address 02:"]);
}

/// XDP sockets that were opened for frames of one chunk of memory cannot take longer ones.
#[test]
fn xdp_with_a_large_mtu() {
    let net = ChangingLink::new("xdp:v0", &[]);
    net.run("ip link set v0 mtu 9000");
    net.wait_until("link_mtu_changed", 1);
    net.finish(net.download());
    net.run("ip link set v0 mtu 3000 && ip link set v1 mtu 3000");
    net.wait_until("link_mtu_changed", 2);
    net.finish(net.download());
    net.server.stat().expect_zero(&["link_down", "tcp_pmtu_reductions", "link_tx_too_big"]);
    net.expect_lines(&[
        "outboard: MTU of interface v0 is now 9000, was 1500; the link uses up to 3826 until it is \
         opened again\n",
        "outboard: MTU of interface v0 is now 3000, was 9000\n",
    ]);
}

/// The stack keeps the link address that XDP sockets were opened with, also on an interface that
/// was created again with another one.
#[test]
fn xdp_with_another_link_address() {
    let net = ChangingLink::new("xdp:v0", &[]);
    let ours = net.run("ip -o link show v0 | sed 's/.*link.ether \\([^ ]*\\).*/\\1/'");
    let download = net.download();
    net.run("ip link set v0 address 02:00:00:00:00:33");
    net.wait_until("link_address_changed", 1);
    net.finish(download);
    let download = net.download();
    net.run(&format!("ip link del v0 && {PAIR}"));
    net.wait_until("link_reopened", 1);
    net.finish(download);
    let advice = format!("are lost: run `ip link set v0 address {}`", ours.trim());
    net.expect_lines(&[
        "outboard: link address of interface v0 is now 02:00:00:00:00:33; frames to ",
        &advice,
        "outboard: link address of interface v0 is now ",
        &advice,
    ]);
}

/// An interface gets further receive queues: each has a socket. The kernel removes no queue that
/// has one.
#[test]
fn xdp_with_another_number_of_queues() {
    for (link, queues) in XDP.into_iter().zip(["1", "2"]) {
        let options = ["--queues", queues];
        let net = ChangingLink::after(link, &options, "ethtool -L v0 rx 2 tx 2");
        let download = net.download();
        net.run("ethtool -L v0 rx 4 tx 4");
        net.wait_until("link_queues_changed", 1);
        // The client uses the new queues. Small files: the acknowledgments of several windows at
        // once could fill the ring of a slow machine.
        net.run("ethtool -L v1 rx 4 tx 4");
        let want = sha256(&net.files.fill("small.bin", 100_000));
        for _ in 0..24 {
            let got = net.run("curl -sSf --max-time 60 http://10.77.0.2/small.bin | sha256sum");
            assert!(got.starts_with(&want), "{got}");
        }
        net.run("! ethtool -L v0 rx 2 tx 2 2>/dev/null");
        net.finish(download);
        net.server.stat().expect_zero(&["link_queues_failed", "link_down", "link_rx_dropped"]);
        net.expect_lines(&["outboard: interface v0 has 4 receive queues now, had 2"]);
    }
}

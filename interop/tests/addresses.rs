//! Addresses that the network assigns, by third-party servers of DHCP and router advertisements;
//! fragmented packets of the kernel; VLANs.
//!
//! The interface is one end of a veth pair; the kernel's servers and clients use the other end.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use interop::{
    Files, Netns, TestServer, expect_success, has_device_process, run, run_for_output, sha256,
};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const FILE_BYTES: u64 = 300_000;
/// The only address that the DHCP server leases.
const LEASED: &str = "10.77.0.50";
/// Time limit that no working program reaches.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Returns a namespace with a veth pair: `v0` for the server, `v1` for the kernel.
fn namespace() -> Arc<Netns> {
    let netns = Netns::new();
    let script = "ip link add v0 type veth peer name v1 && ip addr add 10.77.0.1/24 dev v1 && \
                  echo 0 > /proc/sys/net/ipv6/conf/v1/accept_dad && \
                  ip -6 addr add fd77::1/64 dev v1 && \
                  ip link set v0 up && ip link set v1 up";
    run_for_output(netns.command("sh").args(["-c", script]));
    Arc::new(netns)
}

/// A dnsmasq on `v1`, and the lines of its log.
struct Dnsmasq {
    child: Child,
    log: Receiver<String>,
    _folder: Files,
}

impl Dnsmasq {
    fn start(netns: &Netns, options: &[&str]) -> Self {
        let folder = Files::new(TMP);
        let leases = format!("--dhcp-leasefile={}", folder.path().join("leases").display());
        let mut command = netns.command("dnsmasq");
        command
            .args(["--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--port=0"])
            .args(["--interface=v1", "--log-facility=-", "--log-dhcp", "--no-ping"])
            .args(["--pid-file=", &leases])
            .args(options)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("dnsmasq; `make setup` installs it");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let server = Self { child, log, _folder: folder };
        server.wait_for("started");
        server
    }

    /// Waits until the log has a line with `text`.
    fn wait_for(&self, text: &str) {
        let mut seen = Vec::new();
        while let Ok(line) = self.log.recv_timeout(WATCHDOG) {
            let found = line.contains(text);
            seen.push(line);
            if found {
                return;
            }
        }
        panic!("no `{text}` in the log of dnsmasq: {seen:#?}");
    }
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(netns: &Arc<Netns>, folder: &Files, network: &[&str], options: &[&str]) -> TestServer {
    let folder = folder.path().to_string_lossy();
    TestServer::serve_namespace(Arc::clone(netns), &folder, network, options)
}

/// Fetches a URL with curl, and returns the digest of its content.
fn fetch(server: &TestServer, url: &str) -> String {
    let folder = Files::new(TMP);
    let to = folder.path().join("got");
    let mut curl = server.command("curl");
    curl.args(["-sSfk", "--max-time", "60", "-o"]).arg(&to).arg(url);
    let _ = expect_success(&run(&mut curl));
    sha256(&to)
}

/// Returns the options of a DHCP server whose leases are renewed after `renew_s` seconds.
fn dhcp(renew_s: u32) -> Vec<String> {
    vec![
        format!("--dhcp-range={LEASED},{LEASED},255.255.255.0,120"),
        "--dhcp-option=option:router,10.77.0.1".to_owned(),
        "--dhcp-option-force=26,1400".to_owned(),
        format!("--dhcp-option-force=58,{renew_s}"),
    ]
}

fn leased_address_serves(link: &str, options: &[&str]) {
    let files = Files::new(TMP);
    let want = sha256(&files.fill("a.bin", FILE_BYTES));
    let netns = namespace();
    let dhcp = dhcp(3);
    let dhcp: Vec<&str> = dhcp.iter().map(String::as_str).collect();
    let dnsmasq = Dnsmasq::start(&netns, &dhcp);
    let network = ["--link", link, "--addr", "dhcp"];
    let server = serve(&netns, &files, &network, options);
    let url = format!("http://{LEASED}/a.bin");
    assert_eq!(fetch(&server, &url), want, "{link}");
    dnsmasq.wait_for("DHCPACK");
    // The renewal: another acknowledgment for the same station.
    dnsmasq.wait_for("DHCPREQUEST");
    dnsmasq.wait_for("DHCPACK");
    assert_eq!(fetch(&server, &url), want, "{link}");
    let stat = server.stat();
    assert!(stat.get("dhcp_renewals") > 0, "{link}: {stat:?}");
    assert_eq!((stat.get("dhcp_declines"), stat.get("tcp_address_lost")), (0, 0), "{stat:?}");
    assert!(stat.get("file_bytes") >= 2 * FILE_BYTES, "by the device: {stat:?}");
    server.expect_no_alarm();
    let ended = server.stop();
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stderr.contains("leased 10.77.0.50/24 for 120 s"), "{}", ended.stderr);
    dnsmasq.wait_for("DHCPRELEASE");
}

#[test]
fn a_leased_address_serves_files() {
    leased_address_serves("packet:v0", &[]);
    leased_address_serves("macvtap:v0", &[]);
}

/// The first queue runs the client; the others use its address.
#[test]
fn a_leased_address_serves_files_on_several_queues() {
    leased_address_serves("packet:v0", &["--queues", "2"]);
}

#[test]
fn no_server_is_an_error_of_one_line() {
    let (files, netns) = (Files::new(TMP), namespace());
    for (addr, who) in [("dhcp", "no DHCP server"), ("slaac", "no IPv6 router")] {
        let mut command = interop::outboard(&netns);
        let options = ["--link", "packet:v0", "--addr", addr, "--addr-wait", "1"];
        command.arg("serve").arg(files.path()).args(options);
        let output = run(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{said}");
        let (answered, limit) = (format!("{who} answered on "), " within 1 s");
        let (_, rest) = said.split_once(&answered).expect(&said);
        let (link, _) = rest.split_once(limit).expect(&said);
        // A program that is attached knows the device instead of its link.
        let of_device = has_device_process() && link.starts_with("unix:");
        assert!(of_device || link == "packet:v0", "{said}");
    }
}

/// RFC 4862 with dnsmasq's router advertisements: the kernel's end finds the address by its
/// connections.
#[test]
fn an_address_of_router_advertisements_serves_files() {
    for link in ["packet:v0", "macvtap:v0"] {
        let files = Files::new(TMP);
        let want = sha256(&files.fill("a.bin", FILE_BYTES));
        let netns = namespace();
        let ra = ["--enable-ra", "--dhcp-range=fd77::,ra-only,64,3600"];
        let _dnsmasq = Dnsmasq::start(&netns, &ra);
        let network = ["--link", link, "--addr", "slaac"];
        let server = serve(&netns, &files, &network, &[]);
        let ready = server.ready_line().to_owned();
        let addr = ready.split(['[', ']']).nth(1).unwrap_or_default();
        assert!(addr.starts_with("fd77:"), "{ready}");
        assert_eq!(fetch(&server, &format!("http://[{addr}]/a.bin")), want, "{link}");
        let stat = server.stat();
        assert_eq!((stat.get("slaac_assigned"), stat.get("dad_conflicts")), (1, 0), "{stat:?}");
        assert!(stat.get("router_adverts") > 0, "{stat:?}");
        server.expect_no_alarm();
        let _ = server.stop();
        // The identifier is stable, also beside a static address.
        let network = ["--link", link, "--addr", "slaac", "--addr", "10.77.0.2/24"];
        let server = serve(&netns, &files, &network, &[]);
        assert_eq!(fetch(&server, "http://10.77.0.2/a.bin"), want, "the static address");
        assert_eq!(fetch(&server, &format!("http://[{addr}]/a.bin")), want, "the same address");
    }
}

/// The kernel fragments its echo requests, and reassembles the answers.
#[test]
fn fragmented_echo_requests_are_answered() {
    let files = Files::new(TMP);
    let netns = namespace();
    for (link, queues) in [("packet:v0", "1"), ("macvtap:v0", "1"), ("packet:v0", "2")] {
        let network = ["--link", link, "--addr", "10.77.0.2/24", "--addr", "fd77::2/64"];
        let server = serve(&netns, &files, &network, &["--queues", queues]);
        for addr in ["10.77.0.2", "fd77::2"] {
            let mut ping = server.command("ping");
            let _ = expect_success(&run(ping.args(["-c", "3", "-i", "0.2", "-s", "4000", addr])));
        }
        let stat = server.stat();
        assert_eq!((stat.get("ip_reasm_oks"), stat.get("ip_reasm_fails")), (6, 0), "{stat:?}");
        assert_eq!((stat.get("ip_reasm_reqds"), stat.get("ip_frag_creates")), (18, 18));
        assert_eq!(stat.get("icmp_echo_replies"), 6, "{stat:?}");
        server.expect_no_alarm();
    }
}

/// The kernel tags and filters the frames of a VLAN interface (IEEE 802.1Q).
#[test]
fn vlan_interfaces_are_links() {
    let files = Files::new(TMP);
    let want = sha256(&files.fill("a.bin", FILE_BYTES));
    let netns = namespace();
    let script = "ip link add link v0 name v0.100 type vlan id 100 && \
                  ip link add link v1 name v1.100 type vlan id 100 && \
                  ip addr add 10.78.0.1/24 dev v1.100 && \
                  ip link set v0.100 up && ip link set v1.100 up";
    let made = run(netns.command("sh").args(["-c", script]));
    if String::from_utf8_lossy(&made.stderr).contains("Unknown device type") {
        eprintln!("skipped: the kernel has no VLAN interfaces (8021q)");
        return;
    }
    let _ = expect_success(&made);
    for link in ["packet:v0.100", "macvtap:v0.100"] {
        let network = ["--link", link, "--addr", "10.78.0.2/24"];
        let server = serve(&netns, &files, &network, &["--tls", "--http"]);
        for url in ["http://10.78.0.2/a.bin", "https://10.78.0.2/a.bin"] {
            assert_eq!(fetch(&server, url), want, "{link} {url}");
        }
        assert!(server.stat().get("file_bytes") >= 2 * FILE_BYTES, "by the device");
        server.expect_no_alarm();
    }
}

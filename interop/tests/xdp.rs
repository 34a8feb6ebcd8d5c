//! AF_XDP links beside the kernel on the same interface, with addresses of the stack and with those
//! of the kernel. `links.rs` has the transfers that all kinds of links have in common.
//!
//! The interface is one end of a veth pair; the clients are in the namespace of the other end. Its
//! kernel must compute checksums and segment: on a veth it would leave both to us. Programs are
//! loaded by root of the first user namespace only.

use std::sync::Arc;

use interop::{
    Files, Netns, TestServer, ThirdPartyServer, expect_success, has_device_process, run,
    run_for_output, sha256,
};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3GET: &str = env!("CARGO_BIN_EXE_h3get");
const FILE_BYTES: u64 = 3_000_000;
/// Address of the kernel on the same interface.
const KERNEL: &str = "10.77.0.3";

/// A veth pair: `v0` of the server, on which its kernel has an address too, and `v1` of the
/// clients.
struct Network {
    server: Arc<Netns>,
    clients: Netns,
}

impl Network {
    /// Creates a pair with `queues` queues in each direction.
    fn new(queues: u32) -> Self {
        let (server, clients) = (Arc::new(Netns::new()), Netns::new());
        let count = format!("numtxqueues {queues} numrxqueues {queues}");
        let script = format!(
            "ip link add v0 {count} type veth peer name v1 {count} netns {} && \
             ip addr add {KERNEL}/24 dev v0 && ip addr add fd77::3/64 dev v0 nodad && \
             ip link set v0 up",
            clients.process_id()
        );
        run_for_output(server.command("sh").args(["-c", &script]));
        let script = "ip addr add 10.77.0.1/24 dev v1 && ip addr add fd77::1/64 dev v1 nodad && \
                      ethtool -K v1 tx off tso off gso off && ip link set v1 up";
        run_for_output(clients.command("sh").args(["-c", script]));
        Self { server, clients }
    }

    fn serve(&self, folder: &Files, link: &str, options: &[&str]) -> TestServer {
        self.serve_at(folder, link, &["--addr", "10.77.0.2/24", "--addr", "fd77::2/64"], options)
    }

    fn serve_at(&self, folder: &Files, link: &str, addrs: &[&str], options: &[&str]) -> TestServer {
        let network = [&["--link", link], addrs].concat();
        let options = [&["--tls", "--http", "--http3"], options].concat();
        let folder = folder.path().to_string_lossy();
        TestServer::serve_namespace(Arc::clone(&self.server), &folder, &network, &options)
    }

    /// Fetches a URL with curl, and returns the SHA-256 of its content.
    fn fetch(&self, url: &str) -> String {
        let folder = Files::new(TMP);
        let to = folder.path().join("got");
        let mut curl = self.clients.command("curl");
        curl.args(["-sSfk", "--max-time", "60", "-o"]).arg(&to).arg(url);
        let _ = expect_success(&run(&mut curl));
        sha256(&to)
    }

    /// Fetches a file over HTTP/3, and returns the SHA-256 of its content.
    fn fetch_http3(&self, path: &str) -> String {
        let folder = Files::new(TMP);
        let to = folder.path().join("got");
        let mut client = self.clients.command("timeout");
        client.args(["60", H3GET, "10.77.0.2:443", path]).arg(&to);
        let _ = expect_success(&run(&mut client));
        sha256(&to)
    }

    /// Makes the kernel compute the checksums that `v0` is to complete. Otherwise a veth passes
    /// them on as they are, and the peer's kernel does not verify them.
    fn compute_checksums(&self) {
        run_for_output(self.server.command("ethtool").args(["-K", "v0", "tx", "off"]));
    }

    /// Returns whether `v0` has an XDP program.
    fn has_program(&self) -> bool {
        let shown = run_for_output(self.server.command("ip").args(["link", "show", "v0"]));
        shown.contains("prog/xdp")
    }

    /// Starts a server of the kernel's stack on port 8000, with a file `k.txt`.
    fn kernel_server(netns: &Netns, folder: &Files) -> ThirdPartyServer {
        folder.write("k.txt", "sent by the kernel\n");
        let folder = folder.path().to_string_lossy();
        let args = ["-m", "http.server", "8000", "--bind", "::", "--directory", &folder];
        ThirdPartyServer::start(netns, "python3", &args, 8000)
    }
}

/// Flows are spread over the sockets of two queues, which belong to two devices or to one.
#[test]
fn several_queues() {
    let files = Files::new(TMP);
    let want = sha256(&files.fill("a.bin", 100_000));
    let network = Network::new(2);
    let server = network.serve(&files, "xdp:v0", &["--queues", "2"]);
    let mut queues = [false; 2];
    // With 40 connections, all use one queue once in 2^39 runs.
    for _ in 0..40 {
        assert_eq!(network.fetch("http://10.77.0.2/a.bin"), want);
        let stat = server.stat();
        // A device process has one link for all functions.
        let (part, counter, least) = if has_device_process() {
            ("host", "tcp_passive_opens", 0)
        } else {
            ("nic", "link_rx_frames", 10)
        };
        queues = [0, 1].map(|queue| stat.get(&format!("{part}.q{queue}.{counter}")) > least);
        if queues == [true; 2] {
            break;
        }
    }
    assert_eq!(queues, [true; 2]);
    server.expect_no_alarm();
    drop(server);
    let server = network.serve(&files, "xdp:v0", &[]);
    for _ in 0..20 {
        assert_eq!(network.fetch("http://10.77.0.2/a.bin"), want);
    }
    server.expect_no_alarm();
}

/// The kernel's traffic on its own address of the same interface passes.
#[test]
fn kernel_keeps_its_address() {
    let (files, of_kernel) = (Files::new(TMP), Files::new(TMP));
    let want = sha256(&files.fill("a.bin", 100_000));
    for link in ["xdp:v0", "xdp:v0,generic"] {
        let network = Network::new(1);
        let _kernel = Network::kernel_server(&network.server, &of_kernel);
        let kernel_file = sha256(&of_kernel.path().join("k.txt"));
        let server = network.serve(&files, link, &[]);
        for _ in 0..3 {
            assert_eq!(network.fetch("http://10.77.0.2/a.bin"), want);
            assert_eq!(network.fetch("http://10.77.0.3:8000/k.txt"), kernel_file);
            assert_eq!(network.fetch("http://[fd77::3]:8000/k.txt"), kernel_file);
        }
        assert_eq!(server.stat().get("received_not_ours"), 0, "{link}");
        server.expect_no_alarm();
    }
}

/// The program ends with the process, however it ends.
#[test]
fn program_ends_with_the_process() {
    let files = Files::new(TMP);
    files.write("a.txt", "a\n");
    let network = Network::new(1);
    assert!(!network.has_program());
    let server = network.serve(&files, "xdp:v0", &[]);
    assert!(network.has_program());
    let control = files.path().join("second").to_string_lossy().into_owned();
    let folder = files.path().to_string_lossy();
    let second = server.outboard(&["serve", &folder, "--link", "xdp:v0", "--control", &control]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(69), "{said}");
    assert!(said.contains("interface v0 has an XDP program already"), "{said}");
    assert!(server.stop().status.success());
    assert!(!network.has_program(), "after SIGTERM");
    let server = network.serve(&files, "xdp:v0,generic", &[]);
    assert!(network.has_program());
    let _ = server.crash();
    assert!(!network.has_program(), "after SIGKILL");
    let server = network.serve(&files, "xdp:v0", &[]);
    assert_eq!(network.fetch("http://10.77.0.2/a.txt"), sha256(&files.path().join("a.txt")));
    assert!(server.stop().status.success());
}

/// Both stacks use the addresses of the interface: the stack its ports, the kernel all others.
#[test]
fn shared_address() {
    let (files, of_kernel) = (Files::new(TMP), Files::new(TMP));
    let want = sha256(&files.fill("a.bin", FILE_BYTES));
    for link in ["xdp:v0", "xdp:v0,generic"] {
        let network = Network::new(1);
        let _kernel = Network::kernel_server(&network.server, &of_kernel);
        let kernel_file = sha256(&of_kernel.path().join("k.txt"));
        let addrs = ["--addr", "10.77.0.3/24", "--addr", "fd77::3/64", "--share-address"];
        let server = network.serve_at(&files, link, &addrs, &[]);
        for _ in 0..2 {
            assert_eq!(network.fetch("http://10.77.0.3/a.bin"), want);
            assert_eq!(network.fetch("https://[fd77::3]/a.bin"), want);
            assert_eq!(network.fetch("http://10.77.0.3:8000/k.txt"), kernel_file);
            assert_eq!(network.fetch("http://[fd77::3]:8000/k.txt"), kernel_file);
        }
        let refused = run(network.clients.command("curl").args(["-sS", "http://10.77.0.3:81/"]));
        assert_eq!(refused.status.code(), Some(7), "the kernel refuses other ports");
        let stat = server.stat();
        assert!(
            stat.get("file_bytes") >= 2 * FILE_BYTES && stat.get("link_neighbors_answered") > 0
        );
        stat.expect_zero(&["neighbor_replies", "received_not_ours", "rx_checksum_bad"]);
        server.expect_no_alarm();
    }
}

/// Connections that the stack opens from a shared address, to a neighbor that the kernel does not
/// know before.
#[test]
fn active_opens_from_a_shared_address() {
    let of_kernel = Files::new(TMP);
    let network = Network::new(1);
    let _server = Network::kernel_server(&network.clients, &of_kernel);
    let folder = Files::new(TMP);
    for (url, addr) in [
        ("http://10.77.0.1:8000/k.txt", "10.77.0.3/24"),
        ("http://[fd77::1]:8000/k.txt", "fd77::3/64"),
    ] {
        run_for_output(network.server.command("ip").args(["neigh", "flush", "dev", "v0"]));
        let to = folder.path().join("got");
        let mut get = interop::outboard(&network.server);
        get.args(["get", url, "--output"]).arg(&to).args(["--link", "xdp:v0", "--addr", addr]);
        get.args(["--share-address", "--control"]).arg(folder.path().join("control"));
        let _ = expect_success(&run(&mut get));
        assert_eq!(sha256(&to), sha256(&of_kernel.path().join("k.txt")), "{url}");
        std::fs::remove_file(&to).unwrap();
    }
}

/// Programs on a device process have ports of the kernel's addresses, and connections that they
/// open; the kernel has all other ports.
#[test]
fn programs_have_ports_of_the_kernels_addresses() {
    let (files, of_kernel, scratch) = (Files::new(TMP), Files::new(TMP), Files::new("/tmp"));
    let want = sha256(&files.fill("a.bin", FILE_BYTES));
    let root = format!("site={}", files.path().display());
    let folder = files.path().to_string_lossy();
    let at = ["--addr", "10.77.0.3/24", "--addr", "fd77::3/64", "--share-address"];
    for link in ["xdp:v0,native", "xdp:v0,generic"] {
        let network = Network::new(1);
        let _kernels = [&*network.server, &network.clients]
            .map(|netns| Network::kernel_server(netns, &of_kernel));
        let kernel_file = sha256(&of_kernel.path().join("k.txt"));
        let socket = scratch.path().join("nic").display().to_string();
        let device = ["nic", "--link", link, "--root", &root, "--listen", &socket];
        let nic = TestServer::device(Arc::clone(&network.server), &[&device, &at[..]].concat());
        let unix = format!("unix:{socket}");
        let serve = |options: &[&str]| {
            let args = [&["serve", &folder, "--nic", &unix], &at[..], options].concat();
            TestServer::attached(Arc::clone(&network.server), &args)
        };
        let (web, tls) = (serve(&[]), serve(&["--tls", "--http3"]));
        for _ in 0..2 {
            assert_eq!(network.fetch("http://10.77.0.3/a.bin"), want, "{link}");
            assert_eq!(network.fetch("https://[fd77::3]/a.bin"), want, "{link}");
            assert_eq!(network.fetch("http://10.77.0.3:8000/k.txt"), kernel_file, "{link}");
            assert_eq!(network.fetch("http://[fd77::3]:8000/k.txt"), kernel_file, "{link}");
        }
        let refused = run(network.clients.command("curl").args(["-sS", "http://10.77.0.3:81/"]));
        assert_eq!(refused.status.code(), Some(7), "the kernel refuses other ports");
        let control = scratch.path().join("third");
        let third = |args: &[&str]| {
            let mut third = interop::outboard(&network.server);
            run(third.args(args).args(["--nic", &unix, "--control"]).arg(&control))
        };
        let to = scratch.path().join("got").display().to_string();
        let get = ["get", "http://10.77.0.1:8000/k.txt", "-o", &to];
        let _ = expect_success(&third(&[&get, &at[..]].concat()));
        assert_eq!(sha256(to.as_ref()), kernel_file);
        std::fs::remove_file(&to).unwrap();
        for (args, why) in [
            (&at[..2], "the kernel of its machine has the same addresses; use --share-address"),
            (&["--addr", "10.77.0.4/24", "--share-address"], "start it with --addr CIDR for each"),
        ] {
            let refused = third(&[&get, args].concat());
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(69), "{said}");
            assert!(said.contains(why) && said.lines().count() == 1, "{said}");
        }
        let stat = nic.stat();
        assert!(stat.get("file_bytes") >= 4 * FILE_BYTES, "{stat:?}");
        stat.expect_nonzero(&["link_neighbors_answered", "tx_tls_encrypted_bytes"]);
        stat.expect_zero(&["switch_tx_refused", "switch_rx_dropped", "nic_internal_errors"]);
        assert_eq!([&web, &tls].map(|program| program.stat().get("http_responses_2xx")), [2, 2]);
        [&web, &tls, &nic].into_iter().for_each(TestServer::expect_no_alarm);
    }
}

/// A proxy on a shared address that reloads its configuration: frames to a new port reach it, and
/// the kernel keeps the others. More ports than a program can have change nothing.
#[test]
fn reload_redirects_further_ports() {
    let (of_kernel, scratch) = (Files::new(TMP), Files::new(TMP));
    for link in ["xdp:v0,native", "xdp:v0,generic"] {
        let network = Network::new(1);
        let _backend = Network::kernel_server(&network.clients, &of_kernel);
        let want = sha256(&of_kernel.path().join("k.txt"));
        let write = |ports: &[u16]| {
            let mut text = String::new();
            for port in ports {
                text.push_str(&format!(
                    "[[listener]]\nlisten = ':{port}'\nmode = 'http'\ndefault = 'a'\n"
                ));
            }
            text.push_str("[[backend]]\nname = 'a'\nservers = ['10.77.0.1:8000']\n");
            scratch.write("proxy.toml", text)
        };
        let path = write(&[80]).to_string_lossy().into_owned();
        let at = ["--link", link, "--addr", "10.77.0.3/24", "--share-address"];
        let server =
            TestServer::on_link(Arc::clone(&network.server), &["proxy"], &at, &["--config", &path]);
        let status = |port: u16| {
            let url = format!("http://10.77.0.3:{port}/k.txt");
            let mut curl = network.clients.command("curl");
            run(curl.args(["-sSf", "-m", "20", "-o", "/dev/null", &url])).status.code()
        };
        assert_eq!([80, 81].map(status), [Some(0), Some(7)], "{link}");
        let before = server.stat();
        let _ = write(&[80, 81]);
        server.signal("HUP");
        while server.stat().moved(&before, "proxy_ports_opened") == 0 {}
        assert_eq!(network.fetch("http://10.77.0.3:81/k.txt"), want, "{link}");
        assert_eq!([80, 81, 82].map(status), [Some(0), Some(0), Some(7)], "{link}");
        let _ = write(&(1000..1256).collect::<Vec<_>>());
        server.signal("HUP");
        assert_eq!([80, 1000].map(status), [Some(0), Some(7)], "{link}");
        let _ = write(&[80]);
        server.signal("HUP");
        while server.stat().get("proxy_ports_closed") == 0 {}
        let ended = server.stop();
        // Claims of a device process have fewer than the XDP program.
        let most = if has_device_process() { 64 } else { 256 };
        let line = format!(
            "SIGHUP: --share-address with 258 listening ports; at most {most} are possible; \
             keeping the old configuration"
        );
        assert!(ended.status.success() && ended.stderr.contains(&line), "{}", ended.stderr);
    }
}

/// Frames of an MTU of 9000 take several chunks, in both directions.
#[test]
fn frames_of_several_chunks() {
    let files = Files::new(TMP);
    let want = sha256(&files.fill("a.bin", FILE_BYTES));
    let links = [
        ("xdp:v0,native", 1),
        ("xdp:v0,generic", 0),
        ("xdp:v0,native,tx-checksum", 1),
        ("xdp:v0,generic,tx-checksum", 0),
    ];
    for (link, native) in links {
        let network = Network::new(1);
        network.compute_checksums();
        for (netns, name) in [(&*network.server, "v0"), (&network.clients, "v1")] {
            run_for_output(netns.command("ip").args(["link", "set", name, "mtu", "9000"]));
        }
        let server = network.serve(&files, link, &[]);
        for url in ["http://10.77.0.2/a.bin", "https://[fd77::2]/a.bin"] {
            assert_eq!(network.fetch(url), want, "{link} {url}");
        }
        let stat = server.stat();
        assert_eq!(stat.get("link_xdp_native"), native);
        let (frames, bytes) = (stat.get("link_tx_frames"), stat.get("link_tx_bytes"));
        assert!(bytes > 2 * FILE_BYTES && bytes / frames > 4096, "{link}: {stat:?}");
        let completes = link.ends_with("tx-checksum");
        assert_eq!(stat.get("link_tx_checksums") > FILE_BYTES / 9000, completes, "{stat:?}");
        // An echo request of two, three and exactly one chunk; its reply has the same bytes.
        for bytes in ["8900", "3840", "3798"] {
            let before = server.stat();
            let mut ping = network.clients.command("ping");
            ping.args(["-M", "do", "-c", "10", "-i", "0.01", "-W", "5", "-s", bytes, "10.77.0.2"]);
            run_for_output(&mut ping);
            let received = server.stat().moved(&before, "link_rx_bytes");
            assert!(received > 10 * bytes.parse::<u64>().expect("a number"), "{link} {bytes}");
        }
        server.stat().expect_zero(&["link_rx_malformed", "link_rx_too_long", "link_rx_dropped"]);
        server.stat().expect_zero(&["link_tx_errors", "link_tx_refused", "link_tx_too_big"]);
        server.expect_no_alarm();
    }
}

/// The interface completes the checksums of TCP, UDP and ICMPv6 if the link says so.
#[test]
fn interface_completes_checksums() {
    let files = Files::new(TMP);
    let want = sha256(&files.fill("a.bin", FILE_BYTES));
    for (link, completes) in [
        ("xdp:v0", false),
        ("xdp:v0,native,copy,tx-checksum", true),
        ("xdp:v0,generic,tx-checksum", true),
    ] {
        let network = Network::new(1);
        network.compute_checksums();
        let server = network.serve(&files, link, &[]);
        for url in ["http://10.77.0.2/a.bin", "https://[fd77::2]/a.bin"] {
            assert_eq!(network.fetch(url), want, "{link} {url}");
        }
        assert_eq!(network.fetch_http3("/a.bin"), want, "{link}");
        let stat = server.stat();
        let (completed, sent) = (stat.get("link_tx_checksums"), stat.get("link_tx_frames"));
        // All but answers to ARP and echo requests.
        assert!(if completes { completed + 20 > sent } else { completed == 0 }, "{link}: {stat:?}");
        assert_eq!(stat.get("link_xdp_tx_checksum"), u64::from(completes));
        stat.expect_zero(&["link_tx_errors", "link_tx_refused"]);
        server.expect_no_alarm();
    }
}

/// The device polls the driver if the link says so. A veth tells the kernel no NAPI ID for it
/// (Linux 6.18), so that the polls have no effect there but to cost a system call.
#[test]
fn device_polls_the_driver() {
    let files = Files::new(TMP);
    let want = sha256(&files.fill("a.bin", FILE_BYTES));
    let network = Network::new(2);
    for (link, polls) in
        [("xdp:v0", false), ("xdp:v0,native,busy-poll", true), ("xdp:v0,generic,busy-poll", true)]
    {
        let server = network.serve(&files, link, &[]);
        for url in ["https://10.77.0.2/a.bin", "http://[fd77::2]/a.bin"] {
            assert_eq!(network.fetch(url), want, "{link}");
        }
        let stat = server.stat();
        assert_eq!(stat.get("link_busy_polls") > 10, polls, "{link}: {stat:?}");
        assert!(stat.get("link_xdp_napi_ids") <= 2, "of two sockets");
        server.expect_no_alarm();
    }
}

/// A peer that leaves checksums to its interface, as the kernel does on a veth, is reported.
#[test]
fn incomplete_checksums_are_an_alarm() {
    let files = Files::new(TMP);
    files.write("a.txt", "a\n");
    let network = Network::new(1);
    run_for_output(network.clients.command("ethtool").args(["-K", "v1", "tx", "on"]));
    let server = network.serve(&files, "xdp:v0", &[]);
    let mut curl = network.clients.command("curl");
    let output = run(curl.args(["-sS", "--max-time", "2", "http://10.77.0.2/a.txt"]));
    assert_eq!(output.status.code(), Some(28), "no connection");
    assert!(server.stat().get("rx_checksum_bad") > 0);
}

#[test]
fn errors_name_the_interface() {
    let files = Files::new(TMP);
    let network = Network::new(1);
    let refuse = |options: &[&str], code: i32, message: &str| {
        let mut command = interop::outboard(&network.server);
        command.arg("serve").arg(files.path()).args(options);
        let output = run(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{options:?}: {said}");
        assert!(said.contains(message), "{options:?}: {said}");
    };
    refuse(&["--link", "xdp:none"], 69, "no interface none; `ip link` lists them");
    refuse(&["--link", "xdp:lo"], 69, "interface lo is not an Ethernet interface");
    refuse(&["--link", "xdp:v0,fast"], 2, "unknown XDP mode `fast`");
    refuse(&["--link", "xdp:v0,generic,zerocopy"], 2, "XDP mode `generic` copies");
    refuse(&["--link", "xdp:v0,zerocopy"], 69, "the driver of interface v0 has no zero-copy");
    // A device process receives from all queues of the interface, for any number of the program's.
    if !has_device_process() {
        let message = "fewer receive queues (1) than --queues (2)";
        refuse(&["--link", "xdp:v0", "--queues", "2"], 69, message);
    }
    let kernels = ["--link", "xdp:v0", "--addr", "10.77.0.3/24"];
    refuse(&kernels, 69, "address 10.77.0.3 is already in use on interface v0");
    let shared = ["--link", "xdp:v0", "--share-address"];
    refuse(&shared, 69, "interface v0 does not have address 10.77.0.2");
    refuse(&["--share-address"], 2, "--share-address needs --link xdp:IF");
    run_for_output(network.server.command("ip").args(["link", "set", "v0", "mtu", "16000"]));
    refuse(&["--link", "xdp:v0"], 69, "interface v0 has MTU 16000");
    run_for_output(network.server.command("ip").args(["link", "set", "v0", "mtu", "1500"]));
    let mut command = network.server.command("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--"]);
    let program = interop::outboard(&network.server);
    // The last argument of the wrappers is the program.
    command.args(program.get_args().last()).arg("serve").arg(files.path());
    command.args(["--link", "xdp:v0"]);
    let output = run(&mut command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(77), "{said}");
    assert!(said.contains("grant CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"), "{said}");
    let ports = "echo 32768 65535 >/proc/sys/net/ipv4/ip_local_port_range";
    run_for_output(network.server.command("sh").args(["-c", ports]));
    let shared = ["--link", "xdp:v0", "--share-address", "--addr", "10.77.0.3/24"];
    refuse(&shared, 69, "overlap those of --share-address");
}

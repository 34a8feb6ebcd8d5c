//! Several queues on a TAP: every engine works on each of them, and no connection falls back to the
//! host, whichever queue of the link its frames take.

use interop::{
    Counters, Files, Netns, PEER, TestServer, ThirdPartyServer, expect_success, has_device_process,
    run, sha256,
};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3GET: &str = env!("CARGO_BIN_EXE_h3get");
const QUEUES: [usize; 2] = [0, 1];
/// Connections of a test: all use one queue once in 2^39 runs.
const CONNECTIONS: u64 = 40;

/// Fetches a URL on as many connections, and checks every body.
fn fetch(server: &TestServer, url: &str, sum: &str) {
    let script = format!(
        "for i in $(seq {CONNECTIONS}); do curl -sSfk -m 60 {url} | sha256sum || exit 1; done"
    );
    let mut bash = server.command("bash");
    bash.args(["-c", &script]);
    let text = expect_success(&run(&mut bash));
    assert_eq!(text.lines().filter(|line| line.starts_with(sum)).count() as u64, CONNECTIONS);
}

/// Asserts that a counter has moved on both queues; returns their sum.
#[track_caller]
fn on_both(server: &TestServer, part: &str, name: &str) -> u64 {
    let stat = server.stat();
    let values = QUEUES.map(|queue| stat.get(&format!("{part}.q{queue}.{name}")));
    assert!(values.iter().all(|&value| value > 0), "{name}: {values:?}");
    values.iter().sum()
}

/// Returns the number of connections whose end the devices have reported. Some of curl's are reset:
/// it does not wait for the end of TLS.
fn ended(stat: &Counters) -> u64 {
    stat.get("handed_over_closed") + stat.get("handed_over_reset")
}

/// Waits until the device has reported the ends of all connections that it closed.
fn wait_for_closes(server: &TestServer) {
    for _ in 0..1000 {
        let stat = server.stat();
        if stat.get("handed_over") == ended(&stat) {
            return;
        }
    }
    panic!("{:?}", server.stat());
}

#[test]
fn connections_over_tls_are_set_up_encrypted_and_closed_by_the_device_of_their_queue() {
    let files = Files::new(TMP);
    let sum = sha256(&files.fill("a.bin", 50_000));
    for threads in ["two", "one"] {
        let options = ["--tls", "--http", "--http3", "--queues", "2", "--threads", threads];
        let server = TestServer::start(files.path(), &options);
        for url in ["https://10.77.0.2/a.bin", "http://10.77.0.2/a.bin"] {
            fetch(&server, url, &sum);
        }
        wait_for_closes(&server);
        let all = 2 * CONNECTIONS;
        assert_eq!(on_both(&server, "host", "setup_accepted"), all, "set up by the devices");
        assert_eq!(on_both(&server, "host", "handed_over"), all, "closed by the devices");
        on_both(&server, "host", "handed_over_closed");
        assert_eq!(on_both(&server, "host", "tls_tx_device"), CONNECTIONS);
        on_both(&server, "nic", "tx_tls_encrypted_bytes");
        let stat = server.stat();
        stat.expect_zero(&["tls_tx_sw", "hand_over_refused", "file_fallback_bytes"]);
        stat.expect_zero(&["rx_steered_dropped", "nic_internal_errors", "handed_over_lost"]);
        server.expect_no_alarm();
    }
}

/// The kernel knows nothing of connection IDs, so frames are handed over; a client that migrates
/// keeps its connection on the device that has its keys.
#[test]
fn packets_of_quic_are_decrypted_by_the_device_of_their_connection() {
    let (files, folder) = (Files::new(TMP), Files::new(TMP));
    files.fill("a.bin", 60_000_000);
    let options = ["--tls", "--http3", "--queues", "2", "--threads", "two"];
    let server = TestServer::start(files.path(), &options);
    let to = folder.path().join("got");
    let mut client = server.command("timeout");
    client.env("H3GET_REBIND", "1000000").args(["60", H3GET, "10.77.0.2:443", "/a.bin"]).arg(&to);
    let _ = expect_success(&run(&mut client));
    assert_eq!(sha256(&to), sha256(&files.path().join("a.bin")));
    let stat = server.stat();
    assert!(stat.get("quic_migrations") >= 45, "{stat:?}");
    let (opened, host) = (stat.get("quic_rx_opened"), stat.get("quic_in_opened"));
    assert!(opened > 200 && host + 10 > opened, "by the device: {stat:?}");
    let handed_over = stat.get("rx_steered_in");
    assert!(has_device_process() || handed_over > 50, "{stat:?}");
    assert!(!has_device_process() || handed_over == 0, "a switch steers the frames: {stat:?}");
    stat.expect_zero(&["rx_steered_dropped", "nic_internal_errors"]);
}

/// Both connections of a pair belong to one queue, so its device can relay between them.
#[test]
fn a_proxy_splices_on_both_queues() {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    let sum = sha256(&files.fill("a.bin", 2_000_000));
    let netns = Netns::new();
    let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &[8081], "");
    let backend = format!("{PEER}:8081");
    let options = ["--listen", ":80", "--backend", &backend, "--queues", "2"];
    let server = TestServer::proxy(netns, &options);
    fetch(&server, "http://10.77.0.2/a.bin", &sum);
    assert_eq!(on_both(&server, "nic", "splice_begun"), CONNECTIONS);
    assert_eq!(on_both(&server, "host", "setup_accepted"), CONNECTIONS);
    let stat = server.stat();
    stat.expect_zero(&["proxy_502", "proxy_503", "proxy_relayed"]);
    stat.expect_zero(&["rx_steered_dropped", "nic_internal_errors"]);
    // The kernel selects the devices' queues: without its program, half of the frames are handed
    // over.
    let (steered, all) = (stat.get("rx_steered_in"), stat.get("link_rx_frames"));
    assert!(steered * 10 < all, "{steered} of {all} frames handed over");
}

/// A macvtap selects queues by a hash of its own: about half of the frames are handed over. Of
/// packet sockets a program selects by the devices' hash.
#[test]
fn frames_of_any_link_are_handed_over() {
    let files = Files::new(TMP);
    let sum = sha256(&files.fill("a.bin", 50_000));
    for link in ["macvtap:v0", "packet:v0"] {
        let netns = std::sync::Arc::new(Netns::new());
        let script = "ip link add v0 type veth peer name v1 && ip addr add 10.77.0.1/24 dev v1 && \
                      ip link set v0 up && ip link set v1 up";
        let mut sh = netns.command("sh");
        sh.args(["-c", script]);
        let _ = expect_success(&run(&mut sh));
        let network = ["--link", link, "--addr", "10.77.0.2/24"];
        let folder = files.path().to_string_lossy();
        let options = ["--queues", "2"];
        let server = TestServer::serve_namespace(netns, &folder, &network, &options);
        fetch(&server, "http://10.77.0.2/a.bin", &sum);
        wait_for_closes(&server);
        assert_eq!(on_both(&server, "host", "setup_accepted"), CONNECTIONS, "{link}");
        assert_eq!(on_both(&server, "host", "handed_over"), CONNECTIONS, "{link}");
        let stat = server.stat();
        let (steered, all) = (stat.get("rx_steered_in"), stat.get("link_rx_frames"));
        match link {
            "packet:v0" => {
                assert!(steered * 10 < all, "{steered} of {all} frames handed over");
                stat.expect_zero(&["link_rx_dropped"]);
            }
            _ if has_device_process() => stat.expect_zero(&["rx_steered_in"]),
            _ => {
                on_both(&server, "nic", "rx_steered_in");
            }
        }
        stat.expect_zero(&["rx_steered_dropped", "nic_internal_errors"]);
    }
}

/// Opens connections, loads one of them until the file `flag` exists, and then uses the old
/// connections and new ones.
const KEPT_CONNECTIONS: &str = r#"
import hashlib, http.client, os, ssl, sys
flag, want, scheme = sys.argv[1:]
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

def connect():
    if scheme == "https":
        return http.client.HTTPSConnection("10.77.0.2", timeout=60, context=context)
    return http.client.HTTPConnection("10.77.0.2", timeout=60)

def fetch(connection):
    connection.request("GET", "/a.bin")
    assert hashlib.sha256(connection.getresponse().read()).hexdigest() == want

kept = [connect() for _ in range(40)]
for connection in kept:
    fetch(connection)
sockets = [connection.sock for connection in kept]
while not os.path.exists(flag):
    fetch(kept[0])
for connection in kept:
    fetch(connection)
for _ in range(160):
    new = connect()
    fetch(new)
    new.close()
for connection in kept:
    fetch(connection)
assert sockets == [connection.sock for connection in kept], "a connection was opened again"
for connection in kept:
    connection.close()
"#;

/// A queue that is busier than the other gives up entries of the steering: new connections begin at
/// the other queue, and open ones follow with their next request.
#[test]
fn connections_go_to_the_queue_that_is_less_busy() {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    let sum = sha256(&files.fill("a.bin", 50_000));
    for scheme in ["http", "https"] {
        let flag = scratch.path().join(scheme);
        let options = ["--tls", "--queues", "2", "--queue-balance", "1"];
        let options = &options[usize::from(scheme == "http")..];
        let server = TestServer::start(files.path(), options);
        let mut client = server.command("timeout");
        client.args(["100", "/usr/bin/python3", "-c", KEPT_CONNECTIONS]);
        client.arg(&flag).args([&sum, scheme]);
        std::thread::scope(|scope| {
            let used = scope.spawn(move || run(&mut client));
            // Three measurements of a second, and the client's own time limit.
            while server.stat().get("steering_entries_moved_away") == 0 && !used.is_finished() {}
            let kept = opened_on_queues(&server);
            std::fs::write(&flag, "").expect("the folder exists");
            let _ = expect_success(&used.join().expect("no panic"));
            wait_for_closes(&server);
            check_moves(&server, scheme, kept);
        });
    }
}

/// Returns the number of connections that each of two queues has accepted.
fn opened_on_queues(server: &TestServer) -> [u64; 2] {
    let stat = server.stat();
    QUEUES.map(|queue| stat.get(&format!("host.q{queue}.tcp_passive_opens")))
}

/// Checks the counters of a server with two queues, one of which gave up entries after they had
/// accepted `kept` connections.
fn check_moves(server: &TestServer, scheme: &str, kept: [u64; 2]) {
    let stat = server.stat();
    let entries = QUEUES.map(|queue| stat.get(&format!("host.q{queue}.steering_entries")));
    let opened = opened_on_queues(server);
    assert_eq!(entries.iter().sum::<u64>(), 512);
    let busier = usize::from(entries[0] > entries[1]);
    let new = QUEUES.map(|queue| opened[queue] - kept[queue]);
    assert!(new[busier] < new[1 - busier], "{new:?} new connections, {entries:?} entries");
    assert_eq!((kept.iter().sum::<u64>(), new.iter().sum::<u64>()), (40, 160));
    // Of the 20 kept connections of the busier queue, all are in entries that stayed once in 2^20
    // runs.
    assert!(stat.get("rx_steered_former") > 0 && stat.get("tcp_handed_over") > 0, "{stat:?}");
    let moved = stat.get(&format!("host.q{busier}.tcp_moved_out"));
    assert!(moved > 0, "{stat:?}");
    assert_eq!(stat.get(&format!("host.q{}.tcp_moved_in", 1 - busier)), moved);
    assert_eq!((stat.get("tcp_moved_out"), stat.get("tcp_moved_in")), (moved, moved));
    if scheme == "https" {
        assert_eq!(stat.get("tls_tx_device"), 200 + moved, "a context at each device");
        stat.expect_zero(&["tls_tx_sw", "tls_rx_sw", "tls_decrypt_error"]);
    }
    stat.expect_zero(&["rx_steered_dropped", "nic_internal_errors", "internal_errors"]);
    stat.expect_zero(&["tcp_no_connection", "tcp_moved_refused"]);
    server.expect_no_alarm();
}

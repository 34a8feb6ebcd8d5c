//! Counters for alarms remain zero with ordinary clients: curl, wrk, quinn, nginx behind the proxy,
//! and our own initiator.

use interop::{
    ADDR, Files, Netns, PEER, TestServer, ThirdPartyServer, expect_success, nvme_initiator,
    nvme_target, run_for_output,
};
use std::sync::Arc;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3GET: &str = env!("CARGO_BIN_EXE_h3get");

/// Runs a script in the server's namespace, and asserts that it succeeds.
fn script(server: &TestServer, text: &str) {
    let output = server.command("bash").args(["-ec", text]).output().expect("bash");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}: {said}");
}

#[test]
fn after_clients_of_a_server() {
    let files = Files::new(TMP);
    files.fill("10k.bin", 10_000);
    files.fill("20m.bin", 20 << 20);
    for offload in ["all", "none"] {
        let options = ["--tls", "--http3", "--http", "--offload", offload];
        let server = TestServer::start(files.path(), &options);
        let plain = format!("http://{ADDR}/10k.bin");
        let close = "-H 'Connection: close'";
        script(
            &server,
            &format!(
                "curl -sfk -o /dev/null https://{ADDR}/20m.bin https://{ADDR}/10k.bin\n\
                 curl -sf -o /dev/null http://{ADDR}/20m.bin -o /dev/null {plain}\n\
                 curl -sf -o /dev/null -r 5-9 {plain}\n\
                 curl -s -o /dev/null http://{ADDR}/none\n\
                 wrk -t 1 -c 50 -d 2s {plain}\n\
                 wrk -t 1 -c 50 -d 2s {close} {plain}\n\
                 wrk -t 1 -c 20 -d 2s {close} https://{ADDR}/10k.bin"
            ),
        );
        let to = files.path().with_extension("got");
        let mut http3 = server.command("timeout");
        http3.args(["60", H3GET, "10.77.0.2:443", "/10k.bin,/20m.bin"]).arg(&to);
        assert!(expect_success(&http3.output().expect("timeout")).starts_with("200\n"));
        let _ = std::fs::remove_file(&to);
        server.stat().expect_nonzero(&["http_requests", "tls_handshakes", "quic_connections"]);
        server.expect_no_alarm();
    }
}

#[test]
fn after_clients_of_a_proxy() {
    for splice in ["on", "off"] {
        let (files, scratch) = (Files::new(TMP), Files::new(TMP));
        files.fill("10k.bin", 10_000);
        files.fill("20m.bin", 20 << 20);
        let netns = Netns::new();
        let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &[8081], "");
        let backend = format!("{PEER}:8081");
        let options = ["--listen", ":80", "--backend", &backend, "--splice", splice];
        let server = TestServer::proxy(netns, &options);
        let url = format!("http://{ADDR}/10k.bin");
        script(
            &server,
            &format!(
                "curl -sf -o /dev/null http://{ADDR}/20m.bin -o /dev/null {url}\n\
                 wrk -t 1 -c 50 -d 2s {url}\n\
                 wrk -t 1 -c 20 -d 2s -H 'Connection: close' {url}"
            ),
        );
        let counter = if splice == "on" { "proxy_spliced" } else { "proxy_relayed" };
        server.stat().expect_nonzero(&[counter]);
        server.expect_no_alarm();
    }
}

#[test]
fn after_an_initiator() {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    let disk = files.fill("disk", 8 << 20);
    let server = nvme_target(Arc::new(Netns::new()), &disk, &[]);
    server.netns().enable_ipv4_forwarding();
    let control = scratch.path().join("control");
    let verb = |verb: &str| nvme_initiator(server.netns(), verb, ADDR, &control);
    run_for_output(verb("list").arg("--json"));
    run_for_output(verb("write").arg("--input").arg(&disk));
    run_for_output(verb("read").arg("--output").arg(scratch.path().join("copy")));
    server.stat().expect_nonzero(&["nvmet_reads", "nvmet_writes"]);
    server.expect_no_alarm();
}

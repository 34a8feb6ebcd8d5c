//! Crypto workers beside the device. The test is alone in its file: others would take the cores
//! that the workers need, and the device encrypts itself what no worker takes.

use interop::{Files, TestServer, pattern, run};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const CLIENT: &str = env!("CARGO_BIN_EXE_h3get");

/// Threads beside the device encrypt QUIC packets and TLS records; the clients see no difference.
#[test]
fn crypto_workers_encrypt_and_decrypt() {
    let files = Files::new(TMP);
    files.fill("a.bin", 10_000_000);
    let options = ["--tls", "--http3", "--crypto-workers", "2", "--threads", "two"];
    let server = TestServer::start(files.path(), &options);
    let to = files.path().join("got");
    let quic = || {
        let mut client = server.command("timeout");
        let output = run(client.args(["120", CLIENT, "10.77.0.2:443", "/a.bin"]).arg(&to));
        let body = std::fs::read(&to).unwrap_or_default();
        assert!(output.status.success(), "{output:?}");
        assert!(body == pattern(10_000_000), "{} bytes, or wrong ones", body.len());
    };
    fetch_until_workers_help(&server, "quic_tx_sealed", 5_000, quic);
    let tls = || {
        let url = "https://10.77.0.2/a.bin";
        let curl = server.command("curl").args(["-sk", url]).output().expect("curl");
        assert!(curl.status.success() && curl.stdout == pattern(10_000_000), "{:?}", curl.status);
    };
    fetch_until_workers_help(&server, "tx_tls_encrypted_bytes", 9_000_000, tls);
    let last = server.stat();
    for alarm in ["crypto_jobs_failed", "crypto_jobs_lost", "crypto_runs_lost"] {
        assert_eq!(last.get(alarm), 0, "{alarm}");
    }
}

/// Calls `fetch` until the workers have done more than a hundred jobs. Each call has to move the
/// device's counter `encrypted` by this much. On a busy machine the workers may not get a core
/// during a single transfer.
fn fetch_until_workers_help(server: &TestServer, encrypted: &str, least: u64, fetch: impl Fn()) {
    let begin = server.stat();
    for _ in 0..20 {
        let before = server.stat();
        fetch();
        let after = server.stat();
        assert!(after.moved(&before, encrypted) > least, "{after:?}");
        if after.moved(&begin, "crypto_jobs_worker") > 100 {
            return;
        }
    }
    panic!("the workers do nothing: {:?}", server.stat());
}

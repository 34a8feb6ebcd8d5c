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
    let before = server.stat();
    let to = files.path().join("got");
    let mut client = server.command("timeout");
    let output = run(client.args(["120", CLIENT, "10.77.0.2:443", "/a.bin"]).arg(&to));
    let body = std::fs::read(&to).unwrap_or_default();
    assert!(output.status.success(), "{output:?}");
    assert!(body == pattern(10_000_000), "{} bytes, or wrong ones", body.len());
    let after = server.stat();
    let moved = |name| after.moved(&before, name);
    let jobs = moved("crypto_jobs_worker");
    assert!(jobs > 100 && moved("quic_tx_sealed") > 5_000, "{after:?}");
    let url = "https://10.77.0.2/a.bin";
    let curl = server.command("curl").args(["-sk", url]).output().expect("curl");
    assert!(curl.status.success() && curl.stdout == pattern(10_000_000), "{:?}", curl.status);
    let last = server.stat();
    assert!(last.moved(&after, "tx_tls_encrypted_bytes") > 9_000_000, "{last:?}");
    assert!(last.moved(&after, "crypto_jobs_worker") > 100, "{last:?}");
    for alarm in ["crypto_jobs_failed", "crypto_jobs_lost", "crypto_runs_lost"] {
        assert_eq!(last.get(alarm), 0, "{alarm}");
    }
}

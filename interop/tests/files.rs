//! Whole files arrive unchanged: every size, many at once, over IPv4 and IPv6, and over a link that
//! loses, reorders, duplicates and corrupts packets.

use interop::{Download, Files, TestServer, Url, counters, sha256};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// File sizes around the boundaries of pages, segments and the device's buffers.
const SIZES: [u64; 12] =
    [0, 1, 1459, 1460, 1461, 4095, 4096, 4097, 65_535, 65_537, MIB, 5 * MIB + 123];

/// Writes a file for each size; returns names and hashes.
fn fill(files: &Files, sizes: &[u64]) -> Vec<(String, String)> {
    let name = |bytes: u64| format!("{bytes}.bin");
    sizes.iter().map(|&bytes| (name(bytes), sha256(&files.fill(&name(bytes), bytes)))).collect()
}

fn v4(name: &str) -> Url {
    Url::v4(&format!("/{name}"))
}

#[test]
fn every_size_arrives_and_the_device_read_it() {
    let files = Files::new(TMP);
    let sums = fill(&files, &SIZES);
    let server = TestServer::start(files.path(), &[]);
    let before = server.stat();
    for (name, sum) in &sums {
        assert_eq!(&server.download(&v4(name)).sha256(), sum, "{name}");
    }
    let after = server.stat();
    // Every byte was read and sent by the device, and none by the host.
    let bytes: u64 = SIZES.iter().sum();
    assert!(after.moved(&before, counters::FILE_BYTES) >= bytes, "{after:?}");
    assert_eq!(after.moved(&before, counters::FILE_FALLBACK_BYTES), 0, "{after:?}");
}

#[test]
fn without_offload_the_host_reads_and_the_bytes_are_the_same() {
    let files = Files::new(TMP);
    let sums = fill(&files, &SIZES);
    let server = TestServer::start(files.path(), &["--offload", "none"]);
    let before = server.stat();
    for (name, sum) in &sums {
        assert_eq!(&server.download(&v4(name)).sha256(), sum, "{name}");
    }
    let after = server.stat();
    let bytes: u64 = SIZES.iter().sum();
    assert!(after.moved(&before, counters::FILE_FALLBACK_BYTES) >= bytes, "{after:?}");
    assert_eq!(after.moved(&before, counters::FILE_OFFLOAD_BYTES), 0, "{after:?}");
}

#[test]
fn several_queues_share_the_flows_and_every_file_arrives() {
    let files = Files::new(TMP);
    let sums = fill(&files, &SIZES);
    let server = TestServer::start(files.path(), &["--queues", "3", "--threads", "two"]);
    let before = server.stat();
    for (name, sum) in sums.iter().cycle().take(36) {
        assert_eq!(&server.download(&v4(name)).sha256(), sum, "{name}");
    }
    let after = server.stat();
    assert_eq!(after.moved(&before, counters::FILE_FALLBACK_BYTES), 0, "{after:?}");
    // 36 flows over three queues: all on one queue happens once in 10^17 runs.
    let opens = |queue: u8| after.get(&format!("host.q{queue}.tcp_passive_opens"));
    assert!(opens(0).max(opens(1)).max(opens(2)) < 36, "{after:?}");
}

#[test]
fn sixty_four_downloads_with_one_of_a_gibibyte() {
    const AT_ONCE: usize = 64;
    let files = Files::new(TMP);
    let mut sums = fill(&files, &SIZES);
    sums.extend(fill(&files, &[GIB]));
    let server = TestServer::start(files.path(), &[]);
    // The large file first; the others start and end during its transfer.
    let downloads: Vec<(&str, &str, Download)> = sums
        .iter()
        .rev()
        .cycle()
        .take(AT_ONCE)
        .map(|(name, sum)| (name.as_str(), sum.as_str(), server.download(&v4(name))))
        .collect();
    for (name, sum, download) in downloads {
        assert_eq!(download.sha256(), sum, "{name}");
    }
}

#[test]
fn one_file_many_times_at_once_is_shared() {
    const AT_ONCE: usize = 64;
    let files = Files::new(TMP);
    let sums = fill(&files, &[4 * MIB]);
    let (name, sum) = &sums[0];
    let server = TestServer::start(files.path(), &[]);
    let downloads: Vec<Download> = (0..AT_ONCE).map(|_| server.download(&v4(name))).collect();
    for download in downloads {
        assert_eq!(&download.sha256(), sum);
    }
}

#[test]
fn ipv6_serves_the_same_bytes() {
    let files = Files::new(TMP);
    let sums = fill(&files, &SIZES);
    let server = TestServer::start(files.path(), &["--addr", "fd77::2/64", "--peer", "fd77::1/64"]);
    for (name, sum) in &sums {
        let url = Url::v6("fd77::2", &format!("/{name}"));
        assert_eq!(&server.download(&url).sha256(), sum, "{name}");
        assert_eq!(&server.download(&v4(name)).sha256(), sum, "{name}");
    }
}

/// Faults of the link: 2 % lost and 2 % reordered, 1 % duplicated, 0.5 % corrupted.
const IMPAIRED: [&str; 8] =
    ["--drop", "0.02", "--reorder", "0.02", "--dup", "0.01", "--corrupt", "0.005"];

fn impaired(options: &[&str]) {
    let files = Files::new(TMP);
    let sums = fill(&files, &SIZES[..11]);
    let server = TestServer::start(files.path(), &[&IMPAIRED, options].concat());
    let before = server.stat();
    // Three downloads of each file: enough packets for every kind of fault.
    for _ in 0..3 {
        let downloads: Vec<_> = sums.iter().map(|(n, s)| (n, s, server.download(&v4(n)))).collect();
        for (name, sum, download) in downloads {
            assert_eq!(&download.sha256(), sum, "{name}");
        }
    }
    let after = server.stat();
    assert!(after.moved(&before, counters::TCP_RETRANS) > 0, "{after:?}");
}

#[test]
fn impaired_link_delivers_the_same_bytes() {
    impaired(&[]);
}

#[test]
fn impaired_link_without_offload_delivers_the_same_bytes() {
    impaired(&["--offload", "none"]);
}

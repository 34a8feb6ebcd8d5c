//! Uploads with a content coding: decompressed by the device or the host, bounded, verified.

use std::io::Write as _;

use zstd_safe::{CCtx, CParameter};

use super::*;

const CODINGS: [&str; 2] = ["gzip", "zstd"];
const TRANSPORTS: [Over; 3] = [Over::Http, Over::Https, Over::Http3];

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn zstd(bytes: &[u8], window_log: u32) -> Vec<u8> {
    let mut context = CCtx::create();
    for parameter in [
        CParameter::ChecksumFlag(true),
        CParameter::ContentSizeFlag(false),
        CParameter::WindowLog(window_log),
    ] {
        context.set_parameter(parameter).expect("a parameter");
    }
    let mut out = vec![0; zstd_safe::compress_bound(bytes.len())];
    let len = context.compress2(&mut out[..], bytes).expect("there is room");
    out.truncate(len);
    out
}

fn encode(coding: &str, bytes: &[u8]) -> Vec<u8> {
    if coding == "gzip" { gzip(bytes) } else { zstd(bytes, 20) }
}

/// Bytes that compress to about half.
fn text(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b'a' + (state >> 28) as u8
    };
    core::iter::repeat_with(&mut next).take(bytes).collect()
}

/// Asserts who decompressed these bytes.
fn check_decompression(rig: &UploadRig, offload: bool, bytes: u64) {
    assert_eq!(rig.count("decompress_sw_bytes"), if offload { 0 } else { bytes });
    if offload {
        assert_eq!(rig.count("decompress_bytes"), bytes);
        assert_eq!(rig.count("decompress_refused"), 0);
    } else {
        assert_eq!(rig.count("decompress_device_refused"), 0, "nothing is asked");
    }
}

impl UploadRig {
    fn put_encoded(&mut self, over: Over, path: &str, coding: &'static str, bytes: &[u8]) -> u16 {
        self.coding = Some(coding);
        let status = self.put(over, path, Some(bytes.len()), bytes);
        self.coding = None;
        status
    }

    /// Asserts that a refused upload has left nothing.
    fn assert_nothing_is_left(&mut self) {
        self.assert_clean();
        self.assert_files(&[]);
        for name in ["upload_quota_used_bytes", "upload_decoders", "decompress_jobs_on_device"] {
            assert_eq!(self.count(name), 0, "{name}");
        }
    }
}

#[test]
fn encoded_files_arrive_decompressed_with_and_without_offload() {
    let big = text(BIG);
    for (over, coding) in TRANSPORTS.into_iter().flat_map(|over| CODINGS.map(|c| (over, c))) {
        for offload in [true, false] {
            let mut rig = UploadRig::new(offload, u64::MAX);
            let content = encode(coding, &big);
            assert!(content.len() * 4 < BIG * 3, "it is compressed");
            assert_eq!(rig.put_encoded(over, "big", coding, &content), 201, "{over:?} {coding}");
            // The length is not declared, and two members or frames follow each other.
            let [a, b] = [&big[..100_000], &big[100_000..200_000]].map(|part| encode(coding, part));
            rig.coding = Some(coding);
            assert_eq!(rig.put(over, "two", None, &[a, b].concat()), 201, "{over:?} {coding}");
            let empty = encode(coding, b"");
            assert_eq!(rig.put_encoded(over, "empty", coding, &empty), 201, "{over:?} {coding}");
            rig.assert_files(&[("big", &big), ("empty", b""), ("two", &big[..200_000])]);
            rig.assert_clean();
            let bytes = BIG as u64 + 200_000;
            check_decompression(&rig, offload, bytes);
            assert_eq!(rig.count("uploads_encoded"), 3);
            assert_eq!(rig.count("upload_bytes"), bytes);
            assert!(rig.count("upload_encoded_bytes") < bytes * 3 / 4);
            assert_eq!(rig.count("upload_quota_used_bytes"), bytes);
        }
    }
}

/// Content that breaks off, is damaged, or is followed by other bytes.
#[test]
fn damaged_content_is_refused() {
    for (over, coding) in TRANSPORTS.into_iter().flat_map(|over| CODINGS.map(|c| (over, c))) {
        for offload in [true, false] {
            let mut rig = UploadRig::new(offload, u64::MAX);
            let good = encode(coding, &text(500_000));
            let mut damaged = good.clone();
            let (middle, last) = (good.len() / 2, good.len() - 1);
            damaged[middle] ^= 0x55;
            let mut checksum = good.clone();
            checksum[last] ^= 1;
            let trailing = [&good[..], b"garbage"].concat();
            for bad in [&good[..last], &good[..3], b"", &damaged, &checksum, &trailing, b"plain"] {
                let status = rig.put_encoded(over, "bad", coding, bad);
                assert_eq!(status, 400, "{over:?} {coding} {}", bad.len());
                rig.assert_nothing_is_left();
            }
            assert_eq!(rig.count("upload_refused_content"), 7);
            assert_eq!(rig.put_encoded(over, "good", coding, &good), 201);
        }
    }
}

/// A bomb is refused when it has become too large or too large a multiple of its length; only a
/// little more is decompressed.
#[test]
fn bombs_are_refused() {
    for (over, coding) in TRANSPORTS.into_iter().flat_map(|over| CODINGS.map(|c| (over, c))) {
        for offload in [true, false] {
            let mut rig = UploadRig::new(offload, u64::MAX);
            let bomb = encode(coding, &vec![0; 2 * BIG]);
            assert!(bomb.len() < 2 * BIG / 500, "{}", bomb.len());
            assert_eq!(rig.put_encoded(over, "bomb", coding, &bomb), 413, "{over:?} {coding}");
            rig.assert_nothing_is_left();
            let count = if offload { "decompress_bytes" } else { "decompress_sw_bytes" };
            let bytes = rig.count(count);
            assert!(bytes < 2 << 20, "{over:?} {coding}: {bytes} decompressed");
            // Larger than a file may be, with a modest ratio.
            let long = encode(coding, &text(2 * BIG + 1));
            assert_eq!(rig.put_encoded(over, "long", coding, &long), 413, "{over:?} {coding}");
            rig.assert_nothing_is_left();
            assert_eq!(rig.count("upload_refused_size"), 2);
            // The first MiB may have any ratio.
            let short = encode(coding, &vec![0; 1 << 20]);
            assert_eq!(rig.put_encoded(over, "short", coding, &short), 201, "{over:?} {coding}");
        }
    }
    let bytes = vec![0; (8 << 20) + 1];
    let mut rig = UploadRig::new(true, u64::MAX);
    assert_eq!(rig.put_encoded(Over::Http, "wide", "zstd", &zstd(&bytes, 24)), 400);
    rig.assert_nothing_is_left();
    let mut rig = UploadRig::new(true, 100_000);
    assert_eq!(rig.put_encoded(Over::Http, "quota", "gzip", &gzip(&text(200_000))), 507);
    rig.assert_nothing_is_left();
}

#[test]
fn other_codings_are_refused_with_those_that_are_decoded() {
    for over in TRANSPORTS {
        let mut rig = UploadRig::new(true, u64::MAX);
        for coding in ["br", "gzip, gzip", "zstd, gzip", "compress"] {
            assert_eq!(rig.put_encoded(over, "x", coding, b"x"), 415, "{over:?} {coding}");
            let head = String::from_utf8_lossy(&rig.net.client.app.received).into_owned();
            assert!(over == Over::Http3 || head.contains("\r\nAccept-Encoding: gzip, zstd\r\n"));
        }
        assert_eq!(rig.put_encoded(over, "x", "identity", b"x"), 201, "{over:?}");
        rig.assert_files(&[("x", b"x")]);
        assert_eq!(rig.count("uploads_encoded"), 0);
    }
}

/// After a reset in the middle, and with a device that refuses, the file is the same.
#[test]
fn a_reset_or_a_refusal_in_the_middle_changes_no_byte() {
    let big = text(BIG);
    for (over, coding) in TRANSPORTS.into_iter().flat_map(|over| CODINGS.map(|c| (over, c))) {
        let mut rig = UploadRig::new(true, u64::MAX);
        rig.net.server.disk.write_time = Duration::from_millis(1);
        let content = encode(coding, &big);
        rig.coding = Some(coding);
        rig.start(over, "big", Some(content.len()), &content);
        for nth in 1..=4 {
            // A job is on its way to the device, which is reset before it runs the job.
            rig.run(|net| {
                net.server.count("decompress_bytes") > nth * BIG as u64 / 6
                    && net.server.count("decompress_jobs_on_device") > 0
                    && net.server.ops().iter().any(|op| matches!(op, abi::Op::Decompress(_)))
            });
            let now = rig.net.now;
            let server = &mut rig.net.server;
            let jobs = server.ops().iter().position(|op| matches!(op, abi::Op::Decompress(_)));
            let op = jobs.and_then(|at| server.ops().remove(at)).expect("a job");
            server.device().handle_op(now, 0, op);
            server.device().reset();
        }
        rig.run(|net| net.server.count("uploads_completed") == 1);
        rig.assert_files(&[("big", &big)]);
        rig.assert_clean();
        let [by_device, by_host] =
            ["decompress_bytes", "decompress_sw_bytes"].map(|name| rig.count(name));
        assert_eq!(by_device + by_host, BIG as u64, "{over:?} {coding}");
        assert!(by_host > 0 && by_device > BIG as u64 / 2, "{over:?} {coding}: {by_host}");
        let refused = (rig.count("decompress_refused"), rig.count("decompress_device_refused"));
        assert_eq!(refused, (4, 4), "{over:?} {coding}");
    }
}

/// The pattern is found in the decompressed bytes, also across two jobs.
#[test]
fn denied_content_is_found_after_decompression() {
    let rules = PatternRules::parse("EVIL", &mut RuleCounterNames::default()).expect("valid");
    let rules = Arc::new(rules);
    let good = text(BIG);
    for (over, coding) in TRANSPORTS.into_iter().flat_map(|over| CODINGS.map(|c| (over, c))) {
        for at in [10, (128 << 10) - 2, BIG - 4] {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(b"EVIL");
            let mut rig = UploadRig::with_rules(true, u64::MAX, Some(Arc::clone(&rules)));
            let status = rig.put_encoded(over, "bad", coding, &encode(coding, &bad));
            assert_eq!(status, 403, "{over:?} {coding} at {at}");
            rig.assert_nothing_is_left();
            assert_eq!((rig.count("http_denied"), rig.count("pattern_decoded_matches")), (1, 1));
            let status = rig.put_encoded(over, "good", coding, &encode(coding, &good));
            assert_eq!(status, 201, "{over:?} {coding} at {at}");
            assert!(rig.count("pattern_decoded_bytes") >= BIG as u64);
        }
    }
}

#[test]
fn a_slow_disk_and_a_client_that_ends_early_leave_nothing() {
    let big = text(BIG);
    for (over, coding) in TRANSPORTS.into_iter().flat_map(|over| CODINGS.map(|c| (over, c))) {
        let mut rig = UploadRig::new(true, u64::MAX);
        rig.net.server.disk.write_time = Duration::from_millis(500);
        let content = encode(coding, &big);
        rig.coding = Some(coding);
        rig.start(over, "big", Some(content.len()), &content);
        let mut most = 0;
        rig.run(|net| {
            most = most.max(net.server.count("upload_buffer_bytes"));
            net.server.count("upload_bytes") > BIG as u64 / 2
        });
        assert!((1..=384 << 10).contains(&most), "{over:?}: {most}");
        let TwoMachineNetwork { now, client: NetworkNode { machine, app }, .. } = &mut rig.net;
        match (app.socket.take(), app.stream.take()) {
            (Some(socket), _) => machine.host().abort(*now, socket),
            (None, Some((handle, stream))) => {
                app.endpoint.reset(machine.host(), handle, stream, CANCELLED);
            }
            (None, None) => panic!("a request was begun"),
        }
        rig.run(|net| net.server.count("uploads_failed") == 1);
        rig.run(|net| net.server.count("uploads_open") == 0);
        rig.assert_nothing_is_left();
    }
}

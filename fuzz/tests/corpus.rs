//! Runs every fuzz target on its corpus and on some random inputs.

use base::Prng;

/// Runs a fuzz target on the files of its corpus, on 100 random inputs, and on an empty one.
fn replay(name: &str) {
    let target = fuzz::by_name(name).expect("a target");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        target(&std::fs::read(&path).expect("a file"));
        files += 1;
    }
    assert!(files > 0, "an empty corpus shows nothing");
    let mut prng = Prng::new(1);
    for _ in 0..100 {
        let len = usize::try_from(prng.range(0, 1024)).expect("small");
        let bytes: Vec<u8> = (0..len).map(|_| prng.next_u64().to_le_bytes()[0]).collect();
        target(&bytes);
    }
    target(&[]);
}

#[test]
fn attach() {
    replay("attach");
}

#[test]
fn carrier_device() {
    replay("carrier_device");
}

#[test]
fn carrier_host() {
    replay("carrier_host");
}

#[test]
fn shared_ring() {
    replay("shared_ring");
}

#[test]
fn ethernet_session() {
    replay("ethernet_session");
}

#[test]
fn descriptors() {
    replay("descriptors");
}

#[test]
fn ext4() {
    replay("ext4");
}

#[test]
fn formats() {
    replay("formats");
}

#[test]
fn http() {
    replay("http");
}

#[test]
fn transport() {
    replay("transport");
}

#[test]
fn target() {
    replay("target");
}

/// Data for a tag that has all its data ends the connection with the same fault whether its buffer
/// was already returned or is still with the device.
#[test]
fn data_beyond_a_buffer_that_is_full() {
    let input = include_bytes!("../corpus/transport/0e6c8b66c8bf1ef75a1a21849d2f86e01bf35f07");
    fuzz::transport::run(input);
}

//! An echo server on a host and a device, over a link in memory.
//!
//! Run it with `cargo run -p outboard-examples --bin echo`. Two complete machines exchange a
//! megabyte in one thread on a virtual clock; no privileges are needed.

use base::Duration;
use bytes::Bytes;
use examples::apps::{EchoClient, EchoServer};
use examples::{Machine, run_until};
use io::memory_link::{MemoryLinkConfig, memory_link_pair};

fn main() {
    let config = MemoryLinkConfig {
        delay: Duration::from_millis(5),
        bytes_per_s: Some(125_000_000),
        ..MemoryLinkConfig::default()
    };
    let (left, right) = memory_link_pair(&config);
    let data: Bytes = (0..1 << 20).map(|n: u32| n.to_be_bytes()[3]).collect();
    let mut server = Machine::new(1, left, None, EchoServer::listen);
    let mut client =
        Machine::new(2, right, None, |host| EchoClient::connect(host, [10, 0, 0, 1], data));
    let limit = Duration::from_secs(60);
    let (now, done) =
        run_until((&mut client, &mut server), limit, |client, _| client.app.is_done());
    assert!(done, "the echo is complete");
    println!("echoed {} bytes in {now} of virtual time", server.app.bytes);
    println!("packets sent by the server's device: {}", server.counter("tx_packets"));
    println!("operations that carried them:        {}", server.counter("tx_transmits"));
}

//! Two nodes under loss, and a scenario of the simulator.
//!
//! Run it with `cargo run -p outboard-examples --bin loss -- SEED`. First the echo of `echo.rs`
//! crosses a link that drops, reorders, duplicates and corrupts packets. Then the simulator runs
//! the scenario of the seed, twice: equal seeds must have equal traces.

use base::Duration;
use bytes::Bytes;
use examples::apps::{EchoClient, EchoServer};
use examples::{Machine, run_until};
use io::fault::{FaultConfig, FaultLink};
use io::memory_link::{MemoryLinkConfig, memory_link_pair};
use sim::{RunOptions, run_seed};

fn main() {
    let seed = std::env::args().nth(1).map_or(1, |text| text.parse().expect("a seed"));
    let config =
        MemoryLinkConfig { delay: Duration::from_millis(5), ..MemoryLinkConfig::default() };
    let (left, right) = memory_link_pair(&config);
    let faults = FaultConfig {
        drop: 0.02,
        reorder: 0.01,
        dup: 0.01,
        corrupt: 0.01,
        seed,
        ..FaultConfig::default()
    };
    let left = FaultLink::new(left, faults);
    let data: Bytes = (0..1 << 18).map(|n: u32| n.to_be_bytes()[3]).collect();
    let mut server = Machine::new(1, left, None, EchoServer::listen);
    let mut client =
        Machine::new(2, right, None, |host| EchoClient::connect(host, [10, 0, 0, 1], data));
    let limit = Duration::from_secs(600);
    let (now, done) =
        run_until((&mut client, &mut server), limit, |client, _| client.app.is_done());
    assert!(done, "the echo is complete despite the faults");
    println!(
        "echoed {} bytes in {now}; {} bytes were retransmitted",
        server.app.bytes,
        server.counter("tcp_retrans_bytes")
    );

    let options = RunOptions::default();
    let [first, second] = [run_seed(seed, &options), run_seed(seed, &options)];
    if let Some(why) = first.explain() {
        panic!("{why}");
    }
    assert_eq!(first.hash, second.hash, "equal seeds have equal traces");
    println!(
        "seed {seed}: {} events until {}, trace {:016x}, no violation",
        first.events, first.end, first.hash
    );
}

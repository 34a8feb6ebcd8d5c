//! The smallest engine of the device, used by hand: it counts the frames of a flow.
//!
//! Run it with `cargo run -p outboard-examples --bin count`. The engine is in
//! `crates/nic/src/engine/count`; docs/tutorial-engine.md explains how to write one. The program
//! requests counts with an operation, runs an echo, and reads the event with the answer.

use abi::count::CountRequest;
use abi::{Event, Op};
use base::Duration;
use bytes::Bytes;
use examples::apps::{EchoClient, EchoServer};
use examples::{Machine, run_until};
use io::memory_link::{MemoryLinkConfig, memory_link_pair};
use wire::Tuple;

fn main() {
    let (left, right) = memory_link_pair(&MemoryLinkConfig::default());
    let data = Bytes::from(vec![7; 100_000]);
    let mut server = Machine::new(1, left, None, EchoServer::listen);
    let mut client =
        Machine::new(2, right, None, |host| EchoClient::connect(host, [10, 0, 0, 1], data));
    let socket = client.app.socket;
    let (local, remote) = (client.host().local(socket), client.host().remote(socket));
    let (Some(local), Some(remote)) = (local, remote) else { panic!("the socket has a tuple") };
    let count = |request| Op::CountFlow { tuple: Box::new(Tuple { local, remote }), request };
    client.push_op(count(CountRequest::Start));
    let limit = Duration::from_secs(60);
    let (now, done) =
        run_until((&mut client, &mut server), limit, |client, _| client.app.is_done());
    assert!(done, "the echo is complete");
    client.push_op(count(CountRequest::Stop));
    let answers = client.device_events(now, |event| matches!(event, Event::FlowCounted { .. }));
    for event in answers {
        println!("{event:?}");
    }
    assert!(client.counter("count_started") == 1, "the engine has counted");
}

//! Ports of a client whose connections the server's hash leads to its first queue.
//!
//! The hash has a secret key, but it is linear: a bit of the port changes the queue of two or not,
//! whatever the other bits are. So one connection for each bit tells the queue of every port. The
//! other ports of the range are reserved (`ip_local_reserved_ports`), so that the kernel does not
//! choose them.

use crate::bench::live::environment::{LiveServer, command_in_namespace};
use crate::bench::live::outboard::OUTBOARD;
use crate::bench::live::tools::output;
use cli::Failure;

/// First port of the range.
const FIRST: u16 = 16_384;
/// Bits of the port that vary. The list of reserved ports then fits a page, which is the most that
/// the kernel takes in one write.
const BITS: u16 = 10;
/// Ports whose queue is predicted and checked.
const CHECKED: [u16; 3] = [77, 515, 1000];

/// Makes the kernel of the client choose only ports that lead to queue 0. `opened` returns the
/// number of connections that each queue has accepted.
///
/// # Errors
/// Reports a connection that failed, a kernel that refuses the range, or a wrong prediction.
pub(super) fn use_ports_of_first_queue(
    server: &LiveServer,
    opened: impl Fn() -> Result<[u64; 2], Failure>,
) -> Result<(), Failure> {
    let queue_of = |offset: u16| -> Result<bool, Failure> {
        let before = opened()?;
        connect(server, FIRST + offset)?;
        Ok(opened()?[1] > before[1])
    };
    let first = queue_of(0)?;
    let mut flips = [false; BITS as usize];
    for (bit, flips) in flips.iter_mut().enumerate() {
        *flips = queue_of(1 << bit)? != first;
    }
    let predicted = |offset: u16| {
        let set = flips.iter().enumerate().filter(|&(bit, flips)| *flips && offset >> bit & 1 == 1);
        first != (set.count() % 2 == 1)
    };
    for offset in CHECKED {
        if queue_of(offset)? != predicted(offset) {
            return Err(Failure::System("cannot predict the queues of ports".to_owned()));
        }
    }
    let others = (0..1 << BITS).filter(|&offset| predicted(offset));
    let reserved: Vec<String> = others.map(|offset| (FIRST + offset).to_string()).collect();
    set(server, "ip_local_port_range", &format!("{FIRST} {}", FIRST + ((1 << BITS) - 1)))?;
    set(server, "ip_local_reserved_ports", &reserved.join(","))
}

/// Opens and closes a connection from a port.
fn connect(server: &LiveServer, port: u16) -> Result<(), Failure> {
    let mut curl = command_in_namespace(server.client_namespace(), "curl");
    curl.args(["--silent", "--show-error", "--max-time", "10", "--output", "/dev/null"]);
    curl.args(["--local-port", &port.to_string(), &format!("http://{}/close", OUTBOARD.server)]);
    output(&mut curl).map(drop)
}

/// Sets a parameter of the client's kernel.
fn set(server: &LiveServer, name: &str, value: &str) -> Result<(), Failure> {
    let mut shell = command_in_namespace(server.client_namespace(), "sh");
    let script = format!("echo '{value}' > /proc/sys/net/ipv4/{name}");
    output(shell.args(["-c", &script])).map(drop)
}

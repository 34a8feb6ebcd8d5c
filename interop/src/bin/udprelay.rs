//! UDP relay for `outboard-lab bench quic-relay`: connects one client and one server by a link with
//! delay, loss, reordering and a bottleneck ([`interop::RelayLink`]).
//!
//! `udprelay SERVER:PORT [NAME=NUMBER]..` prints the port on the loopback interface at which it
//! expects the client; the last sender is the client. Numbers: `delay_us` (in each direction), and
//! for datagrams from the server `loss_ppm`, `late_ppm`, `late_us`, `rate` (bytes per second),
//! `queue` (bytes), `seed`. At the end of its standard input it prints the counters of the server's
//! datagrams.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use base::{Duration, Instant};
use interop::quic::Failure;
use interop::{RelayLink, RelayLinkConfig};
use io::clock::MonotonicClock;
use io::notify::Poller;

/// Buffer size, larger than any datagram.
const DATAGRAM_BYTES: usize = 65_536;
/// Requested size of socket buffers in bytes, for the time during which the relay waits for a core.
/// The kernel may limit it.
const SOCKET_BYTES: usize = 4 << 20;
/// Datagrams received from one socket before the other one's turn.
const DATAGRAMS_PER_TURN: usize = 64;

fn config(args: &[String]) -> Result<(RelayLinkConfig, u64), Failure> {
    let (mut link, mut seed) = (RelayLinkConfig::default(), 1);
    for arg in args {
        let (name, number) = arg.split_once('=').ok_or("NAME=NUMBER")?;
        let number: u64 = number.parse()?;
        match name {
            "delay_us" => link.delay = Duration::from_micros(number),
            "loss_ppm" => link.loss_ppm = number,
            "late_ppm" => link.late_ppm = number,
            "late_us" => link.late = Duration::from_micros(number),
            "rate" => link.rate = number,
            "queue" => link.queue = number,
            "seed" => seed = number,
            _ => return Err(format!("{name} is none of its numbers").into()),
        }
    }
    Ok((link, seed))
}

fn bind(addr: Ipv4Addr) -> Result<UdpSocket, Failure> {
    let socket = UdpSocket::bind((addr, 0))?;
    socket.set_nonblocking(true)?;
    let options = socket2::SockRef::from(&socket);
    options.set_recv_buffer_size(SOCKET_BYTES)?;
    options.set_send_buffer_size(SOCKET_BYTES)?;
    Ok(socket)
}

/// Moves the datagrams that a socket has received into a link. Returns the last sender.
fn receive(
    socket: &UdpSocket,
    link: &mut RelayLink,
    clock: &MonotonicClock,
    buffer: &mut [u8],
) -> Result<Option<SocketAddr>, Failure> {
    let mut last = None;
    for _ in 0..DATAGRAMS_PER_TURN {
        match socket.recv_from(buffer) {
            Ok((len, from)) => {
                last = Some(from);
                link.push(clock.now(), &buffer[..len]);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            // An ICMP error: an end is gone, and the datagram with it.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(last)
}

fn deliver(link: &mut RelayLink, now: Instant, socket: &UdpSocket, to: SocketAddr) {
    while let Some(datagram) = link.pop(now) {
        // The kernel's queue is full, or no socket receives: a loss like any other.
        let _ = socket.send_to(&datagram, to);
    }
}

fn relay(server: SocketAddr, (config, seed): (RelayLinkConfig, u64)) -> Result<(), Failure> {
    let (near, far) = (bind(Ipv4Addr::LOCALHOST)?, bind(Ipv4Addr::UNSPECIFIED)?);
    println!("{}", near.local_addr()?.port());
    let clock = MonotonicClock::new();
    let delay = RelayLinkConfig { delay: config.delay, ..RelayLinkConfig::default() };
    let (mut up, mut down) = (RelayLink::new(delay, 0), RelayLink::new(config, seed));
    let mut poller = Poller::new();
    let [_, _, input] = [near.as_raw_fd(), far.as_raw_fd(), 0].map(|fd| poller.add(fd));
    let (mut client, mut buffer) = (None, vec![0; DATAGRAM_BYTES]);
    loop {
        let next = [&up, &down].into_iter().filter_map(RelayLink::poll_timeout).min();
        poller.wait(next.map(|at| at.since(clock.now())))?;
        if poller.is_ready(input) {
            println!("{:?}", down.counts());
            return Ok(());
        }
        client = receive(&near, &mut up, &clock, &mut buffer)?.or(client);
        receive(&far, &mut down, &clock, &mut buffer)?;
        deliver(&mut up, clock.now(), &far, server);
        if let Some(client) = client {
            deliver(&mut down, clock.now(), &near, client);
        }
    }
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, numbers @ ..] = &args[..] else { return Err("usage".into()) };
    relay(server.parse()?, config(numbers)?)
}

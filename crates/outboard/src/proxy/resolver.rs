//! Queries a DNS server over UDP, and over TCP if the answer is truncated (RFC 7766).
//!
//! Called by [`super::names`], in a thread that may block. Uses blocking sockets of the kernel, not
//! our stack, and so is not part of the sans-IO `apps`, which has the message formats
//! ([`apps::dns`]). Only messages from the queried server are read (RFC 5452).

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use apps::dns::{DnsAnswer, DnsReply, RecordType, encode_query, parse_reply};
use io::clock::{self, MonotonicClock};

/// Time for which an answer over UDP is awaited, and time-out of each receive and send over TCP.
const TIMEOUT: Duration = Duration::from_millis(TIMEOUT_MS);
const TIMEOUT_MS: u64 = 2000;
/// Longest answer over UDP. We do not offer more (no EDNS).
const UDP_BYTES_MAX: usize = 512;

/// Returns the system's first DNS server.
///
/// # Errors
/// Fails if none is configured.
pub(super) fn system_server() -> Result<SocketAddr, String> {
    let path = "/etc/resolv.conf";
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {path}: {e}"))?;
    let mut servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addr = servers.find_map(|rest| rest.trim().parse::<IpAddr>().ok());
    let addr =
        addr.ok_or_else(|| format!("no nameserver in {path}; specify one with --resolver"))?;
    Ok(SocketAddr::new(addr, 53))
}

/// Queries a server, with one retry.
///
/// # Errors
/// Returns the reason for which there is no answer.
pub(super) fn query_server(
    server: SocketAddr,
    name: &str,
    kind: RecordType,
) -> Result<DnsAnswer, String> {
    let mut failed = String::new();
    for _ in 0..2 {
        match query_server_once(server, name, kind) {
            Ok(answer) => return Ok(answer),
            Err(error) => failed = error,
        }
    }
    Err(format!("{name}: {server}: {failed}"))
}

fn query_server_once(
    server: SocketAddr,
    name: &str,
    kind: RecordType,
) -> Result<DnsAnswer, String> {
    let io = |e: std::io::Error| e.to_string();
    let [a, b, ..] = clock::entropy().to_le_bytes();
    let id = u16::from_le_bytes([a, b]);
    let query = encode_query(id, name, kind)?;
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).map_err(io)?;
    // The kernel drops datagrams from other addresses from now on.
    socket.connect(server).map_err(io)?;
    socket.send(&query).map_err(io)?;
    let clock = MonotonicClock::new();
    let deadline = clock.now() + base::Duration::from_millis(TIMEOUT_MS);
    let mut buffer = [0; UDP_BYTES_MAX];
    loop {
        // Foreign answers do not extend the wait. A time-out of zero would mean none.
        let left = Duration::from_millis(deadline.since(clock.now()).as_millis().max(1));
        socket.set_read_timeout(Some(left)).map_err(io)?;
        let len = socket.recv(&mut buffer).map_err(io)?;
        let bytes = buffer.get(..len).unwrap_or_default();
        match parse_reply(bytes, id, name, kind) {
            DnsReply::Answer(answer) => return Ok(answer),
            DnsReply::Truncated => return query_server_by_tcp(server, &query, id, name, kind),
            DnsReply::Failed(why) => return Err(why),
            // Ignored: a forged answer must not end the wait for the right one.
            DnsReply::Foreign => {}
        }
    }
}

/// The same over TCP, with a length prefix (RFC 7766).
fn query_server_by_tcp(
    server: SocketAddr,
    query: &[u8],
    id: u16,
    name: &str,
    kind: RecordType,
) -> Result<DnsAnswer, String> {
    let io = |e: std::io::Error| e.to_string();
    let mut stream = TcpStream::connect_timeout(&server, TIMEOUT).map_err(io)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(io)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(io)?;
    let len = u16::try_from(query.len()).map_err(|e| e.to_string())?;
    stream.write_all(&[&len.to_be_bytes()[..], query].concat()).map_err(io)?;
    let mut len = [0; 2];
    stream.read_exact(&mut len).map_err(io)?;
    let mut bytes = vec![0; u16::from_be_bytes(len).into()];
    stream.read_exact(&mut bytes).map_err(io)?;
    match parse_reply(&bytes, id, name, kind) {
        DnsReply::Answer(answer) => Ok(answer),
        DnsReply::Failed(why) => Err(why),
        DnsReply::Truncated | DnsReply::Foreign => Err("invalid answer over TCP".to_owned()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use apps::dns::DnsRecord;
    use simple_dns::rdata::{A, RData, SRV};
    use simple_dns::{CLASS, Name, Packet, QTYPE, ResourceRecord, TYPE};
    use std::net::TcpListener;

    fn name(text: &str) -> Name<'_> {
        Name::new(text).unwrap()
    }

    fn record<'a>(owner: &'a str, ttl: u32, data: RData<'a>) -> ResourceRecord<'a> {
        ResourceRecord::new(name(owner), CLASS::IN, ttl, data)
    }

    fn a(last: u8) -> RData<'static> {
        RData::A(A { address: Ipv4Addr::new(10, 0, 0, last).into() })
    }

    fn reply(query: &[u8], answers: Vec<ResourceRecord<'_>>) -> Vec<u8> {
        let mut packet = Packet::parse(query).unwrap().into_reply();
        packet.answers = answers;
        packet.build_bytes_vec_compressed().unwrap()
    }

    fn addr(last: u8) -> DnsRecord {
        DnsRecord::Addr([10, 0, 0, last].into())
    }

    /// Starts a server that answers each query by `answer`. Replies above 512 bytes are truncated,
    /// and repeated over TCP. It ends with the test process.
    pub(crate) fn server(answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static) -> SocketAddr {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let addr = udp.local_addr().unwrap();
        let tcp = TcpListener::bind(addr).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((len, from)) = udp.recv_from(&mut buffer) {
                let Some(mut reply) = answer(&buffer[..len]) else { continue };
                let cut = reply.len() > 512;
                if cut {
                    reply[2] |= 2; // TC
                    reply.truncate(12);
                    reply.extend_from_slice(&buffer[12..len]);
                    reply[6..12].fill(0);
                }
                udp.send_to(&reply, from).unwrap();
                if cut {
                    let (mut stream, _) = tcp.accept().unwrap();
                    let mut query = vec![0; len + 2];
                    stream.read_exact(&mut query).unwrap();
                    let reply = answer(&query[2..]).unwrap();
                    let len = u16::try_from(reply.len()).unwrap().to_be_bytes();
                    stream.write_all(&[&len[..], &reply].concat()).unwrap();
                }
            }
        });
        addr
    }

    /// Like [`server`], with targets for `_http._tcp.app.example`: priority, weight and last byte
    /// of the address 10.0.0.x, at port 8080.
    pub(crate) fn services_of(targets: &'static [(u16, u16, u8)]) -> SocketAddr {
        server(move |query| {
            let packet = Packet::parse(query).unwrap();
            let question = &packet.questions[0];
            let owner = question.qname.to_string();
            let host = |&(.., n): &(u16, u16, u8)| format!("t{n}.example");
            let hosts: Vec<String> = targets.iter().map(host).collect();
            let mut answers = Vec::new();
            for (&(priority, weight, n), target) in targets.iter().zip(&hosts) {
                let data = match question.qtype {
                    QTYPE::TYPE(TYPE::SRV) => {
                        RData::SRV(SRV { priority, weight, port: 8080, target: name(target) })
                    }
                    QTYPE::TYPE(TYPE::A) if *target == owner => a(n),
                    _ => continue,
                };
                answers.push(record(&owner, 60, data));
            }
            Some(reply(query, answers))
        })
    }

    /// Like [`server`], with these addresses (10.0.0.x) for `app.example`, and no other name.
    pub(crate) fn server_of(addrs: impl Fn() -> (Vec<u8>, u32) + Send + 'static) -> SocketAddr {
        server(move |query| {
            let packet = Packet::parse(query).unwrap();
            let question = &packet.questions[0];
            let (addrs, ttl) = addrs();
            let known = question.qname.to_string() == "app.example";
            let is_a = question.qtype == QTYPE::TYPE(TYPE::A);
            let addrs = addrs.into_iter().filter(|_| known && is_a);
            Some(reply(query, addrs.map(|n| record("app.example", ttl, a(n))).collect()))
        })
    }

    #[test]
    fn addresses_over_udp_and_tcp() {
        let few = server_of(|| (vec![1, 2], 30));
        let answer = query_server(few, "app.example", RecordType::A).unwrap();
        assert_eq!(answer, DnsAnswer { records: vec![addr(1), addr(2)], ttl_s: 30 });
        let nothing = query_server(few, "app.example", RecordType::Aaaa).unwrap();
        assert_eq!(nothing, DnsAnswer::default());
        let many = server_of(|| ((1..=100).collect(), 5));
        assert_eq!(query_server(many, "app.example", RecordType::A).unwrap().records.len(), 100);
    }

    #[test]
    fn a_forged_answer_does_no_harm() {
        let server = server(|query| {
            let mut forged = reply(query, vec![record("a.example", 60, a(66))]);
            forged[0] ^= 1;
            Some(forged)
        });
        assert!(query_server_once(server, "a.example", RecordType::A).is_err());
    }
}

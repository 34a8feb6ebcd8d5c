//! Questions to a name server: A, AAAA and SRV over UDP, and over TCP where an answer is cut (RFC
//! 1035, RFC 2782, RFC 7766).
//!
//! Called by [`super::names`], in a thread that may wait. The kernel's network is used, not ours.
//! An answer counts only if it comes from the server that was asked, with the number and the
//! question that it was asked (RFC 5452).

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use io::clock;
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};

/// How long a server may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest answer over UDP: nobody is told that we could take more.
const UDP_BYTES_MAX: usize = 512;
/// Aliases that are followed in an answer.
const ALIASES_MAX: usize = 8;
/// Addresses that are taken of one answer.
const RECORDS_MAX: usize = 256;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    A,
    Aaaa,
    Srv,
}

/// One record of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Addr(IpAddr),
    Service { priority: u16, weight: u16, target: String, port: u16 },
}

/// Records, and for how many seconds they hold; none at all where the name has none.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Answer {
    pub(super) records: Vec<Record>,
    pub(super) ttl_s: u32,
}

/// The first name server of the system.
///
/// # Errors
/// Where it has none.
pub(super) fn system_server() -> Result<SocketAddr, String> {
    let path = "/etc/resolv.conf";
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {path}: {e}"))?;
    let mut servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addr = servers.find_map(|rest| rest.trim().parse::<IpAddr>().ok());
    let addr = addr.ok_or_else(|| format!("{path} names no server: name one with --resolver"))?;
    Ok(SocketAddr::new(addr, 53))
}

/// Asks a server; twice, where nothing comes the first time.
///
/// # Errors
/// Why there is no answer.
pub(super) fn ask(server: SocketAddr, name: &str, kind: Kind) -> Result<Answer, String> {
    let mut failed = String::new();
    for _ in 0..2 {
        match ask_once(server, name, kind) {
            Ok(answer) => return Ok(answer),
            Err(error) => failed = error,
        }
    }
    Err(format!("{name}: {server}: {failed}"))
}

fn ask_once(server: SocketAddr, name: &str, kind: Kind) -> Result<Answer, String> {
    let io = |e: std::io::Error| e.to_string();
    let [a, b, ..] = clock::entropy().to_le_bytes();
    let id = u16::from_le_bytes([a, b]);
    let query = query(id, name, kind)?;
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).map_err(io)?;
    // Only what comes from the server is received from now on.
    socket.connect(server).map_err(io)?;
    socket.set_read_timeout(Some(TIMEOUT)).map_err(io)?;
    socket.send(&query).map_err(io)?;
    let mut buffer = [0; UDP_BYTES_MAX];
    loop {
        let len = socket.recv(&mut buffer).map_err(io)?;
        let bytes = buffer.get(..len).unwrap_or_default();
        match read(bytes, id, name, kind) {
            Reply::Answer(answer) => return Ok(answer),
            Reply::Cut => return ask_by_tcp(server, &query, id, name, kind),
            Reply::Failed(why) => return Err(why),
            // Not ours: whoever sent it may not make us give up.
            Reply::Foreign => {}
        }
    }
}

/// RFC 7766: the same, with its length before it.
fn ask_by_tcp(
    server: SocketAddr,
    query: &[u8],
    id: u16,
    name: &str,
    kind: Kind,
) -> Result<Answer, String> {
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
    match read(&bytes, id, name, kind) {
        Reply::Answer(answer) => Ok(answer),
        Reply::Failed(why) => Err(why),
        Reply::Cut | Reply::Foreign => Err("its answer over TCP is none".to_owned()),
    }
}

fn query(id: u16, name: &str, kind: Kind) -> Result<Vec<u8>, String> {
    let name = Name::new(name).map_err(|e| e.to_string())?;
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let question = Question::new(name, QTYPE::TYPE(kind.of()), QCLASS::CLASS(CLASS::IN), false);
    packet.questions.push(question);
    packet.build_bytes_vec().map_err(|e| e.to_string())
}

impl Kind {
    const fn of(self) -> TYPE {
        match self {
            Self::A => TYPE::A,
            Self::Aaaa => TYPE::AAAA,
            Self::Srv => TYPE::SRV,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Answer(Answer),
    /// Too long for UDP.
    Cut,
    /// The server will not or cannot.
    Failed(String),
    /// No answer to our question.
    Foreign,
}

fn read(bytes: &[u8], id: u16, name: &str, kind: Kind) -> Reply {
    let Ok(packet) = Packet::parse(bytes) else { return Reply::Foreign };
    let asked = |q: &Question<'_>| {
        q.qtype == QTYPE::TYPE(kind.of()) && q.qname.to_string().eq_ignore_ascii_case(name)
    };
    let ours = packet.id() == id
        && packet.has_flags(PacketFlag::RESPONSE)
        && matches!(&packet.questions[..], [question] if asked(question));
    if !ours {
        return Reply::Foreign;
    }
    if packet.has_flags(PacketFlag::TRUNCATION) {
        return Reply::Cut;
    }
    match packet.rcode() {
        RCODE::NoError => Reply::Answer(collect(&packet, name)),
        // The name is known not to be: that is an answer (RFC 2308).
        RCODE::NameError => Reply::Answer(Answer::default()),
        other => Reply::Failed(format!("{other:?}")),
    }
}

/// Takes the records of the name, and of what it is an alias of.
fn collect(packet: &Packet<'_>, name: &str) -> Answer {
    let mut owner = name.to_owned();
    let mut ttl_s = u32::MAX;
    for _ in 0..ALIASES_MAX {
        let alias = packet.answers.iter().find_map(|record| match &record.rdata {
            RData::CNAME(to) if record.name.to_string().eq_ignore_ascii_case(&owner) => {
                Some((to.0.to_string(), record.ttl))
            }
            _ => None,
        });
        let Some((to, ttl)) = alias else { break };
        owner = to;
        ttl_s = ttl_s.min(ttl);
    }
    let mut records = Vec::new();
    let of_owner =
        packet.answers.iter().filter(|r| r.name.to_string().eq_ignore_ascii_case(&owner));
    for record in of_owner.take(RECORDS_MAX) {
        let taken = match &record.rdata {
            RData::A(a) => Record::Addr(Ipv4Addr::from(a.address).into()),
            RData::AAAA(a) => Record::Addr(Ipv6Addr::from(a.address).into()),
            RData::SRV(srv) => Record::Service {
                priority: srv.priority,
                weight: srv.weight,
                target: srv.target.to_string().to_ascii_lowercase(),
                port: srv.port,
            },
            _ => continue,
        };
        ttl_s = ttl_s.min(record.ttl);
        records.push(taken);
    }
    if records.is_empty() { Answer::default() } else { Answer { records, ttl_s } }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::{A, AAAA, CNAME, SRV};
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

    fn addr(last: u8) -> Record {
        Record::Addr([10, 0, 0, last].into())
    }

    /// A server that answers as `answer` says, a message each; 512 bytes and more are cut, and the
    /// same is told over TCP. It ends with the test.
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

    /// As [`server`], with targets for `_http._tcp.app.example`, each a priority, a weight and an
    /// address (10.0.0.x) at port 8080.
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

    /// As [`server`], with these addresses for `app.example` (10.0.0.x) and no other name.
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
        let answer = ask(few, "app.example", Kind::A).unwrap();
        assert_eq!(answer, Answer { records: vec![addr(1), addr(2)], ttl_s: 30 });
        let nothing = ask(few, "app.example", Kind::Aaaa).unwrap();
        assert_eq!(nothing, Answer::default());
        let many = server_of(|| ((1..=100).collect(), 5));
        assert_eq!(ask(many, "app.example", Kind::A).unwrap().records.len(), 100);
    }

    #[test]
    fn aliases_and_services() {
        let query = query(7, "a.example", Kind::Aaaa).unwrap();
        let alias = RData::CNAME(CNAME(name("b.example")));
        let six = RData::AAAA(AAAA { address: 1 });
        let answers = vec![
            record("b.example", 60, six),
            record("c.example", 1, a(9)),
            record("A.example", 20, alias),
        ];
        let bytes = reply(&query, answers);
        let expected =
            Answer { records: vec![Record::Addr(Ipv6Addr::LOCALHOST.into())], ttl_s: 20 };
        assert_eq!(read(&bytes, 7, "a.example", Kind::Aaaa), Reply::Answer(expected));
        let query = super::query(7, "_x._tcp.a", Kind::Srv).unwrap();
        let srv = SRV { priority: 1, weight: 2, port: 3, target: name("T.a") };
        let bytes = reply(&query, vec![record("_x._tcp.a", 9, RData::SRV(srv))]);
        let target = Record::Service { priority: 1, weight: 2, target: "t.a".to_owned(), port: 3 };
        let expected = Answer { records: vec![target], ttl_s: 9 };
        assert_eq!(read(&bytes, 7, "_x._tcp.a", Kind::Srv), Reply::Answer(expected));
    }

    #[test]
    fn what_does_not_count() {
        let query = query(7, "a.example", Kind::A).unwrap();
        let good = reply(&query, vec![record("a.example", 60, a(1))]);
        assert!(matches!(read(&good, 7, "a.example", Kind::A), Reply::Answer(_)));
        for (bytes, id, name, kind) in [
            (&good[..], 8, "a.example", Kind::A),
            (&good, 7, "b.example", Kind::A),
            (&good, 7, "a.example", Kind::Aaaa),
            (&query, 7, "a.example", Kind::A),
            (&good[..20], 7, "a.example", Kind::A),
            (b"", 7, "a.example", Kind::A),
        ] {
            assert_eq!(read(bytes, id, name, kind), Reply::Foreign);
        }
        let mut refused = good.clone();
        refused[3] |= 5;
        assert!(matches!(read(&refused, 7, "a.example", Kind::A), Reply::Failed(_)));
        let mut unknown = good;
        unknown[3] |= 3;
        assert_eq!(read(&unknown, 7, "a.example", Kind::A), Reply::Answer(Answer::default()));
        // A forged answer first does no harm.
        let server = server(|query| {
            let mut forged = reply(query, vec![record("a.example", 60, a(66))]);
            forged[0] ^= 1;
            Some(forged)
        });
        assert!(ask_once(server, "a.example", Kind::A).is_err());
    }
}

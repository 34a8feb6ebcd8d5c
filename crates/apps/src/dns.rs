//! DNS messages: queries for A, AAAA and SRV records, and replies (RFC 1035, RFC 2782).
//!
//! `outboard` sends and receives them in a thread of its own, over the kernel's sockets. A reply
//! counts only if its identifier and question are those of the query (RFC 5452). The caller must
//! check that it comes from the server that was asked.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};

/// Maximum length of a chain of aliases in an answer.
const ALIASES_MAX: usize = 8;
/// Maximum number of records that are taken from an answer.
const RECORDS_MAX: usize = 256;

/// Type of the requested records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordType {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Hosts of a service.
    Srv,
}

/// A record of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsRecord {
    /// An address of the name.
    Addr(IpAddr),
    /// A host of a service (RFC 2782).
    Service {
        /// Hosts with the lowest value are used first.
        priority: u16,
        /// Share of the load among hosts of the same priority.
        weight: u16,
        /// Name of the host.
        target: String,
        /// Port of the service on that host.
        port: u16,
    },
}

/// The records of a name; empty if it has none, or does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DnsAnswer {
    /// The records.
    pub records: Vec<DnsRecord>,
    /// Time in seconds for which the records are valid.
    pub ttl_s: u32,
}

/// Encodes a query with identifier `id` for the records of a name.
///
/// # Errors
/// Fails if `name` is not a valid domain name.
pub fn encode_query(id: u16, name: &str, kind: RecordType) -> Result<Vec<u8>, String> {
    let name = Name::new(name).map_err(|e| e.to_string())?;
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let question = Question::new(name, QTYPE::TYPE(kind.of()), QCLASS::CLASS(CLASS::IN), false);
    packet.questions.push(question);
    packet.build_bytes_vec().map_err(|e| e.to_string())
}

impl RecordType {
    const fn of(self) -> TYPE {
        match self {
            Self::A => TYPE::A,
            Self::Aaaa => TYPE::AAAA,
            Self::Srv => TYPE::SRV,
        }
    }
}

/// A received message, interpreted as the reply to a query.
#[derive(Debug, PartialEq, Eq)]
pub enum DnsReply {
    /// The records of the name.
    Answer(DnsAnswer),
    /// The answer is too long for UDP: repeat the query over TCP (RFC 7766).
    Truncated,
    /// The server cannot answer; its response code.
    Failed(String),
    /// Not a reply to the query (RFC 5452): wait for the next message.
    Foreign,
}

/// Parses a message as the reply to the query with this identifier, name and type.
#[must_use]
pub fn parse_reply(bytes: &[u8], id: u16, name: &str, kind: RecordType) -> DnsReply {
    let Ok(packet) = Packet::parse(bytes) else { return DnsReply::Foreign };
    let asked = |q: &Question<'_>| {
        q.qtype == QTYPE::TYPE(kind.of()) && q.qname.to_string().eq_ignore_ascii_case(name)
    };
    let ours = packet.id() == id
        && packet.has_flags(PacketFlag::RESPONSE)
        && matches!(&packet.questions[..], [question] if asked(question));
    if !ours {
        return DnsReply::Foreign;
    }
    if packet.has_flags(PacketFlag::TRUNCATION) {
        return DnsReply::Truncated;
    }
    match packet.rcode() {
        RCODE::NoError => DnsReply::Answer(collect(&packet, name)),
        // The name does not exist: that is an answer (RFC 2308).
        RCODE::NameError => DnsReply::Answer(DnsAnswer::default()),
        other => DnsReply::Failed(format!("{other:?}")),
    }
}

/// Collects the records of the name, and of the name that it is an alias of.
fn collect(packet: &Packet<'_>, name: &str) -> DnsAnswer {
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
            RData::A(a) => DnsRecord::Addr(Ipv4Addr::from(a.address).into()),
            RData::AAAA(a) => DnsRecord::Addr(Ipv6Addr::from(a.address).into()),
            RData::SRV(srv) => DnsRecord::Service {
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
    if records.is_empty() { DnsAnswer::default() } else { DnsAnswer { records, ttl_s } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::{A, AAAA, CNAME, SRV};

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

    #[test]
    fn aliases_and_services() {
        let query = encode_query(7, "a.example", RecordType::Aaaa).unwrap();
        let alias = RData::CNAME(CNAME(name("b.example")));
        let six = RData::AAAA(AAAA { address: 1 });
        let answers = vec![
            record("b.example", 60, six),
            record("c.example", 1, a(9)),
            record("A.example", 20, alias),
        ];
        let bytes = reply(&query, answers);
        let expected =
            DnsAnswer { records: vec![DnsRecord::Addr(Ipv6Addr::LOCALHOST.into())], ttl_s: 20 };
        assert_eq!(
            parse_reply(&bytes, 7, "a.example", RecordType::Aaaa),
            DnsReply::Answer(expected)
        );
        let query = encode_query(7, "_x._tcp.a", RecordType::Srv).unwrap();
        let srv = SRV { priority: 1, weight: 2, port: 3, target: name("T.a") };
        let bytes = reply(&query, vec![record("_x._tcp.a", 9, RData::SRV(srv))]);
        let target =
            DnsRecord::Service { priority: 1, weight: 2, target: "t.a".to_owned(), port: 3 };
        let expected = DnsAnswer { records: vec![target], ttl_s: 9 };
        assert_eq!(
            parse_reply(&bytes, 7, "_x._tcp.a", RecordType::Srv),
            DnsReply::Answer(expected)
        );
    }

    #[test]
    fn invalid_replies_are_ignored() {
        let query = encode_query(7, "a.example", RecordType::A).unwrap();
        let good = reply(&query, vec![record("a.example", 60, a(1))]);
        assert!(matches!(parse_reply(&good, 7, "a.example", RecordType::A), DnsReply::Answer(_)));
        for (bytes, id, name, kind) in [
            (&good[..], 8, "a.example", RecordType::A),
            (&good, 7, "b.example", RecordType::A),
            (&good, 7, "a.example", RecordType::Aaaa),
            (&query, 7, "a.example", RecordType::A),
            (&good[..20], 7, "a.example", RecordType::A),
            (b"", 7, "a.example", RecordType::A),
        ] {
            assert_eq!(parse_reply(bytes, id, name, kind), DnsReply::Foreign);
        }
        let mut refused = good.clone();
        refused[3] |= 5;
        assert!(matches!(
            parse_reply(&refused, 7, "a.example", RecordType::A),
            DnsReply::Failed(_)
        ));
        let mut unknown = good;
        unknown[3] |= 3;
        assert_eq!(
            parse_reply(&unknown, 7, "a.example", RecordType::A),
            DnsReply::Answer(DnsAnswer::default())
        );
    }
}

//! Fuzzes the parsers of crate `wire`: none of them panics, and a parsed value is equal after it
//! was emitted and parsed again.

use core::fmt::Debug;

use wire::frame::{self, Frame, IpPacket, protocol};
use wire::nvme::command::{
    Blocks, Command, Completion, DatasetManagement, Features, GetLogPage, Identify, Range,
};
use wire::nvme::fabrics::{
    Capabilities, Configuration, ConnectData, ConnectResult, ControllerStatus, Fabrics,
};
use wire::nvme::identify::{self, Controller, ControllerNvm, Descriptor, Independent, Namespace};
use wire::nvme::log::{DiscoveryEntry, DiscoveryHeader, ErrorEntry, Health};
use wire::nvme::nqn::Nqn;
use wire::nvme::pdu::{Common, HEADER_BYTES_MAX, Header, Rules, common};
use wire::nvme::status::Status;
use wire::tcp::Segment;
use wire::tls::{Framing, Version};
use wire::{ETHERNET_BYTES, quic};

use crate::input::Input;

/// Runs this fuzz target. The first byte of `data` selects the parser.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.byte() % 8 {
        0 => frame(input.0),
        1 => tls(&mut input),
        2 => quic(&mut input),
        3 => pdu(&mut input),
        4 => command(&mut input),
        5 => fabrics(&mut input),
        6 => pages(&mut input),
        _ => logs(&mut input),
    }
}

/// Asserts that `value` and its round trip `again` are equal.
fn same<T: Debug + PartialEq>(value: T, again: T) {
    assert_eq!(value, again, "written and read again");
}

fn frame(bytes: &[u8]) {
    let Ok(Frame::Ip(packet)) = frame::parse(bytes) else { return };
    let IpPacket { l3, l4, end, .. } = packet;
    assert!(ETHERNET_BYTES <= l3 && l3 < l4 && l4 <= end && end <= bytes.len());
    if packet.protocol != protocol::TCP {
        return;
    }
    let Ok((segment, len)) = Segment::parse(&bytes[l4..end]) else { return };
    assert!(len <= end - l4);
    let mut header = vec![0; segment.header_len()];
    let _ = segment.emit(&mut header);
    same(Ok((segment, header.len())), Segment::parse(&header));
}

fn tls(input: &mut Input<'_>) {
    let flags = input.byte();
    let version = if flags & 1 == 0 { Version::Tls12 } else { Version::Tls13 };
    let framing = Framing { version, explicit: flags & 2 != 0 };
    while !input.is_empty() {
        let Some(header) = framing.parse(input.array()) else { continue };
        assert!(usize::from(header.len) + wire::tls::HEADER_BYTES >= framing.overhead());
    }
}

fn quic(input: &mut Input<'_>) {
    let id_len = usize::from(input.byte() % 21);
    if let Some(short) = quic::Short::parse(input.0, id_len) {
        assert_eq!(short.id.len(), id_len);
        assert!(quic::is_short(short.first) && quic::number_len(short.first) <= 4);
    }
    if let Some((value, rest)) = quic::read_varint(input.0) {
        assert!(quic::varint_len(value).is_some_and(|len| len <= input.0.len() - rest.len()));
    }
    let (near, len) = (u64::from(input.u32()), usize::from(input.byte() % 4) + 1);
    let number = quic::expand_number(near, input.u32(), len);
    assert!(number <= quic::NUMBER_MAX);
}

fn pdu(input: &mut Input<'_>) {
    let flags = input.byte();
    let (header_digest, data_digest) = (flags & 1 != 0, flags & 2 != 0);
    let rules = Rules { header_digest, data_digest, pda: flags >> 3, plen_max: 1 << 20 };
    let bytes: [u8; HEADER_BYTES_MAX] = input.array();
    let Some(first) = bytes.first_chunk() else { return };
    let Ok(read) = Common::parse(first, &rules) else {
        assert!(common(&bytes, &rules).is_none(), "what is no header has no pattern");
        return;
    };
    assert!(read.data().end <= read.plen && read.header_bytes <= read.plen);
    let Ok(header) = Header::parse(&read, &bytes) else { return };
    let mut out = [0; HEADER_BYTES_MAX];
    let Some(wrote) = header.write(read.data_len, &rules, &mut out) else { return };
    same(Ok(header), Header::parse(&wrote, &out));
    let Some(first) = out.first_chunk() else { return };
    same(Ok(wrote), Common::parse(first, &rules));
}

fn command(input: &mut Input<'_>) {
    let command = Command::parse(&input.array());
    same(command, Command::parse(&command.to_bytes()));
    let blank = Command::new(command.opcode, command.cid, command.nsid);
    let blocks = Blocks::of(&command);
    same(blocks, Blocks::of(&blocks.put(blank)));
    let identify = Identify::of(&command);
    same(identify, Identify::of(&identify.put(blank)));
    let (_, _) = (GetLogPage::of(&command), Features::of(&command));
    let dataset = DatasetManagement::of(&command);
    assert!(dataset.data_len() <= 256 * Range::BYTES);
    assert!(Range::parse_all(input.0).count() <= input.0.len() / Range::BYTES);
    let completion = Completion::parse(&input.array());
    same(completion, Completion::parse(&completion.to_bytes()));
}

fn fabrics(input: &mut Input<'_>) {
    let command = Command::parse(&input.array());
    if let Some(fabrics) = Fabrics::of(&command) {
        let again = fabrics.to_command(command.cid, command.sgl);
        same(Some(fabrics), Fabrics::of(&Command::parse(&again.to_bytes())));
    }
    let capabilities = Capabilities::from_value(u64::from_le_bytes(input.array()));
    same(capabilities, Capabilities::from_value(capabilities.to_value()));
    let configuration = Configuration::from_value(input.u32());
    same(configuration, Configuration::from_value(configuration.to_value()));
    let status = ControllerStatus::from_value(input.u32());
    same(status, ControllerStatus::from_value(status.to_value()));
    let result = ConnectResult::from_completion(input.u32(), Status::from_field(input.u16()));
    let (dword0, status) = result.to_completion();
    same(result, ConnectResult::from_completion(dword0, status));
    let data = ConnectData::parse(&input.array());
    same(data, ConnectData::parse(&data.to_bytes()));
}

fn pages(input: &mut Input<'_>) {
    let kind = input.byte();
    let (page, mut out) = (input.array(), [0; identify::BYTES]);
    match kind % 6 {
        0 => {
            let controller = Controller::parse(&page);
            controller.write(&mut out);
            same(controller, Controller::parse(&out));
        }
        1 => {
            let namespace = Namespace::parse(&page);
            namespace.write(&mut out);
            assert_eq!(namespace.format(), Namespace::parse(&out).format());
            same(namespace, Namespace::parse(&out));
        }
        2 => {
            let read = Independent::parse(&page);
            read.write(&mut out);
            same(read, Independent::parse(&out));
        }
        3 => {
            let read = ControllerNvm::parse(&page);
            read.write(&mut out);
            same(read, ControllerNvm::parse(&out));
        }
        4 => {
            let read: Vec<_> = Descriptor::parse_all(&page).collect();
            Descriptor::write_all(&read, &mut out);
            let again: Vec<_> = Descriptor::parse_all(&out).collect();
            same(read, again);
        }
        _ => {
            assert!(identify::namespaces(&page).count() <= 1024);
            assert!(identify::controllers(&page).count() <= 2047);
            assert!(identify::command_sets(&page).count() <= 512);
        }
    }
}

fn logs(input: &mut Input<'_>) {
    let kind = input.byte();
    match kind % 5 {
        0 => {
            let entry = ErrorEntry::parse(&input.array());
            same(entry, ErrorEntry::parse(&entry.to_bytes()));
        }
        1 => {
            let health = Health::parse(&input.array());
            same(health, Health::parse(&health.to_bytes()));
        }
        2 => {
            let header = DiscoveryHeader::parse(input.0);
            if let Some(header) = header {
                same(Some(header), DiscoveryHeader::parse(&header.to_bytes()));
            }
        }
        3 => {
            let entry = DiscoveryEntry::parse(&input.array());
            same(entry, DiscoveryEntry::parse(&entry.to_bytes()));
        }
        _ => {
            let Some(nqn) = Nqn::from_field(&input.array()) else { return };
            same(Some(nqn), Nqn::from_field(&nqn.to_field()));
            same(Some(nqn), Nqn::new(nqn.as_str()));
        }
    }
}

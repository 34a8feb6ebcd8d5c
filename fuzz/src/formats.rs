//! Fuzzes the parsers of crate `wire`: none of them panics, and a parsed value is equal after it
//! was emitted and parsed again.

use core::fmt::Debug;

use wire::frame::{self, IpPacket, ParsedFrame, protocol};
use wire::nvme::command::{
    DatasetManagement, DatasetRange, FeaturesCommand, GetLogPage, IdentifyCommand, NvmeBlockRange,
    NvmeCommand, NvmeCompletion,
};
use wire::nvme::fabrics::{
    ConnectData, ConnectResult, ControllerCapabilities, ControllerConfiguration, ControllerStatus,
    FabricsCommand,
};
use wire::nvme::identify::{
    self, IdentifyController, IdentifyControllerNvm, IdentifyNamespace, IndependentNamespace,
    NamespaceDescriptor,
};
use wire::nvme::log::{DiscoveryEntry, DiscoveryHeader, ErrorLogEntry, HealthLog};
use wire::nvme::nqn::Nqn;
use wire::nvme::pdu::{HEADER_BYTES_MAX, PduCommonHeader, PduHeader, PduRules, match_pdu_header};
use wire::nvme::status::NvmeStatus;
use wire::tcp::TcpHeader;
use wire::tls::{TlsFraming, TlsRecordVersion};
use wire::{ETHERNET_BYTES, quic};

use crate::input::FuzzInput;

/// Runs this fuzz target. The first byte of `data` selects the parser.
pub fn run(data: &[u8]) {
    let mut input = FuzzInput(data);
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
fn assert_round_trip<T: Debug + PartialEq>(value: T, again: T) {
    assert_eq!(value, again, "written and read again");
}

fn frame(bytes: &[u8]) {
    if let Ok(fragment) = wire::fragment::parse(bytes) {
        let (headers, payload) = (fragment.headers, fragment.payload);
        assert!(fragment.l3 < fragment.next_header_at && fragment.next_header_at < headers.end);
        assert!(headers.end <= payload.start && payload.end <= bytes.len());
    }
    let Ok(ParsedFrame::Ip(packet)) = frame::parse(bytes) else { return };
    let IpPacket { l3, l4, end, .. } = packet;
    assert!(ETHERNET_BYTES <= l3 && l3 < l4 && l4 <= end && end <= bytes.len());
    if packet.protocol != protocol::TCP {
        return;
    }
    let Ok((segment, len)) = TcpHeader::parse(&bytes[l4..end]) else { return };
    assert!(len <= end - l4);
    let mut header = vec![0; segment.header_len()];
    let _ = segment.emit(&mut header);
    assert_round_trip(Ok((segment, header.len())), TcpHeader::parse(&header));
}

fn tls(input: &mut FuzzInput<'_>) {
    let flags = input.byte();
    let version = if flags & 1 == 0 { TlsRecordVersion::Tls12 } else { TlsRecordVersion::Tls13 };
    let framing = TlsFraming { version, explicit_nonce: flags & 2 != 0 };
    while !input.is_empty() {
        let Some(header) = framing.parse(input.array()) else { continue };
        assert!(usize::from(header.len) + wire::tls::HEADER_BYTES >= framing.overhead());
    }
}

fn quic(input: &mut FuzzInput<'_>) {
    let id_len = usize::from(input.byte() % 21);
    if let Some(short) = quic::ShortHeaderPacket::parse(input.0, id_len) {
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

fn pdu(input: &mut FuzzInput<'_>) {
    let flags = input.byte();
    let (header_digest, data_digest) = (flags & 1 != 0, flags & 2 != 0);
    let rules = PduRules { header_digest, data_digest, pda: flags >> 3, plen_max: 1 << 20 };
    let bytes: [u8; HEADER_BYTES_MAX] = input.array();
    let Some(first) = bytes.first_chunk() else { return };
    let Ok(read) = PduCommonHeader::parse(first, &rules) else {
        assert!(match_pdu_header(&bytes, &rules).is_none(), "what is no header has no pattern");
        return;
    };
    assert!(read.data().end <= read.plen && read.header_bytes <= read.plen);
    let Ok(header) = PduHeader::parse(&read, &bytes) else { return };
    let mut out = [0; HEADER_BYTES_MAX];
    let Some(wrote) = header.write(read.data_len, &rules, &mut out) else { return };
    assert_round_trip(Ok(header), PduHeader::parse(&wrote, &out));
    let Some(first) = out.first_chunk() else { return };
    assert_round_trip(Ok(wrote), PduCommonHeader::parse(first, &rules));
}

fn command(input: &mut FuzzInput<'_>) {
    let command = NvmeCommand::parse(&input.array());
    assert_round_trip(command, NvmeCommand::parse(&command.to_bytes()));
    let blank = NvmeCommand::new(command.opcode, command.cid, command.nsid);
    let blocks = NvmeBlockRange::from_command(&command);
    assert_round_trip(blocks, NvmeBlockRange::from_command(&blocks.encode_into(blank)));
    let identify = IdentifyCommand::from_command(&command);
    assert_round_trip(identify, IdentifyCommand::from_command(&identify.encode_into(blank)));
    let (_, _) = (GetLogPage::from_command(&command), FeaturesCommand::from_command(&command));
    let dataset = DatasetManagement::from_command(&command);
    assert!(dataset.data_len() <= 256 * DatasetRange::BYTES);
    assert!(DatasetRange::parse_all(input.0).count() <= input.0.len() / DatasetRange::BYTES);
    let completion = NvmeCompletion::parse(&input.array());
    assert_round_trip(completion, NvmeCompletion::parse(&completion.to_bytes()));
}

fn fabrics(input: &mut FuzzInput<'_>) {
    let command = NvmeCommand::parse(&input.array());
    if let Some(fabrics) = FabricsCommand::from_command(&command) {
        let again = fabrics.to_command(command.cid, command.sgl);
        assert_round_trip(
            Some(fabrics),
            FabricsCommand::from_command(&NvmeCommand::parse(&again.to_bytes())),
        );
    }
    let capabilities = ControllerCapabilities::from_value(u64::from_le_bytes(input.array()));
    assert_round_trip(capabilities, ControllerCapabilities::from_value(capabilities.to_value()));
    let configuration = ControllerConfiguration::from_value(input.u32());
    assert_round_trip(configuration, ControllerConfiguration::from_value(configuration.to_value()));
    let status = ControllerStatus::from_value(input.u32());
    assert_round_trip(status, ControllerStatus::from_value(status.to_value()));
    let result = ConnectResult::from_completion(input.u32(), NvmeStatus::from_field(input.u16()));
    let (dword0, status) = result.to_completion();
    assert_round_trip(result, ConnectResult::from_completion(dword0, status));
    let data = ConnectData::parse(&input.array());
    assert_round_trip(data, ConnectData::parse(&data.to_bytes()));
}

fn pages(input: &mut FuzzInput<'_>) {
    let kind = input.byte();
    let (page, mut out) = (input.array(), [0; identify::BYTES]);
    match kind % 6 {
        0 => {
            let controller = IdentifyController::parse(&page);
            controller.write(&mut out);
            assert_round_trip(controller, IdentifyController::parse(&out));
        }
        1 => {
            let namespace = IdentifyNamespace::parse(&page);
            namespace.write(&mut out);
            assert_eq!(namespace.format(), IdentifyNamespace::parse(&out).format());
            assert_round_trip(namespace, IdentifyNamespace::parse(&out));
        }
        2 => {
            let read = IndependentNamespace::parse(&page);
            read.write(&mut out);
            assert_round_trip(read, IndependentNamespace::parse(&out));
        }
        3 => {
            let read = IdentifyControllerNvm::parse(&page);
            read.write(&mut out);
            assert_round_trip(read, IdentifyControllerNvm::parse(&out));
        }
        4 => {
            let read: Vec<_> = NamespaceDescriptor::parse_all(&page).collect();
            NamespaceDescriptor::write_all(&read, &mut out);
            let again: Vec<_> = NamespaceDescriptor::parse_all(&out).collect();
            assert_round_trip(read, again);
        }
        _ => {
            assert!(identify::namespaces(&page).count() <= 1024);
            assert!(identify::controllers(&page).count() <= 2047);
            assert!(identify::command_sets(&page).count() <= 512);
        }
    }
}

fn logs(input: &mut FuzzInput<'_>) {
    let kind = input.byte();
    match kind % 5 {
        0 => {
            let entry = ErrorLogEntry::parse(&input.array());
            assert_round_trip(entry, ErrorLogEntry::parse(&entry.to_bytes()));
        }
        1 => {
            let health = HealthLog::parse(&input.array());
            assert_round_trip(health, HealthLog::parse(&health.to_bytes()));
        }
        2 => {
            let header = DiscoveryHeader::parse(input.0);
            if let Some(header) = header {
                assert_round_trip(Some(header), DiscoveryHeader::parse(&header.to_bytes()));
            }
        }
        3 => {
            let entry = DiscoveryEntry::parse(&input.array());
            assert_round_trip(entry, DiscoveryEntry::parse(&entry.to_bytes()));
        }
        _ => {
            let Some(nqn) = Nqn::from_field(&input.array()) else { return };
            assert_round_trip(Some(nqn), Nqn::from_field(&nqn.to_field()));
            assert_round_trip(Some(nqn), Nqn::new(nqn.as_str()));
        }
    }
}

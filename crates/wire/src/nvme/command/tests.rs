//! Entries checked byte by byte, and round trips.

use super::*;
use proptest::prelude::*;

#[test]
fn a_read_as_linux_writes_it() {
    // Linux's `nvme_setup_rw`: 8 blocks from 0x1234 on in namespace 1, a null SGL with TCP's
    // length.
    let mut entry = [0; COMMAND_BYTES];
    entry[..8].copy_from_slice(&[0x02, 0x40, 0x11, 0x00, 1, 0, 0, 0]);
    entry[32..40].copy_from_slice(&[0, 0x10, 0, 0, 0, 0, 0, 0x5a]);
    entry[40..42].copy_from_slice(&[0x34, 0x12]);
    entry[48] = 7;
    let command = NvmeCommand::parse(&entry);
    assert_eq!((command.opcode, command.cid, command.nsid), (io::READ, 0x11, 1));
    assert_eq!(command.sgl, Sgl::Transport { len: 4096 });
    assert_eq!(NvmeBlockRange::from_command(&command), NvmeBlockRange::new(0x1234, 8));
    assert!(command.has_sgl() && !command.is_fused());
    assert_eq!(command.to_bytes(), entry);
    let built = NvmeCommand::new(io::READ, 0x11, 1).with_data(Sgl::Transport { len: 4096 });
    assert_eq!(NvmeBlockRange::new(0x1234, 8).encode_into(built), command);
    assert_eq!(DataDirection::of(io::READ), DataDirection::ToHost);
    assert_eq!(DataDirection::of(io::WRITE), DataDirection::ToController);
    assert_eq!(DataDirection::of(io::FLUSH), DataDirection::None);
}

#[test]
fn bits_of_dwords() {
    let mut entry = [0; COMMAND_BYTES];
    entry[48..52].copy_from_slice(&0xd600_0003_u32.to_le_bytes());
    let blocks = NvmeBlockRange::from_command(&NvmeCommand::parse(&entry));
    assert!(blocks.fua && blocks.limited_retry && blocks.deallocate);
    assert_eq!((blocks.count, blocks.protection), (4, 0x14));
    assert_eq!(NvmeBlockRange::new(u64::MAX, 1).end(), None);
    assert_eq!(NvmeBlockRange::new(8, 8).end(), Some(16));

    // Linux's `nvme_get_log`: 0x2000 bytes of the discovery log from 0x1_0000_0400 on.
    let mut entry = [0; COMMAND_BYTES];
    entry[40..56].copy_from_slice(&[0x70, 0x80, 0xff, 0x07, 0, 0, 0, 0, 0, 4, 0, 0, 1, 0, 0, 0]);
    let page = GetLogPage::from_command(&NvmeCommand::parse(&entry));
    let offset = 0x1_0000_0400;
    let same = GetLogPage { lid: 0x70, retain_event: true, len: 0x2000, offset, ..page };
    assert_eq!(page, same);
    let all = GetLogPage { len: 1 << 34, ..page }.encode_into(NvmeCommand::new(2, 0, 0));
    assert_eq!(GetLogPage::from_command(&all).len, 1 << 34);

    // Linux's `nvme_set_queue_count` for 4 queues.
    let set =
        FeaturesCommand::set(feature::NUMBER_OF_QUEUES, 0x0003_0003, NvmeCommand::new(9, 0, 0));
    let counts = QueueCounts::from_value(FeaturesCommand::from_command(&set).value).unwrap();
    assert_eq!(counts, QueueCounts { submission: 4, completion: 4 });
    assert_eq!(counts.to_value(), 0x0003_0003);
    assert_eq!(QueueCounts::from_value(0xffff_0000), None);
    let mut get = FeaturesCommand::get(feature::KEEP_ALIVE, NvmeCommand::new(10, 0, 0));
    get.cdw10[0] |= 0x8000_0300;
    let get = FeaturesCommand::from_command(&get);
    assert_eq!((get.fid, get.select, get.save), (0x0f, FeatureSelect::Capabilities, true));
    assert_eq!(AsyncEvent::DISCOVERY_CHANGED.to_value(), 0x0070_f002);
    assert_eq!(AsyncEvent::NAMESPACE_CHANGED.to_value(), 0x0004_0002);
}

#[test]
fn completions() {
    let status = NvmeStatus::LBA_OUT_OF_RANGE.do_not_retry();
    let completion = NvmeCompletion { result: 0x0102_0304_0506, sqhd: 5, cid: 0xabcd, status };
    let entry = [6, 5, 4, 3, 2, 1, 0, 0, 5, 0, 0, 0, 0xcd, 0xab, 0x00, 0x81];
    assert_eq!(completion.to_bytes(), entry);
    assert_eq!(NvmeCompletion::parse(&entry), completion);
    assert_eq!(completion.dword0(), 0x0304_0506);
}

#[test]
fn ranges_of_dataset_management() {
    let manage = DatasetManagement { ranges: 2, deallocate: true, integral: (false, true) };
    let command = manage.encode_into(NvmeCommand::new(io::DATASET_MANAGEMENT, 1, 1));
    assert_eq!(command.cdw10[..2], [1, 5]);
    assert_eq!((DatasetManagement::from_command(&command), manage.data_len()), (manage, 32));
    let ranges = [3, 4].map(|slba| DatasetRange { attributes: 0, count: 9, slba });
    let mut data = [0; 40];
    for (to, range) in data.chunks_mut(16).zip(ranges) {
        to.copy_from_slice(&range.to_bytes());
    }
    assert!(DatasetRange::parse_all(&data).eq(ranges), "what is cut off is none");
}

proptest! {
    #[test]
    fn entries_are_read_as_written(entry in proptest::collection::vec(any::<u8>(), 64)) {
        let entry: [u8; 64] = get(&entry, 0);
        let command = NvmeCommand::parse(&entry);
        prop_assert_eq!(NvmeCommand::parse(&command.to_bytes()), command);
        let range = NvmeBlockRange::from_command(&command);
        prop_assert_eq!(NvmeBlockRange::from_command(&range.encode_into(command)), range);
        let again = NvmeCommand::new(command.opcode, command.cid, command.nsid);
        let identify = IdentifyCommand::from_command(&command);
        prop_assert_eq!(IdentifyCommand::from_command(&identify.encode_into(again)), identify);
        let page = GetLogPage::from_command(&command);
        prop_assert_eq!(GetLogPage::from_command(&page.encode_into(again)), page);
        let abort = AbortCommand::from_command(&command);
        prop_assert_eq!(AbortCommand::from_command(&abort.encode_into(again)), abort);
        let manage = DatasetManagement::from_command(&command);
        prop_assert_eq!(DatasetManagement::from_command(&manage.encode_into(again)), manage);
        let completion = NvmeCompletion::parse(&get(&entry, 0));
        prop_assert_eq!(NvmeCompletion::parse(&completion.to_bytes()), completion);
        let event = AsyncEvent::from_value(command.nsid);
        prop_assert_eq!(AsyncEvent::from_value(event.to_value()), event);
    }
}

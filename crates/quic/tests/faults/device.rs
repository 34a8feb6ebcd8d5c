//! The device refuses, or is reset.

use abi::Refusal;

use crate::topology::{LINK_DELAY, QuicFaultNetwork, QuicFaultSetup};
use crate::transfers::{FileTransfers, down, up};

/// With room for one connection, the second continues in software and asks again whenever the bytes
/// it carried have doubled. When the first has ended there is room.
#[test]
fn a_full_table() {
    let mut lab =
        QuicFaultNetwork::with(QuicFaultSetup { entries_max: 2, ..QuicFaultSetup::default() });
    let mut first = FileTransfers::begin(&mut lab, vec![down("a", 400_000)]);
    first.run(&mut lab);
    assert_eq!(lab.server.count("quic_entries"), 2);
    let mut second = FileTransfers::begin(&mut lab, vec![down("b", 20_000_000)]);
    lab.run(20, |lab| {
        second.step(lab);
        second.received() > 4_000_000
    });
    let server = second.server.expect("it is connected");
    assert_eq!(lab.server.app.offload(server), Some(Err(Refusal::TableFull)));
    let refused = lab.server.count("quic_refused_full");
    assert_eq!(lab.server.count("quic_entries"), 2);
    // First asked between 16 and 64 KiB, then at twice the bytes each time up to 4 MiB, for both
    // directions.
    assert!((12..=18).contains(&refused), "{refused}");
    let (now, client) = (lab.now, &mut lab.client);
    client.app.close(now, client.machine.host(), first.client, 0, "done");
    second.run(&mut lab);
    assert_eq!(lab.server.app.offload(server), Some(Ok(())));
    assert_eq!(lab.server.count("quic_entries"), 2);
    assert!(lab.server.count("quic_file_bytes_offloaded") > 4_000_000);
    second.close(&mut lab);
}

/// Packets inside the devices are lost, the hosts read the file content in their place, and the
/// devices are asked again.
#[test]
fn resets_in_the_middle() {
    let mut lab = QuicFaultNetwork::new();
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 6_000_000), up("b", 3_000_000)]);
    let mut frames = 0_u64;
    lab.set_link_rule(move |_, _, frame| {
        frames += 1;
        if frames % 41 == 0 { Vec::new() } else { vec![(LINK_DELAY, frame)] }
    });
    let mut resets = 0;
    let ended = lab.run(120, |lab| {
        if resets < 3 && t.received() > 2_000_000 * (resets + 1) {
            resets += 1;
            // With file transmits in the ring, then between two rounds.
            match resets {
                1 => lab.reset_before_files = true,
                _ => lab.server.device().reset(),
            }
            if resets == 2 {
                lab.client.device().reset();
            }
        }
        t.step(lab)
    });
    assert!(ended && resets == 3);
    t.check();
    assert_eq!(lab.server.count("quic_device_resets"), 3);
    assert_eq!(lab.client.count("quic_device_resets"), 1);
    assert_eq!((lab.server.count("quic_offloaded"), lab.client.count("quic_offloaded")), (4, 2));
    assert!(lab.server.count("quic_out_late") > 0);
    for machine in [&lab.client, &lab.server] {
        assert_eq!(machine.count("quic_entries"), 2, "the offload is back");
        assert_eq!(machine.count("quic_in_disagreed"), 0);
        assert_eq!((machine.count("quic_out_malformed"), machine.count("quic_rx_bad_tag")), (0, 0));
    }
    t.close(&mut lab);
}

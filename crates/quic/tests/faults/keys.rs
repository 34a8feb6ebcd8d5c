//! Key updates (RFC 9001 section 6) by both sides on a path that reorders.

use base::Duration;

use crate::topology::{LINK_DELAY, QuicFaultNetwork};
use crate::transfers::{FileTransfers, down, up};

/// Packets of two generations arrive mixed, and both devices decrypt them.
#[test]
fn updates_while_packets_are_reordered() {
    let mut lab = QuicFaultNetwork::new();
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 8_000_000), up("b", 8_000_000)]);
    let mut frames = 0;
    lab.set_link_rule(move |_, _, frame| {
        frames += 1;
        // Some packets arrive after later ones, rarely by more than the reordering window.
        let late = match frames {
            n if n % 97 == 0 => Duration::from_millis(3),
            n if n % 5 == 0 => Duration::from_micros(400),
            _ => Duration::ZERO,
        };
        vec![(LINK_DELAY + late, frame)]
    });
    let mut updates = 0;
    let ended = lab.run(120, |lab| {
        if t.received() > 1_000_000 * (updates + 1) {
            updates += 1;
            let by_client = updates % 2 == 0;
            let machine = if by_client { &mut lab.client } else { &mut lab.server };
            let handle = if by_client { t.client } else { t.server.expect("it is connected") };
            machine.app.update_keys(handle);
        }
        t.step(lab)
    });
    assert!(ended && updates >= 8, "{updates}");
    t.check();
    for machine in [&lab.client, &lab.server] {
        // The next generation at the start, and both directions at each update.
        assert!(machine.count("quic_rekeyed") >= 13, "{}", machine.count("quic_rekeyed"));
        assert_eq!(machine.count("quic_rekeyed"), machine.count("quic_rekeys"));
        assert!(machine.count("quic_reordered") > 50);
        // A new generation replaces the previous one; the host decrypts packets that are later than
        // that.
        let late = machine.count("quic_rx_bad_tag") + machine.count("quic_rx_unknown_keys");
        assert!(late <= updates, "{late} late ones in {updates} updates");
        assert_eq!((machine.count("quic_in_disagreed"), machine.count("quic_not_sealed")), (0, 0));
        assert_eq!(machine.count("quic_rx_opened"), machine.count("quic_in_opened"));
        assert_eq!(machine.count("quic_tx_sealed"), machine.count("quic_out_for_device"));
        assert_eq!(machine.count("quic_offloaded"), 1);
    }
    // Afterwards nothing is processed in software.
    let software = |lab: &QuicFaultNetwork| {
        [&lab.client, &lab.server].map(|machine| {
            let out = machine.count("quic_out_datagrams") - machine.count("quic_out_for_device");
            (out, machine.count("quic_in_datagrams") - machine.count("quic_in_opened"))
        })
    };
    let before = software(&lab);
    lab.run(1, |_| false);
    assert_eq!(software(&lab), before);
    t.close(&mut lab);
}

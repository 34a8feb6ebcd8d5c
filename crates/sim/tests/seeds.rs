//! Seeds that once failed, with the fault that each found. A change of the scenarios that seeds
//! generate makes them ordinary seeds; regression tests are beside the code that was wrong.

/// Seeds, and the faults that they found.
const FOUND: [(u64, &str); 25] = [
    (4918, "a handle whose file was found changed for an ended connection reset the next user"),
    (302, "transmits that left together were taken for lost, by the ring's own delay"),
    (178, "an acknowledgment waited for a disk behind the response that carried it"),
    (166, "a returning SYN cookie was reset where the accept queue was full for a moment"),
    (
        431,
        "a file that could not be opened again after a device reset stayed in the server's cache",
    ),
    (744, "bytes that a connection released before they left were held forever"),
    (1575, "the same, with a whole window"),
    (2253, "an acknowledgment that overtook a waiting transmit made its timestamp stale"),
    (2428, "a keep-alive probe at once, and while data was outstanding"),
    (5722, "a reset was dropped behind the transmits of the connection that it was to end"),
    (6240, "a file was closed while a response that could not be written yet needed it"),
    (7458, "timestamps that were corrected for a disk went back by a millisecond"),
    (1318, "old copies of a SYN (the wire checker was wrong)"),
    (1638, "a close took the disk's last place (the simulated driver was wrong)"),
    (8, "two ends in TIME-WAIT answered each other's acknowledgments without end"),
    (8021, "what waited behind a transmit of a refused context ended its connection"),
    (2118, "a client's port that was used again for another connection (the checker was wrong)"),
    (4663, "a challenge on a spliced pair offered a window from before with the latest number"),
    (4549, "a spliced peer's window is smaller than the proxy's was (the checker was wrong)"),
    (5807, "a proxy waited for an answer until idle, and said so late (the checker was wrong)"),
    (983, "connection IDs of Retry packets were taken for those of the next connection"),
    (1380, "keys of a generation that went by in software had the wrong phase for the device"),
    (1710, "a Retry that came to a server ended a handshake"),
    (404, "what is asked for after the faults depended on them (the client was wrong)"),
    (11640, "an HTTP/3 connection was closed before a slow client had read what it acknowledged"),
];

#[test]
fn seeds_that_failed_once_hold() {
    for (seed, found) in FOUND {
        if let Some(text) = outboard_sim::check_seed(seed).explain() {
            panic!("{text}\nit had found: {found}");
        }
    }
}

/// A device relays the same bytes as a host: in runs that do not depend on timing, clients get the
/// same responses with splices and without. [`outboard_sim::check_seed`] compares them.
#[test]
fn splicing_changes_no_byte() {
    let mut pairs = 0;
    for seed in (2..160).step_by(4) {
        let outcome = outboard_sim::check_seed(seed);
        assert_eq!(outcome.explain(), None);
        pairs += outcome.counters.get("proxy_spliced").copied().unwrap_or(0);
        let options =
            outboard_sim::RunOptions { splice: Some(false), ..outboard_sim::RunOptions::default() };
        let off = outboard_sim::run_seed(seed, &options);
        assert_eq!(off.explain(), None);
        assert!(off.counters.get("proxy_spliced").is_none_or(|&n| n == 0), "seed {seed}");
    }
    assert!(pairs > 20, "{pairs} pairs");
}

/// Recording the lines of a trace does not change the run, and other seeds have other traces.
#[test]
fn traces_are_whole_on_request() {
    let last = outboard_sim::run_seed(302, &outboard_sim::RunOptions::default());
    let whole = outboard_sim::run_seed(
        302,
        &outboard_sim::RunOptions { trace: true, ..Default::default() },
    );
    assert_eq!(last.hash, whole.hash, "keeping lines changes nothing");
    assert_eq!(whole.trace.len() as u64, whole.events);
    assert!(last.trace.is_empty(), "no trace was requested");
    assert!(whole.trace.iter().any(|line| line.contains(" connect session=0 ")));
    assert_ne!(last.hash, outboard_sim::run_seed(303, &outboard_sim::RunOptions::default()).hash);
}

//! Names of the counters of a host's disk: uploads, namespaces, and files that the device does not
//! read.
//!
//! Used by the host's thread in answers to queries, and by [`crate::alarms()`]. The counters of the
//! device's disk keep the names of [`io::disk::DiskCounters`].

/// Defines the names of the host's counters for those of a disk.
macro_rules! names {
    ($($name:literal),* $(,)?) => { [$(($name, concat!("host_", $name))),*] };
}

/// Names of a disk's counters, and of the same counters of a host's disk.
const NAMES: [(&str, &str); 19] = names![
    "disk_opens",
    "disk_open_errors",
    "disk_direct_opens",
    "disk_direct_refused",
    "disk_reads",
    "disk_read_bytes",
    "disk_read_errors",
    "disk_reads_continued",
    "disk_writes",
    "disk_write_bytes",
    "disk_writes_continued",
    "disk_flushes",
    "disk_zeroes",
    "disk_publications",
    "disk_zeroes_written",
    "disk_write_errors",
    "disk_no_space",
    "disk_bad_requests",
    "disk_full",
];

/// Returns the name of a counter of the host's disk for that of a disk. Other names stay.
pub(crate) fn counter_name(name: &'static str) -> &'static str {
    NAMES.iter().find(|(of_disk, _)| *of_disk == name).map_or(name, |(_, of_host)| of_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_a_disk_has_a_name() {
        let mut seen = 0;
        io::disk::DiskCounters::default().visit(&mut |name, _| {
            assert_eq!(counter_name(name), format!("host_{name}"));
            seen += 1;
        });
        assert_eq!(seen, NAMES.len());
        assert_eq!(counter_name("tcp_in_segs"), "tcp_in_segs");
    }
}

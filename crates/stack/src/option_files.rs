//! Files and sockets that the options of a stack name.
//!
//! Used by the builder, for the control socket, and by programs, which restrict themselves to these
//! files ([`crate::ConfinementOptions::begin`]).

use std::path::PathBuf;

use io::confinement::ConfinedFiles;

use crate::control;
use crate::link::LinkName;
use crate::options::StackOptions;

impl StackOptions {
    /// Returns the path of the control socket.
    pub(crate) fn control_path(&self) -> PathBuf {
        let given = self.control.as_deref();
        match self.nic {
            None => control::path(given, &self.link),
            Some(_) => control::path_by_addr(given, self.addrs().first().map(|cidr| cidr.addr)),
        }
    }

    /// Returns whether the link loads programs for its queues, also when it is opened again.
    pub(crate) fn opens_bpf_links(&self) -> bool {
        self.nic.is_none() && (self.queues > 1 || self.link.is_xdp())
    }

    /// Returns the files that these options need.
    #[must_use]
    pub fn confined_files(&self) -> ConfinedFiles {
        let mut files = ConfinedFiles::default();
        files.allow_create(self.control_path());
        for created in [&self.record, &self.pcap].into_iter().flatten() {
            files.allow_create(created);
        }
        for log in self.access_log.iter().filter(|log| log.as_os_str() != "-") {
            files.allow_create(log);
        }
        if self.nic.is_none() && matches!(self.link, LinkName::Macvtap { .. }) {
            // Its device node appears with the interface.
            files.allow_write("/dev");
        }
        files
    }
}

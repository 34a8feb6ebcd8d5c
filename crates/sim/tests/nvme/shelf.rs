//! The user and the target, as what runs on a [`crate::lab`]'s machines.

use apps::nvme::target::Target;
use base::Instant;
use host::{Host, Notice};
use sim::storage::user::User;

use crate::lab::App;

impl App for User {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.handle_notice(now, host, &notice);
        self.log.clear();
        assert_eq!(self.wrong, None);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.handle_timeout(now, host);
        self.log.clear();
        assert_eq!(self.wrong, None);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }
}

/// The target.
pub(crate) struct Shelf(pub(crate) Target);

impl Shelf {
    pub(crate) fn count(&self, wanted: &str) -> u64 {
        let mut found = None;
        self.0.visit(&mut |name, value| {
            if name == wanted {
                found = Some(value);
            }
        });
        found.expect("there is such a counter")
    }
}

impl App for Shelf {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.0.handle_notice(now, host, notice);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.0.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }
}

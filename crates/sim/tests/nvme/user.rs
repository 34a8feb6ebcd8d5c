//! The simulator's user of a namespace as the application of a machine ([`crate::machines`]).

use core::ops::{Deref, DerefMut};

use base::Instant;
use host::{Application, Host, Notice};
use outboard_sim::storage::user::User;

/// The user of a namespace. The test fails as soon as the user finds wrong data.
pub(crate) struct CheckedUser(pub(crate) User);

impl CheckedUser {
    fn check(&mut self) {
        self.log.clear();
        assert_eq!(self.wrong, None);
    }
}

impl Deref for CheckedUser {
    type Target = User;

    fn deref(&self) -> &User {
        &self.0
    }
}

impl DerefMut for CheckedUser {
    fn deref_mut(&mut self) -> &mut User {
        &mut self.0
    }
}

impl Application for CheckedUser {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.0.handle_notice(now, host, notice);
        self.check();
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.0.handle_timeout(now, host);
        self.check();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }
}

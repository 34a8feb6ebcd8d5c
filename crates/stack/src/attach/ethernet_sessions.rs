//! The sessions over Ethernet that a device has.
//!
//! The listener looks a session up before it opens one; the end of a session removes it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ended sessions that are remembered, so that a frame that was delayed does not open one again.
const ENDED_MAX: usize = 64;

/// Link addresses of a program with the number of its session.
pub(super) type SessionKey = ([u8; 6], u64);

/// Sessions of a device.
#[derive(Debug, Default)]
pub(super) struct SessionTable {
    active: BTreeSet<SessionKey>,
    ended: VecDeque<SessionKey>,
}

/// The table, for all ends of sessions.
pub(super) type SharedSessions = Arc<Mutex<SessionTable>>;

fn lock(sessions: &SharedSessions) -> MutexGuard<'_, SessionTable> {
    sessions.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a session has an end in this process.
pub(super) fn is_active(sessions: &SharedSessions, key: SessionKey) -> bool {
    lock(sessions).active.contains(&key)
}

/// An entry in the table of sessions, which ends with it.
#[derive(Debug)]
pub(super) struct SessionRegistration {
    sessions: SharedSessions,
    key: SessionKey,
}

impl SessionRegistration {
    /// Registers a session; `None` if it is known already.
    pub(super) fn new(sessions: &SharedSessions, key: SessionKey) -> Option<Self> {
        let mut table = lock(sessions);
        if table.ended.contains(&key) || !table.active.insert(key) {
            return None;
        }
        Some(Self { sessions: Arc::clone(sessions), key })
    }
}

impl Drop for SessionRegistration {
    fn drop(&mut self) {
        let mut table = lock(&self.sessions);
        table.active.remove(&self.key);
        table.ended.truncate(ENDED_MAX - 1);
        table.ended.push_front(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session is opened once, also by a frame that arrives after its end.
    #[test]
    fn a_session_is_registered_once() {
        let sessions = SharedSessions::default();
        let key = |session| ([2, 0, 0, 0, 0, 1], session);
        let entry = SessionRegistration::new(&sessions, key(1)).unwrap();
        assert!(SessionRegistration::new(&sessions, key(1)).is_none());
        drop(entry);
        assert!(SessionRegistration::new(&sessions, key(1)).is_none(), "it has ended");
        for session in 2..200 {
            assert!(SessionRegistration::new(&sessions, key(session)).is_some());
        }
        let table = lock(&sessions);
        assert_eq!((table.active.len(), table.ended.len()), (0, ENDED_MAX));
    }
}

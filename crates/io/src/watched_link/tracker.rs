//! The state of one interface, from the kernel's reports: which change each report means.
//!
//! Makes no system call, so that tests pass reports in.

use crate::link_events::{InterfaceState, LinkEvent};

/// A change of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterfaceChange {
    /// It carries no frames.
    Down {
        /// True if it is enabled, but has no carrier.
        is_enabled: bool,
        /// True if that was so when the link was opened.
        at_start: bool,
    },
    /// It carries frames again.
    Up,
    /// It has another MTU.
    Mtu {
        /// Old MTU in bytes.
        from: u16,
        /// New MTU in bytes.
        to: u16,
    },
    /// It has another link address.
    Address([u8; 6]),
    /// It was removed.
    Removed,
    /// After the removal, there is an interface on which the link can be opened again.
    Appeared,
}

/// Knowledge of whether the interface carries frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// The link was just opened.
    Opened,
    Up,
    Down,
    Removed,
}

/// Follows one interface.
#[derive(Debug)]
pub(super) struct InterfaceTracker {
    /// Index of the interface; that of the last one if it was removed.
    index: u32,
    /// Name of the interface that must exist for the link to be opened.
    needs: String,
    presence: Presence,
    mtu: u16,
    address: Option<[u8; 6]>,
}

impl InterfaceTracker {
    /// Creates the tracker of an interface that was just opened with an MTU in bytes.
    pub(super) fn new(index: u32, needs: &str, mtu: u16) -> Self {
        let needs = needs.to_owned();
        Self { index, needs, presence: Presence::Opened, mtu, address: None }
    }

    /// Returns the index of the interface; `None` if it was removed.
    pub(super) fn index(&self) -> Option<u32> {
        (self.presence != Presence::Removed).then_some(self.index)
    }

    /// Follows the interface with this index, on which the link was opened again. It counts as down
    /// until a report shows that it is up.
    pub(super) fn reopen(&mut self, index: u32) {
        (self.index, self.presence, self.address) = (index, Presence::Down, None);
    }

    /// Handles a report, and calls `on_change` with each change in it.
    pub(super) fn handle(&mut self, event: &LinkEvent, mut on_change: impl FnMut(InterfaceChange)) {
        let is_ours = self.index() == Some(event.index);
        match &event.state {
            None if is_ours => {
                self.presence = Presence::Removed;
                on_change(InterfaceChange::Removed);
            }
            Some(state) if is_ours => self.compare(state, on_change),
            Some(state)
                if self.presence == Presence::Removed
                    && state.name.as_deref() == Some(&self.needs) =>
            {
                on_change(InterfaceChange::Appeared);
            }
            _ => {}
        }
    }

    fn compare(&mut self, state: &InterfaceState, mut on_change: impl FnMut(InterfaceChange)) {
        let is_enabled = state.is_enabled;
        let is_up = is_enabled && state.has_carrier;
        let at_start = self.presence == Presence::Opened;
        match (is_up, self.presence) {
            (true, Presence::Down) => on_change(InterfaceChange::Up),
            (false, Presence::Up | Presence::Opened) => {
                on_change(InterfaceChange::Down { is_enabled, at_start });
            }
            _ => {}
        }
        self.presence = if is_up { Presence::Up } else { Presence::Down };
        if let Some(to) = state.mtu.filter(|&mtu| mtu != self.mtu) {
            on_change(InterfaceChange::Mtu { from: self.mtu, to });
            self.mtu = to;
        }
        let known = self.address.is_some();
        if let Some(address) = state.address.filter(|&new| Some(new) != self.address) {
            self.address = Some(address);
            if known {
                on_change(InterfaceChange::Address(address));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up() -> InterfaceState {
        InterfaceState {
            name: Some("eth0".into()),
            is_enabled: true,
            has_carrier: true,
            mtu: Some(1500),
            address: Some([2; 6]),
            ..InterfaceState::default()
        }
    }

    fn tracker() -> InterfaceTracker {
        InterfaceTracker::new(7, "eth0", 1500)
    }

    fn changes(
        tracker: &mut InterfaceTracker,
        index: u32,
        state: Option<InterfaceState>,
    ) -> Vec<InterfaceChange> {
        let mut all = Vec::new();
        tracker.handle(&LinkEvent { index, state }, |change| all.push(change));
        all
    }

    #[test]
    fn only_changes_are_reported() {
        let mut t = tracker();
        let down = || Some(InterfaceState { is_enabled: false, ..up() });
        let no_carrier = || Some(InterfaceState { has_carrier: false, ..up() });
        let lost = |is_enabled| vec![InterfaceChange::Down { is_enabled, at_start: false }];
        assert_eq!(changes(&mut t, 7, Some(up())), []);
        assert_eq!(changes(&mut t, 7, Some(up())), []);
        assert_eq!(changes(&mut t, 8, down()), [], "another interface");
        assert_eq!(changes(&mut t, 7, down()), lost(false));
        assert_eq!(changes(&mut t, 7, no_carrier()), []);
        assert_eq!(changes(&mut t, 7, Some(up())), [InterfaceChange::Up]);
        assert_eq!(changes(&mut t, 7, no_carrier()), lost(true));
        let moved = InterfaceState { mtu: Some(1400), address: Some([4; 6]), ..up() };
        let all = [
            InterfaceChange::Up,
            InterfaceChange::Mtu { from: 1500, to: 1400 },
            InterfaceChange::Address([4; 6]),
        ];
        assert_eq!(changes(&mut t, 7, Some(moved.clone())), all);
        assert_eq!(changes(&mut t, 7, Some(moved)), []);
        // A report about a part of the state.
        let part = InterfaceState { mtu: None, address: None, ..up() };
        assert_eq!(changes(&mut t, 7, Some(part)), []);
    }

    #[test]
    fn a_link_may_be_down_at_the_start() {
        let mut t = tracker();
        let down = InterfaceState { has_carrier: false, ..up() };
        let at_start = InterfaceChange::Down { is_enabled: true, at_start: true };
        assert_eq!(changes(&mut t, 7, Some(down)), [at_start]);
        assert_eq!(changes(&mut t, 7, Some(up())), [InterfaceChange::Up]);
    }

    #[test]
    fn a_removed_interface_is_followed_by_one_with_its_name() {
        let mut t = tracker();
        assert_eq!(changes(&mut t, 7, Some(up())), []);
        assert_eq!(changes(&mut t, 7, None), [InterfaceChange::Removed]);
        assert_eq!((t.index(), changes(&mut t, 7, None)), (None, vec![]));
        let other = InterfaceState { name: Some("eth1".into()), ..up() };
        assert_eq!(changes(&mut t, 9, Some(other)), []);
        assert_eq!(changes(&mut t, 9, Some(up())), [InterfaceChange::Appeared]);
        t.reopen(9);
        let new = InterfaceState { address: Some([6; 6]), ..up() };
        assert_eq!(changes(&mut t, 9, Some(new)), [InterfaceChange::Up]);
    }
}

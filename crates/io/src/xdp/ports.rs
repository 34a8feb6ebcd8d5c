//! Ports of a stack that shares the addresses of the kernel.
//!
//! The application names its ports before the link is opened, and may add further ones while it is
//! open: a program for all of them replaces the attached one, between two frames. Ports are not
//! removed, because connections on them may still be open.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::open::AttachedProgram;
use super::program::SharedPorts;
use crate::open_error::OpenLinkError;

/// Ports of listeners, of TCP and UDP. Clones share them.
#[derive(Clone, Default)]
pub struct ListenerPorts(Arc<Mutex<PortsState>>);

#[derive(Default)]
struct PortsState {
    ports: Vec<u16>,
    /// The program that redirects frames to these ports, while a link is open.
    program: Weak<AttachedProgram>,
}

/// The part of an address that a stack has if the kernel has the same address.
#[derive(Clone, Debug)]
pub struct SharedAddress {
    /// Ports of listeners.
    pub listeners: ListenerPorts,
    /// Local ports of active opens, which the kernel must not use.
    pub active: RangeInclusive<u16>,
}

impl ListenerPorts {
    /// Maximum number of ports: each is an instruction of the program.
    pub const MAX: usize = 256;

    /// Creates a list of ports.
    #[must_use]
    pub fn new(ports: impl IntoIterator<Item = u16>) -> Self {
        let state = PortsState { ports: united(&[], ports), program: Weak::new() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Returns the ports, in order.
    #[must_use]
    pub fn list(&self) -> Vec<u16> {
        self.lock().ports.clone()
    }

    /// Adds ports. If a link is open, its program redirects frames to them when this returns.
    ///
    /// # Errors
    /// If there are more than [`Self::MAX`], or the kernel refuses the program; the ports are the
    /// same as before.
    pub fn extend(&self, more: impl IntoIterator<Item = u16>) -> Result<(), OpenLinkError> {
        let mut state = self.lock();
        let ports = united(&state.ports, more);
        if ports == state.ports {
            return Ok(());
        }
        if let Some(program) = state.program.upgrade() {
            check_count(&ports)?;
            program.replace(&ports)?;
        }
        state.ports = ports;
        Ok(())
    }

    /// Calls `attach` with the ports, and keeps the program that it returns, to replace it.
    pub(super) fn attach(
        &self,
        attach: impl FnOnce(Vec<u16>) -> Result<Arc<AttachedProgram>, OpenLinkError>,
    ) -> Result<Arc<AttachedProgram>, OpenLinkError> {
        // Ports that are added meanwhile wait, and are then in the program.
        let mut state = self.lock();
        check_count(&state.ports)?;
        let program = attach(state.ports.clone())?;
        state.program = Arc::downgrade(&program);
        Ok(program)
    }

    /// Replaces a program by one with the same ports.
    pub(super) fn renew(&self, program: &AttachedProgram) -> Result<(), OpenLinkError> {
        program.replace(&self.lock().ports)
    }

    fn lock(&self) -> MutexGuard<'_, PortsState> {
        // Each change is a single assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedAddress {
    /// Returns the ports for a program.
    pub(super) fn rules(&self, listeners: Vec<u16>) -> SharedPorts {
        SharedPorts { listeners, active: self.active.clone() }
    }
}

impl fmt::Debug for ListenerPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ListenerPorts").field(&self.lock().ports).finish()
    }
}

/// Returns the ports of both lists, without duplicates.
fn united(ports: &[u16], more: impl IntoIterator<Item = u16>) -> Vec<u16> {
    let mut all = ports.to_vec();
    for port in more {
        if !all.contains(&port) {
            all.push(port);
        }
    }
    all
}

fn check_count(ports: &[u16]) -> Result<(), OpenLinkError> {
    let (count, max) = (ports.len(), ListenerPorts::MAX);
    if count > max { Err(OpenLinkError::TooManyPorts { count, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_added_once() {
        let ports = ListenerPorts::new([80, 443, 80]);
        ports.clone().extend([443, 8080]).unwrap();
        assert_eq!(ports.lock().ports, [80, 443, 8080]);
        // Without a link there is no limit: they are checked when it is opened.
        ports.extend(1000..2000).unwrap();
        let refused = ports.attach(|_| panic!("too many")).unwrap_err();
        assert!(matches!(refused, OpenLinkError::TooManyPorts { count: 1003, max: 256 }));
    }
}

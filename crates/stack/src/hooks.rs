//! Functions of an application that its thread calls, besides those of [`host::Application`], which
//! does not know threads.

use std::os::fd::RawFd;

use base::Instant;
use host::Host;
use quic::ConnectionInfo;

/// Functions of an application of type `A`, which receives messages of type `M`.
pub(crate) struct Hooks<A, M> {
    /// Handles a message from another thread, between two turns.
    pub(crate) handle_message: fn(&mut A, Instant, &mut Host, M),
    /// Calls a function for each QUIC connection; the host lists all others.
    pub(crate) list_quic_connections: fn(&A, &mut dyn FnMut(ConnectionInfo)),
    /// Returns a descriptor that polls readable when [`host::Application::begin_turn`] has changes
    /// to read.
    pub(crate) pollable: fn(&A) -> Option<RawFd>,
}

impl<A> Default for Hooks<A, ()> {
    /// Returns hooks for an application without messages, QUIC and descriptor.
    fn default() -> Self {
        Self {
            handle_message: |_, _, _, ()| {},
            list_quic_connections: |_, _| {},
            pollable: |_| None,
        }
    }
}

// `derive` would require `Clone` of the application and its messages.
impl<A, M> Clone for Hooks<A, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, M> Copy for Hooks<A, M> {}

//! What a thread asks of an application beyond [`host::Application`], which knows of no thread.

use std::os::fd::RawFd;

use base::Instant;
use host::Host;
use quic::ConnectionInfo;

/// Functions of an application of type `A` that other threads send messages of type `M`.
pub(crate) struct Hooks<A, M> {
    /// Takes a message of another thread, between two turns.
    pub(crate) handle_message: fn(&mut A, Instant, &mut Host, M),
    /// Calls a function with each QUIC connection; other connections are the host's.
    pub(crate) list_quic_connections: fn(&A, &mut dyn FnMut(ConnectionInfo)),
    /// Returns a descriptor that polls readable when [`host::Application::begin_turn`] has
    /// something to look at.
    pub(crate) pollable: fn(&A) -> Option<RawFd>,
}

impl<A> Default for Hooks<A, ()> {
    /// Returns those of an application without messages, QUIC and descriptor.
    fn default() -> Self {
        Self {
            handle_message: |_, _, _, ()| {},
            list_quic_connections: |_, _| {},
            pollable: |_| None,
        }
    }
}

// Derived, they would ask the same of the application and its messages.
impl<A, M> Clone for Hooks<A, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, M> Copy for Hooks<A, M> {}

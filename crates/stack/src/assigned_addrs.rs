//! Addresses that the network assigns while the stack runs.
//!
//! The clients (DHCP, SLAAC) run in the host of the first queue. A thread prints their events, and
//! passes changes to the hosts of the other queues. Used by [`crate::builder`]; the wait for the
//! first addresses is in [`crate::network`].

use std::sync::mpsc::{Receiver, Sender, channel};

use base::Instant;
use cli::Failure;
use host::{AutoAddrEvent, AutoAddrs, Host, NetworkAddrs};

use crate::network;
use crate::threads::MessageSender;

/// Assigned addresses, for the hosts of all queues.
pub(crate) struct AssignedAddrs {
    /// `None` if all addresses are those of the options.
    addrs: Option<NetworkAddrs>,
    /// The clients, until the first host has them.
    clients: Option<AutoAddrs>,
    events: Sender<AutoAddrEvent>,
    received: Receiver<AutoAddrEvent>,
}

impl AssignedAddrs {
    /// Takes the clients, if there are any.
    pub(crate) fn new(clients: Option<AutoAddrs>) -> Self {
        let addrs = clients.as_ref().map(|clients| clients.network().clone());
        let (events, received) = channel();
        Self { addrs, clients, events, received }
    }

    /// Returns whether addresses may change.
    pub(crate) const fn may_change(&self) -> bool {
        self.addrs.is_some()
    }

    /// Passes the addresses to the host of the next queue, and the clients to that of the first
    /// one. Returns the receiver of the host's events.
    pub(crate) fn install(
        &mut self,
        now: Instant,
        host: &mut Host,
    ) -> Option<Sender<AutoAddrEvent>> {
        if let Some(clients) = self.clients.take() {
            host.set_auto_addrs(now, clients);
            return Some(self.events.clone());
        }
        self.addrs.iter().for_each(|addrs| host.set_addrs(now, addrs));
        None
    }

    /// Starts the thread, if addresses may change. It ends with the first host.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(crate) fn start_thread<M: Send + 'static>(
        self,
        senders: &[MessageSender<M>],
    ) -> Result<(), Failure> {
        if !self.may_change() {
            return Ok(());
        }
        let (events, senders) = (self.received, senders.to_vec());
        let run = move || {
            for event in events {
                network::report(&event);
                let AutoAddrEvent::Changed(addrs) = event else { continue };
                eprintln!("outboard: {}", network::describe_change(&addrs));
                senders.iter().skip(1).for_each(|sender| sender.set_addrs(addrs.clone()));
            }
        };
        crate::spawn("addresses".to_owned(), run).map(drop)
    }
}

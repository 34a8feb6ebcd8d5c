//! Users of namespaces, and what they may find there.
//!
//! [`model`] knows what each sector of a namespace may hold; a [`user::User`] changes and reads a
//! namespace through an initiator and holds all that it gets against the model. Used by the worlds
//! of this crate and by its tests of NVMe over TCP.

pub mod model;
pub mod user;

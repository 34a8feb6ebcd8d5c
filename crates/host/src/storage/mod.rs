//! Files: handles, the software path for content that the device does not send, namespaces,
//! and decompression.
//!
//! Called by send streams, by [`crate::stream`] and by the application through [`crate::Host`].

pub(crate) mod decompress;
pub(crate) mod extents;
pub(crate) mod files;
pub(crate) mod namespaces;
pub(crate) mod provided;
pub(crate) mod source;

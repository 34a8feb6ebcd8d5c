//! qlog: what happened to a connection, for tools that draw it (draft-ietf-quic-qlog-main-schema).
//!
//! quinn-proto writes the events (packets sent, received and lost, metrics of recovery); here each
//! connection gets a log of its own. The log is opened by the endpoint's owner, since
//! nothing in this crate opens files.

use std::io::Write;
use std::sync::Arc;

use quinn_proto::{QlogConfig, QlogStream, Side};

/// The destination of a connection's log.
pub type QlogWriter = Box<dyn Write + Send + Sync>;

/// Opens a connection's log, by the connection ID that its first packet is sent to; none if it
/// cannot be opened, or is not wanted.
pub type OpenQlog = Arc<dyn Fn(&[u8], Side) -> Option<QlogWriter> + Send + Sync>;

/// Begins the log of a connection.
pub(crate) fn begin(
    open: &OpenQlog,
    id: &[u8],
    side: Side,
    epoch: std::time::Instant,
) -> Option<QlogStream> {
    let writer = open(id, side)?;
    let mut config = QlogConfig::default();
    let side = if side.is_server() { "server" } else { "client" };
    config.writer(writer).title(Some(format!("outboard {side}"))).start_time(epoch);
    config.into_stream()
}

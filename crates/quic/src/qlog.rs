//! qlog: traces of connections for visualization tools (draft-ietf-quic-qlog-main-schema).
//!
//! quinn-proto writes the events (packets sent, received and lost, recovery metrics), each
//! connection to a log of its own. The owner of the endpoint opens the logs; nothing in this crate
//! opens files.

use std::io::Write;
use std::sync::Arc;

use quinn_proto::{QlogConfig, QlogStream, Side};

/// Destination of a connection's log.
pub type QlogWriter = Box<dyn Write + Send + Sync>;

/// Opens the log of the connection whose first packet has this destination connection ID. `None` if
/// it cannot be opened or is not wanted.
pub type OpenQlog = Arc<dyn Fn(&[u8], Side) -> Option<QlogWriter> + Send + Sync>;

/// Starts the log of a connection.
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

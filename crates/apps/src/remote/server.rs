//! A content server whose files are on namespaces: a [`ContentServer`] and its [`RemoteFiles`] on
//! one host.
//!
//! Called by the driver as every application. Requests that follow the loss of a target wait for
//! it, because the open files are forgotten then. A drain ends in two steps: the associations are
//! closed when the last client is gone, because its response needs them until then; the controllers
//! are shut down, so that their targets do not wait for a keep-alive timeout.

use std::collections::VecDeque;

use base::Instant;
use host::{Application, Host, Notice, SocketId};

use super::{RemoteEvent, RemoteFiles, RemoteFilesConfig};
use crate::content::{ContentServer, ContentServerConfig, ContentServerError};

/// Phase of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RemoteServerPhase {
    Serving,
    /// No connections are accepted; clients have responses in progress.
    Draining,
    /// The associations are closed.
    Closed,
}

/// A content server and its files, an [`Application`].
pub struct RemoteContentServer {
    /// The content server.
    pub server: ContentServer,
    files: RemoteFiles,
    phase: RemoteServerPhase,
    events: VecDeque<(usize, RemoteEvent)>,
}

impl RemoteContentServer {
    /// Creates the server, and starts to connect to the targets. The host must be configured with
    /// [`host::ContentSource::Application`].
    ///
    /// # Errors
    /// As [`ContentServer::new`].
    pub fn new(
        files: RemoteFilesConfig,
        content: ContentServerConfig,
        now: Instant,
        host: &mut Host,
    ) -> Result<Self, ContentServerError> {
        let server = ContentServer::new(content, host)?;
        let files = RemoteFiles::new(files, now, host);
        let phase = RemoteServerPhase::Serving;
        Ok(Self { server, files, phase, events: VecDeque::new() })
    }

    /// Returns the next event of a volume, with the index of the volume.
    pub fn poll_event(&mut self) -> Option<(usize, RemoteEvent)> {
        self.events.pop_front()
    }

    fn handle_events(&mut self) {
        while let Some((volume, event)) = self.files.poll_event() {
            if matches!(event, RemoteEvent::Lost(_)) {
                // Requests that follow wait for the target, instead of being cut in mid-response.
                self.server.expire(None);
            }
            self.events.push_back((volume, event));
        }
    }
}

impl Application for RemoteContentServer {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.files.handle_notice(now, host, notice);
        self.server.handle_notice(now, host, notice);
    }

    fn give_up(&mut self, socket: SocketId) -> bool {
        self.server.give_up(socket)
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.files.handle_timeout(now, host);
        self.server.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Instant::earliest([self.server.poll_timeout(), self.files.poll_timeout()])
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        let worked = self.files.advance(now, host) | self.server.advance(now, host);
        self.handle_events();
        let is_last =
            self.phase == RemoteServerPhase::Draining && self.server.open_connections() == 0;
        if is_last {
            self.phase = RemoteServerPhase::Closed;
            self.files.close(now, host);
        }
        worked || is_last
    }

    fn drain(&mut self, now: Instant, host: &mut Host) {
        self.server.drain(now, host);
        if self.phase == RemoteServerPhase::Serving {
            self.phase = RemoteServerPhase::Draining;
        }
    }

    fn end(&mut self, now: Instant, host: &mut Host) {
        self.server.end(now, host);
        self.files.end(now, host);
        self.phase = RemoteServerPhase::Closed;
    }

    fn poll_log(&mut self) -> Option<String> {
        self.server.poll_log()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.server.visit(f);
        self.files.visit(f);
    }
}

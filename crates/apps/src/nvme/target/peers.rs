//! Handling of the mail from the other queues of a target ([`super::group`]).

use base::Instant;

use super::backend::TargetTransport;
use super::group::TargetMail;
use super::server::NvmeTargetServer;

impl<L: TargetTransport> NvmeTargetServer<L> {
    /// Handles the mail of other queues. Returns whether there was any.
    pub(super) fn handle_mail(&mut self, now: Instant, host: &mut L::Host) -> bool {
        if !self.shared.member.has_mail() {
            return false;
        }
        for mail in self.shared.member.take_mail() {
            self.handle_message(now, host, mail);
        }
        self.run_affected(now, host);
        true
    }

    fn handle_message(&mut self, now: Instant, host: &mut L::Host, mail: TargetMail) {
        let shared = &mut self.shared;
        match mail {
            TargetMail::Granted(op) => shared.ready.extend(shared.ops.grant(op)),
            // The end of the turn looks at the tables.
            TargetMail::RangeWanted => {}
            TargetMail::AssociationEnded(association) => {
                // Absent if the association has no connection here.
                shared.controllers.remove(association.cntlid);
                shared.end_io_queues(&association);
            }
            TargetMail::Abort { from, abort } => {
                let aborted = self.abort_command(now, host, abort);
                self.shared.member.send(from, TargetMail::Aborted { abort, aborted });
            }
            TargetMail::Aborted { abort, aborted } => {
                if let Some(controller) = shared.controllers.get_mut(abort.cntlid) {
                    controller.remote_aborts = controller.remote_aborts.saturating_sub(1);
                }
                self.complete_abort(now, host, abort, aborted);
            }
            TargetMail::NamespaceAdded { subsystem, nsid, config, shared } => {
                self.open_namespace(now, host, (subsystem, nsid), &config, shared);
            }
            TargetMail::NamespaceRemoved { subsystem, nsid } => {
                self.detach_namespace(host, subsystem, nsid);
            }
            TargetMail::NamespaceReopened { subsystem, nsid } => {
                self.reopen_namespace(now, host, (subsystem, nsid));
            }
            TargetMail::NamespaceSettled { subsystem, nsid, changed } => {
                if changed {
                    shared.notify_namespace_changed(subsystem, nsid);
                }
            }
            TargetMail::NamespaceClosed(path) => shared.closed_paths.push_back(path),
        }
    }
}

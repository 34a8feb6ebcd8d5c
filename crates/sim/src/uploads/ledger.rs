//! The permitted contents of the paths to which clients upload.
//!
//! A path has one writer. It holds the last upload that was acknowledged, or one whose content was
//! sent completely and that was not answered: the server may complete that later. An upload whose
//! content was not sent completely leaves nothing, and no acknowledged file is ever lost.

use std::collections::{BTreeMap, BTreeSet};

use crate::http::{CheckedResponse, FileRequest, RequestKind};

/// Status in results of every upload that was stored: whether an earlier attempt had stored it
/// already depends on timing.
const STORED: u16 = 201;

#[derive(Debug, Default)]
struct PathRecord {
    /// Version of the last upload that was acknowledged.
    acknowledged: Option<u64>,
    /// Uploads that were sent completely on the present connection, without response.
    open: BTreeSet<u64>,
    /// Uploads that the server may complete, or has completed, without a response.
    uncertain: BTreeSet<u64>,
}

impl PathRecord {
    fn permits(&self, version: Option<u64>) -> bool {
        version == self.acknowledged
            || version.is_some_and(|v| self.open.contains(&v) || self.uncertain.contains(&v))
    }
}

/// Records of all paths, by number of file.
#[derive(Debug, Default)]
pub(crate) struct UploadLedger {
    paths: BTreeMap<usize, PathRecord>,
    /// Old copies of packets may repeat an upload: they may open a connection with a SYN cookie.
    pub(crate) is_replayed: bool,
}

impl UploadLedger {
    /// Notes that the content of an upload was passed to the transport completely.
    pub(crate) fn sent(&mut self, request: &FileRequest) {
        if matches!(&request.want, RequestKind::Put(put) if put.refusal.is_none()) {
            let record = self.paths.entry(request.file).or_default();
            record.open.insert(request.version);
            if self.is_replayed {
                record.uncertain.insert(request.version);
            }
        }
    }

    /// Notes that the connection of a session ended: its uploads that were not answered may be
    /// completed at any time.
    pub(crate) fn connection_ended(&mut self, file: usize) {
        if let Some(record) = self.paths.get_mut(&file) {
            record.uncertain.append(&mut record.open);
        }
    }

    /// Checks a response, and replaces its status by one that does not depend on timing.
    ///
    /// # Errors
    /// The response contradicts an earlier one.
    pub(crate) fn answered(
        &mut self,
        request: &FileRequest,
        answer: &mut CheckedResponse,
    ) -> Result<(), String> {
        match &request.want {
            RequestKind::Put(put) => {
                let record = self.paths.entry(request.file).or_default();
                record.open.remove(&request.version);
                let exists = record.acknowledged.is_some();
                let may_exist = exists || !record.uncertain.is_empty();
                let wrong = |what: &str| Err(format!("{what}: {request:?}, {record:?}"));
                match answer.status {
                    201 if exists => return wrong("201 for a file that exists"),
                    204 if !may_exist => return wrong("204 for a new file"),
                    204 if put.keep => return wrong("a file was replaced that was to be kept"),
                    412 if !may_exist => return wrong("412 for a new file"),
                    201 | 204 => record.acknowledged = Some(request.version),
                    // The disk may have failed after the rename.
                    500 | 503 => {
                        record.uncertain.insert(request.version);
                    }
                    _ => {}
                }
                if matches!(answer.status, 201 | 204) || answer.status == 412 && put.keep {
                    answer.status = STORED;
                }
                Ok(())
            }
            RequestKind::Stored if answer.status == 200 => self.check(request.file, answer.version),
            RequestKind::Stored if answer.status == 404 => self.check(request.file, None),
            _ => Ok(()),
        }
    }

    /// Checks the version that a path has, `None` if there is no file.
    ///
    /// # Errors
    /// The version is not permitted.
    pub(crate) fn check(&self, file: usize, version: Option<u64>) -> Result<(), String> {
        let none = PathRecord::default();
        let record = self.paths.get(&file).unwrap_or(&none);
        if record.permits(version) {
            return Ok(());
        }
        Err(format!("file {file} has version {version:x?}, but {record:x?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::PutRequest;

    fn put(version: u64) -> FileRequest {
        let put = PutRequest {
            size: 9,
            chunk: None,
            keep: false,
            expects: false,
            may_be_full: false,
            refusal: None,
        };
        FileRequest { want: RequestKind::Put(put), file: 1, path: String::from("u1"), version }
    }

    fn answer(ledger: &mut UploadLedger, version: u64, status: u16) -> Result<(), String> {
        let mut answer = CheckedResponse { status, ..CheckedResponse::default() };
        ledger.answered(&put(version), &mut answer)
    }

    #[test]
    fn an_acknowledged_upload_stays_and_an_incomplete_one_leaves_nothing() {
        let mut ledger = UploadLedger::default();
        assert!(ledger.check(1, None).is_ok() && ledger.check(1, Some(5)).is_err());
        ledger.sent(&put(5));
        assert!(ledger.check(1, None).is_ok() && ledger.check(1, Some(5)).is_ok());
        assert!(answer(&mut ledger, 5, 204).is_err(), "there was no file");
        assert!(answer(&mut ledger, 5, 201).is_ok());
        assert!(ledger.check(1, None).is_err(), "it is lost");
        assert!(ledger.check(1, Some(6)).is_err(), "it was not sent completely");
        ledger.sent(&put(6));
        ledger.connection_ended(1);
        assert!(ledger.check(1, Some(5)).is_ok() && ledger.check(1, Some(6)).is_ok());
        ledger.sent(&put(7));
        assert!(answer(&mut ledger, 7, 201).is_err(), "there was a file");
        assert!(answer(&mut ledger, 7, 204).is_ok());
        assert!(ledger.check(1, Some(5)).is_err() && ledger.check(1, Some(7)).is_ok());
        assert!(ledger.check(1, Some(6)).is_ok(), "an upload that ends later replaces it");
    }
}

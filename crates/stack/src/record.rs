//! Recording of a run (`--record`): the operations, events and frames of each queue, which are
//! written as a ladder page when the stack ends.
//!
//! Each device thread has a [`QueueRecorder`] and keeps its last entries; without the option it has
//! none, and nothing is described. If the device is another process, the program's carrier has the
//! recorder, and no frames. The description of an entry has no payload and no keys
//! ([`node::record`]). What applications do is not recorded.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use abi::link::{LinkTxStatus, RxFrame, TxFrame};
use abi::{Event, Op, PacketPool};
use base::Instant;
use cli::Failure;
use io::link::Link;
use ladder::LadderRun;
use node::record::{
    RecordDescription, RecordEntry, RecordLane, describe_event, describe_frame, describe_op,
    describe_tx_frame,
};

/// Entries that a queue keeps: the last ones. The page of one queue then has about 10 MB.
const QUEUE_ENTRIES_MAX: usize = 50_000;

/// The record of all queues.
#[derive(Debug)]
pub(crate) struct RunRecord {
    path: PathBuf,
    /// Open from the start: the process may lose the right to create it.
    file: File,
    source: RecorderSource,
    records: Receiver<QueueRecord>,
}

/// Creates recorders, while the stack runs.
#[derive(Clone, Debug)]
pub(crate) struct RecorderSource(Sender<QueueRecord>);

impl RecorderSource {
    /// Returns a recorder of a queue; there may be several.
    pub(crate) fn recorder(&self, queue: usize) -> QueueRecorder {
        let record = QueueRecord { entries: VecDeque::new(), dropped: 0 };
        QueueRecorder { queue, record, sender: self.0.clone() }
    }
}

/// The entries of one queue.
#[derive(Debug)]
struct QueueRecord {
    entries: VecDeque<RecordEntry>,
    /// Number of older entries that were not kept.
    dropped: u64,
}

impl RunRecord {
    /// Creates a record, and the empty file that it is written to.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| cannot_write(path, &error))?;
        let (sender, records) = channel();
        Ok(Self { path: path.to_owned(), file, source: RecorderSource(sender), records })
    }

    /// Returns the source of recorders.
    pub(crate) const fn source(&self) -> &RecorderSource {
        &self.source
    }

    /// Writes the page. To be called when the device threads have ended.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(crate) fn write(mut self) -> Result<(), Failure> {
        let (mut entries, mut dropped) = (Vec::new(), 0);
        for record in self.records.try_iter() {
            entries.extend(record.entries);
            dropped += record.dropped;
        }
        let queues = entries.iter().map(|entry: &RecordEntry| entry.node + 1).max().unwrap_or(1);
        let names: Vec<_> = (0..queues).map(|queue| format!("queue {queue}")).collect();
        // Stable, so that the entries of a queue stay in their order.
        entries.sort_by_key(|entry: &RecordEntry| entry.at);
        let title = match dropped {
            0 => "Recorded run".to_owned(),
            count => format!("The last part of a run, after {count} entries"),
        };
        let run =
            LadderRun { title: &title, node_names: &names, entries: &entries, violation: None };
        let written = self.file.write_all(run.page().as_bytes());
        written.map_err(|error| cannot_write(&self.path, &error))
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::NoInput(format!("cannot write {}: {error}", path.display()))
}

/// Recorder of a queue. It passes its entries on when it is dropped.
#[derive(Debug)]
pub(crate) struct QueueRecorder {
    queue: usize,
    record: QueueRecord,
    sender: Sender<QueueRecord>,
}

impl QueueRecorder {
    /// Adds an entry.
    pub(crate) fn add(&mut self, at: Instant, lane: RecordLane, item: RecordDescription) {
        let QueueRecord { entries, dropped } = &mut self.record;
        if entries.len() >= QUEUE_ENTRIES_MAX {
            entries.pop_front();
            *dropped += 1;
        }
        entries.push_back(RecordEntry { at, node: self.queue, lane, item });
    }
}

impl Drop for QueueRecorder {
    fn drop(&mut self) {
        let empty = QueueRecord { entries: VecDeque::new(), dropped: 0 };
        // Without a receiver the stack has ended without writing the page.
        let _ = self.sender.send(std::mem::replace(&mut self.record, empty));
    }
}

/// Recorder of one queue's frames, operations and events, or of nothing. It passes them on to and
/// from the link and the carrier.
#[derive(Debug)]
pub(crate) struct RunRecorder(pub(crate) Option<QueueRecorder>);

impl RunRecorder {
    /// Receives a frame from a link.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        link: &mut dyn Link,
        pool: &mut PacketPool,
    ) -> Option<RxFrame> {
        let frame = link.receive(now, pool);
        if let (Some(recorder), Some(frame)) = (&mut self.0, &frame) {
            let item = describe_frame(frame.packet.as_slice(), false);
            recorder.add(now, RecordLane::Arrived, item);
        }
        frame
    }

    /// Sends a frame to a link.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        link: &mut dyn Link,
        frame: &mut TxFrame,
    ) -> LinkTxStatus {
        let item = self.0.is_some().then(|| describe_tx_frame(frame));
        let status = link.transmit(now, frame);
        if let (Some(recorder), Some(item), LinkTxStatus::Sent) = (&mut self.0, item, status) {
            recorder.add(now, RecordLane::Sent, item);
        }
        status
    }

    /// Records an operation, if there is one, and returns it.
    #[inline]
    pub(crate) fn record_op(&mut self, at: Instant, op: Option<Op>) -> Option<Op> {
        op.inspect(|op| self.observe_op(|| at, op))
    }

    /// Records an operation that passes. `now` is called only if the run is recorded.
    #[inline]
    pub(crate) fn observe_op(&mut self, now: impl FnOnce() -> Instant, op: &Op) {
        if let Some(recorder) = &mut self.0 {
            recorder.add(now(), RecordLane::Operation, describe_op(op));
        }
    }

    /// Records an event that passes, as [`Self::observe_op`].
    #[inline]
    pub(crate) fn observe_event(&mut self, now: impl FnOnce() -> Instant, event: &Event) {
        if let Some(recorder) = &mut self.0 {
            recorder.add(now(), RecordLane::Event, describe_event(event));
        }
    }

    /// Describes an event that is to be sent, if the run is recorded.
    #[inline]
    pub(crate) fn describe_event(&self, event: &Event) -> Option<RecordDescription> {
        self.0.is_some().then(|| describe_event(event))
    }

    /// Records an event that was sent, with its description.
    #[inline]
    pub(crate) fn record_event(&mut self, at: Instant, item: Option<RecordDescription>) {
        if let (Some(recorder), Some(item)) = (&mut self.0, item) {
            recorder.add(at, RecordLane::Event, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Duration;
    use node::record::RecordSubject;

    use super::*;

    fn add(recorder: &mut QueueRecorder, ms: u64, detail: &str) {
        let item = RecordDescription {
            name: "Transmit",
            subject: RecordSubject::None,
            detail: detail.to_owned(),
            is_refusal: false,
        };
        recorder.add(Instant::ZERO + Duration::from_millis(ms), RecordLane::Operation, item);
    }

    #[test]
    fn entries_of_all_queues_are_in_order_and_bounded() {
        let path = std::env::temp_dir().join(format!("outboard-record-{}", std::process::id()));
        let record = RunRecord::create(&path).unwrap();
        let (mut first, mut second) = (record.source().recorder(0), record.source().recorder(1));
        for n in 0..QUEUE_ENTRIES_MAX + 2 {
            add(&mut first, 5, if n < 2 { "too old" } else { "kept" });
        }
        add(&mut second, 4, "before");
        add(&mut second, 6, "after");
        drop((first, second));
        record.write().unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(page.contains("after 2 entries") && !page.contains("too old"));
        let [before, kept, after] = ["before", "kept", "after\""].map(|text| page.find(text));
        assert!(before.unwrap() < kept.unwrap() && kept.unwrap() < after.unwrap());
        assert!(page.contains("queue 1"));
    }

    #[test]
    fn a_file_that_cannot_be_created_is_an_error_at_the_start() {
        let error = RunRecord::create(Path::new("/nowhere/record.html")).unwrap_err();
        assert!(error.to_string().starts_with("cannot write /nowhere/record.html: "));
    }
}

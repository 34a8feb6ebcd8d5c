//! What the test does as the host's application, device and disk.

use abi::disk::{DiskCompletion, DiskFile, DiskRequest};
use abi::{Event, FileFault, FileId, FileStat, FlowId, Op, TransmitDone, TransmitOutcome};
use base::Duration;
use bytes::Bytes;
use host::SocketOption;

use super::{DeviceFile, Peer, big_file};
use crate::decode;

impl Peer {
    /// Writes bytes; all of them have to fit.
    pub fn app_write(&mut self, bytes: &[u8]) {
        let taken = self.host.send(self.now, self.socket(), Bytes::copy_from_slice(bytes));
        assert_eq!(taken, Ok(bytes.len()), "the send buffer has room");
        self.pump();
    }

    /// Writes `len` zero bytes.
    pub fn app_write_zeros(&mut self, len: usize) {
        self.app_write(&vec![0; len]);
    }

    /// Appends `len` bytes of a file, in order from its beginning; opens it the first time.
    pub fn app_file(&mut self, len: u64) {
        self.queue_file(len);
        self.pump();
    }

    /// As [`Self::app_file`], without letting the host send yet.
    pub fn queue_file(&mut self, len: u64) {
        let (file, offset) = match self.file {
            Some(open) => open,
            None => (self.app_open(), 0),
        };
        self.file = Some((file, offset + len));
        self.host
            .offload_write(self.now, self.socket(), file, offset, len)
            .expect("the file has the range");
    }

    /// Writes bytes without letting the host send yet.
    pub fn queue(&mut self, bytes: &[u8]) {
        let taken = self.host.send(self.now, self.socket(), Bytes::copy_from_slice(bytes));
        assert_eq!(taken, Ok(bytes.len()), "the send buffer has room");
    }

    /// Opens a file.
    pub fn app_open(&mut self) -> FileId {
        let file = self.host.offload_open("big").expect("there is room for a file");
        self.pump();
        file
    }

    /// Closes the file that [`Self::app_file`] opened.
    pub fn app_close_file(&mut self) {
        let (file, _) = self.file.take().expect("a file is open");
        self.host.offload_close(file);
        self.pump();
    }

    /// Reads everything that has arrived.
    pub fn app_read(&mut self) -> Vec<u8> {
        let mut out = vec![0; 4 << 20];
        let read = self.host.read(self.socket(), &mut out);
        out.truncate(read);
        self.pump();
        out
    }

    /// Closes the sending direction.
    pub fn app_shutdown(&mut self) {
        self.host.shutdown(self.now, self.socket());
        self.pump();
    }

    /// Lets go of the socket.
    pub fn app_close(&mut self) {
        self.host.close(self.now, self.socket());
        self.pump();
    }

    /// Lets go of the socket; up to so many bytes that still come are discarded.
    pub fn app_close_lingering(&mut self, bytes_max: u32) {
        self.host.close_lingering(self.now, self.socket(), bytes_max);
        self.pump();
    }

    /// Resets the connection.
    pub fn app_abort(&mut self) {
        self.host.abort(self.now, self.socket());
        self.pump();
    }

    /// Sets an option.
    pub fn app_option(&mut self, option: SocketOption) {
        self.host.set_option(self.now, self.socket(), option);
        self.pump();
    }

    /// What the device answers to opens from now on.
    pub const fn set_device_file(&mut self, result: Result<FileStat, FileFault>) {
        self.device_file = DeviceFile { result };
    }

    /// The transmit that was sent last and asked for an echo has left, `delay_ms` after it was
    /// handed over.
    pub fn echo(&mut self, delay_ms: u64) {
        let (flow, tag) = self.last_tag.take().expect("a transmit asked for an echo");
        self.done(flow, tag, delay_ms, TransmitOutcome::Sent);
    }

    /// That transmit was dropped.
    pub fn drop_transmit(&mut self, fault: FileFault) {
        let (flow, tag) = self.last_tag.take().expect("a transmit asked for an echo");
        self.done(flow, tag, 0, TransmitOutcome::Dropped(fault));
    }

    /// Echoes everything that waits to be expected, without delay.
    pub fn echo_all(&mut self) {
        let tags: Vec<_> = self.outputs.iter().filter_map(|o| Some((o.flow, o.tag?))).collect();
        for (flow, tag) in tags {
            self.done(flow, tag, 0, TransmitOutcome::Sent);
        }
    }

    fn done(&mut self, flow: FlowId, tag: u32, delay_ms: u64, outcome: TransmitOutcome) {
        let delay = Duration::from_millis(delay_ms);
        self.event(Event::TransmitDone(TransmitDone { flow, tag, delay, outcome }));
    }

    /// Bytes that the device was told to forget by `FileAck`; takes those operations.
    pub fn acked_file_bytes(&mut self) -> u64 {
        let mut sum = 0;
        self.file_ops.retain(|op| match op {
            Op::FileAck(extent) => {
                sum += u64::from(extent.len);
                false
            }
            _ => true,
        });
        sum
    }

    /// Whether the device was told to close a file; takes the operation.
    pub fn took_file_close(&mut self) -> bool {
        let before = self.file_ops.len();
        self.file_ops.retain(|op| !matches!(op, Op::FileClose { .. }));
        self.file_ops.len() < before
    }

    /// The host's own disk answers everything that it was asked, from a file with this metadata.
    pub fn serve_disk(&mut self, stat: FileStat) {
        while let Some(request) = self.disk.pop_front() {
            let completion = match request {
                DiskRequest::Open { id, .. } => {
                    DiskCompletion::Opened { id, result: Ok((DiskFile(1), stat)) }
                }
                DiskRequest::Read { id, offset, mut buf, .. } => {
                    let len = u32::try_from(stat.size.saturating_sub(offset)).unwrap_or(u32::MAX);
                    let len = len.min(u32::try_from(buf.len()).unwrap_or(u32::MAX));
                    let bytes = decode::file_bytes(offset, len);
                    buf.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes);
                    DiskCompletion::Read { id, buf, result: Ok((len, stat)) }
                }
                DiskRequest::Write { id, buf, .. } => {
                    DiskCompletion::Written { id, buf, result: Ok(()) }
                }
                DiskRequest::Flush { id, .. } => DiskCompletion::Flushed { id, result: Ok(()) },
                DiskRequest::Zero { id, .. } => DiskCompletion::Zeroed { id, result: Ok(()) },
                DiskRequest::Close { .. } => {
                    self.disk_closes += 1;
                    continue;
                }
            };
            self.host.handle_disk(self.now, completion);
            self.pump();
        }
    }

    /// As the big file that opens answer with by default.
    #[must_use]
    pub fn big_file() -> FileStat {
        big_file()
    }
}

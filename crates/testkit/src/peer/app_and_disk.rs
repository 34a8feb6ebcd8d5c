//! Actions of the test as the host's application, its device and its disk.

use abi::disk::{DiskCompletion, DiskFile, DiskRequest};
use abi::{Event, FileFault, FileId, FileStat, FlowId, Op, TransmitDone, TransmitOutcome};
use base::Duration;
use bytes::Bytes;
use host::SocketOption;

use super::{DeviceOpenResult, ScriptedTcpPeer, big_file};
use crate::packetize;

impl ScriptedTcpPeer {
    /// Writes bytes to the connection; panics if the send buffer has no room for all of them.
    pub fn app_write(&mut self, bytes: &[u8]) {
        let taken = self.host.send(self.now, self.socket(), Bytes::copy_from_slice(bytes));
        assert_eq!(taken, Ok(bytes.len()), "the send buffer has room");
        self.pump();
    }

    /// Writes `len` zero bytes.
    pub fn app_write_zeros(&mut self, len: usize) {
        self.app_write(&vec![0; len]);
    }

    /// Appends the next `len` bytes of the test file to the stream. The first call opens the file.
    pub fn app_file(&mut self, len: u64) {
        self.app_file_unpumped(len);
        self.pump();
    }

    /// As [`Self::app_file`], but runs the host only to open the file.
    pub fn app_file_unpumped(&mut self, len: u64) {
        let (file, offset) = match self.file {
            Some(open) => open,
            None => (self.app_open(), 0),
        };
        self.file = Some((file, offset + len));
        self.host
            .offload_write(self.now, self.socket(), file, offset, len)
            .expect("the file has the range");
    }

    /// As [`Self::app_write`], but without running the host.
    pub fn app_write_unpumped(&mut self, bytes: &[u8]) {
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

    /// Reads everything that has arrived, at most 4 MiB.
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

    /// Closes the socket.
    pub fn app_close(&mut self) {
        self.host.close(self.now, self.socket());
        self.pump();
    }

    /// Closes the socket; up to `bytes_max` bytes that still arrive are discarded.
    pub fn app_close_lingering(&mut self, bytes_max: u32) {
        self.host.close_lingering(self.now, self.socket(), bytes_max);
        self.pump();
    }

    /// Resets the connection.
    pub fn app_abort(&mut self) {
        self.host.abort(self.now, self.socket());
        self.pump();
    }

    /// Sets a socket option.
    pub fn app_option(&mut self, option: SocketOption) {
        self.host.set_option(self.now, self.socket(), option);
        self.pump();
    }

    /// Sets the device's answer to subsequent opens.
    pub const fn set_device_file(&mut self, result: Result<FileStat, FileFault>) {
        self.device_file = DeviceOpenResult { result };
    }

    /// Completes the latest transmit that asked for an echo: it left the device `delay_ms`
    /// milliseconds after it was handed over.
    pub fn echo_last_transmit(&mut self, delay_ms: u64) {
        let (flow, tag) = self.last_tag.take().expect("a transmit asked for an echo");
        self.complete_transmit(flow, tag, delay_ms, TransmitOutcome::Sent);
    }

    /// Completes the latest transmit that asked for an echo as dropped because of `fault`.
    pub fn drop_last_transmit(&mut self, fault: FileFault) {
        let (flow, tag) = self.last_tag.take().expect("a transmit asked for an echo");
        self.complete_transmit(flow, tag, 0, TransmitOutcome::Dropped(fault));
    }

    /// Completes all transmits that no expectation has taken and that asked for an echo, without
    /// delay.
    pub fn echo_all(&mut self) {
        let tags: Vec<_> = self.sent.iter().filter_map(|o| Some((o.flow, o.tag?))).collect();
        for (flow, tag) in tags {
            self.complete_transmit(flow, tag, 0, TransmitOutcome::Sent);
        }
    }

    fn complete_transmit(
        &mut self,
        flow: FlowId,
        tag: u32,
        delay_ms: u64,
        outcome: TransmitOutcome,
    ) {
        let delay = Duration::from_millis(delay_ms);
        self.handle_device_event(Event::TransmitDone(TransmitDone { flow, tag, delay, outcome }));
    }

    /// Returns the number of bytes that the host released by `FileAck`; removes those operations.
    pub fn take_acked_file_bytes(&mut self) -> u64 {
        let mut sum = 0;
        self.other_ops.retain(|op| match op {
            Op::FileAck(extent) => {
                sum += u64::from(extent.len);
                false
            }
            _ => true,
        });
        sum
    }

    /// Returns whether the device was asked to close a file; removes those operations.
    pub fn take_file_close(&mut self) -> bool {
        let before = self.other_ops.len();
        self.other_ops.retain(|op| !matches!(op, Op::FileClose { .. }));
        self.other_ops.len() < before
    }

    /// Completes all pending requests of the host's own disk, from a file with metadata `stat`.
    pub fn serve_disk(&mut self, stat: FileStat) {
        while let Some(request) = self.disk.pop_front() {
            let completion = match request {
                DiskRequest::Open { id, .. } => {
                    DiskCompletion::Opened { id, result: Ok((DiskFile(1), stat)) }
                }
                DiskRequest::Read { id, offset, mut buf, .. } => {
                    let len = u32::try_from(stat.size.saturating_sub(offset)).unwrap_or(u32::MAX);
                    let len = len.min(u32::try_from(buf.len()).unwrap_or(u32::MAX));
                    let bytes = packetize::file_bytes(offset, len);
                    buf.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes);
                    DiskCompletion::Read { id, buf, result: Ok((len, stat)) }
                }
                DiskRequest::Write { id, buf, .. } => {
                    DiskCompletion::Written { id, buf, result: Ok(()) }
                }
                DiskRequest::Flush { id, .. } => DiskCompletion::Flushed { id, result: Ok(()) },
                DiskRequest::Publish { id, .. } => {
                    DiskCompletion::Published { id, result: Ok(None) }
                }
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

    /// Returns the metadata with which opens succeed by default: a regular file of 1 GiB.
    #[must_use]
    pub fn default_file_stat() -> FileStat {
        big_file()
    }
}

//! Open files of a disk, by the names that the requester got.
//!
//! A name consists of a slot's index and its generation, so that a name from before a close is
//! detected. A request in flight holds a reference to its file, so a file is closed only after its
//! last request.

use std::sync::Arc;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::disk::{DiskAccess, DiskFile};
use abi::{FileFault, Refusal};

use super::root::OpenFile;

/// Bits of a name that hold the slot's index; the others hold its generation.
const SLOT_BITS: u32 = 16;
/// Maximum number of files open at a time.
const FILES_MAX: usize = 1 << SLOT_BITS;

#[derive(Debug, Default)]
struct FileSlot {
    generation: u16,
    file: Option<Arc<OpenFile>>,
}

/// Table of open files.
#[derive(Debug, Default)]
pub(super) struct FileTable {
    slots: Vec<FileSlot>,
    free: Vec<u16>,
}

impl FileTable {
    /// Inserts a file and returns its name.
    pub(super) fn insert(&mut self, file: OpenFile) -> Result<DiskFile, FileFault> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() == FILES_MAX => {
                return Err(FileFault::Refused(Refusal::TableFull));
            }
            None => {
                self.slots.push(FileSlot::default());
                u16::try_from(self.slots.len() - 1).map_err(|_| FileFault::BadExtent)?
            }
        };
        let slot = &mut self.slots[usize::from(index)];
        slot.file = Some(Arc::new(file));
        Ok(DiskFile((u32::from(slot.generation) << SLOT_BITS) | u32::from(index)))
    }

    /// Removes a file; returns whether the name was valid.
    pub(super) fn remove(&mut self, name: DiskFile) -> bool {
        let (index, generation) = parts(name);
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return false };
        if slot.generation != generation || slot.file.take().is_none() {
            return false;
        }
        slot.generation = generation.wrapping_add(1);
        self.free.push(index);
        true
    }

    /// Returns the file for a read, if file and range permit it.
    pub(super) fn for_read(
        &self,
        name: DiskFile,
        offset: u64,
        buf: &AlignedBuf,
    ) -> Result<Arc<OpenFile>, FileFault> {
        let file = self.find(name)?;
        let end = offset.checked_add(buf.len() as u64).and_then(|end| i64::try_from(end).ok());
        let page_aligned = offset % PAGE_BYTES as u64 == 0;
        if !file.access.accepts(file.kind) || end.is_none() || !page_aligned {
            return Err(FileFault::BadExtent);
        }
        // The number of bytes read is a u32.
        if u32::try_from(buf.len()).is_err() {
            return Err(FileFault::BadExtent);
        }
        Ok(Arc::clone(file))
    }

    /// Returns the file for a write or a zeroing, if file and range permit it: within the file's
    /// size at its open, unless it is an upload.
    pub(super) fn for_write(
        &self,
        name: DiskFile,
        offset: u64,
        len: u64,
    ) -> Result<Arc<OpenFile>, FileFault> {
        let file = self.for_flush(name)?;
        let end = offset.checked_add(len).ok_or(FileFault::BadExtent)?;
        let in_file = end <= file.size || file.access == DiskAccess::Upload;
        if len == 0 || !in_file || i64::try_from(end).is_err() {
            return Err(FileFault::BadExtent);
        }
        Ok(file)
    }

    /// Returns the file for a flush, if it was opened for writing.
    pub(super) fn for_flush(&self, name: DiskFile) -> Result<Arc<OpenFile>, FileFault> {
        let file = self.find(name)?;
        if !file.access.writes() || !file.access.accepts(file.kind) {
            return Err(FileFault::BadExtent);
        }
        Ok(Arc::clone(file))
    }

    /// Returns the file for a publication, if it is an upload.
    pub(super) fn for_publish(&self, name: DiskFile) -> Result<Arc<OpenFile>, FileFault> {
        let file = self.find(name)?;
        match file.upload {
            Some(_) => Ok(Arc::clone(file)),
            None => Err(FileFault::BadExtent),
        }
    }

    /// Returns the file of a name.
    pub(super) fn get(&self, name: DiskFile) -> Option<Arc<OpenFile>> {
        self.find(name).ok().cloned()
    }

    fn find(&self, name: DiskFile) -> Result<&Arc<OpenFile>, FileFault> {
        let (index, generation) = parts(name);
        let slot = self.slots.get(usize::from(index)).filter(|s| s.generation == generation);
        slot.and_then(|s| s.file.as_ref()).ok_or(FileFault::BadExtent)
    }
}

/// Returns the bytes to write, if the buffer is long enough.
pub(super) fn bytes_to_write(buf: &AlignedBuf, len: u32) -> Result<&[u8], FileFault> {
    buf.as_slice().get(..len as usize).ok_or(FileFault::BadExtent)
}

const fn parts(name: DiskFile) -> (u16, u16) {
    let [a, b, c, d] = name.0.to_be_bytes();
    (u16::from_be_bytes([c, d]), u16::from_be_bytes([a, b]))
}

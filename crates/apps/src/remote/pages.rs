//! The metadata of a volume in memory, in pages that know how old they are.
//!
//! Called by [`super::volume`] and the operations. A page has the content of the namespace at some
//! time not before its `since`, which is when its read was started. An operation needs pages that
//! are not older than a time of its choice: it works on all that are present, the old ones too, and
//! the pages to fetch are collected ([`PageView`]). Its result counts only if there are none.

use std::collections::{BTreeMap, VecDeque};

use base::Instant;

use super::OperationId;
use crate::ext4::{Ext4Metadata, Ext4Stop};

/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = abi::aligned::PAGE_BYTES;

/// A page, or the wait for it.
#[derive(Debug, Default)]
struct MetadataPage {
    content: Option<(Box<[u8]>, Instant)>,
    /// Start of the read in progress.
    fetching: Option<Instant>,
    /// Operations to run when the read has ended.
    waiters: Vec<OperationId>,
    used: bool,
}

/// The pages of a volume.
#[derive(Debug)]
pub(super) struct MetadataPages {
    pages: BTreeMap<u64, MetadataPage>,
    /// The order in which pages are considered for eviction.
    clock: VecDeque<u64>,
    pages_max: usize,
}

impl MetadataPages {
    pub(super) const fn new(pages_max: usize) -> Self {
        Self { pages: BTreeMap::new(), clock: VecDeque::new(), pages_max }
    }

    /// Returns the number of pages.
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns the number of pages above which pages are evicted.
    pub(super) const fn max(&self) -> usize {
        self.pages_max
    }

    /// Makes `waiter` wait for a page. Returns whether its read has to be started.
    pub(super) fn wait(&mut self, now: Instant, page: u64, waiter: OperationId) -> bool {
        let entry = self.pages.entry(page).or_insert_with(|| {
            self.clock.push_back(page);
            MetadataPage::default()
        });
        entry.waiters.push(waiter);
        let starts = entry.fetching.is_none();
        if starts {
            entry.fetching = Some(now);
        }
        starts
    }

    /// Stores a page that was read, or notes that the read failed. Returns the operations that
    /// waited for it.
    pub(super) fn fetched(&mut self, page: u64, content: Option<&[u8]>) -> Vec<OperationId> {
        let Some(entry) = self.pages.get_mut(&page) else { return Vec::new() };
        let since = entry.fetching.take();
        if let (Some(content), Some(since)) = (content, since) {
            entry.content = Some((content.into(), since));
        }
        let waiters = core::mem::take(&mut entry.waiters);
        self.evict(page);
        waiters
    }

    /// Notes that the reads in progress have not been executed before `now`: the association was
    /// established now.
    pub(super) fn restart_reads(&mut self, now: Instant) {
        for page in self.pages.values_mut().filter(|page| page.fetching.is_some()) {
            page.fetching = Some(now);
        }
    }

    /// Evicts pages that were not used since they were last considered, but not `fetched`, which
    /// its waiters are about to use.
    fn evict(&mut self, fetched: u64) {
        // Two rounds suffice, unless all pages are being fetched.
        for _ in 0..self.clock.len() * 2 {
            if self.pages.len() <= self.pages_max {
                return;
            }
            let Some(page) = self.clock.pop_front() else { return };
            let Some(entry) = self.pages.get_mut(&page) else { continue };
            let is_used = core::mem::take(&mut entry.used);
            let is_kept = is_used || entry.fetching.is_some() || page == fetched;
            if is_kept {
                self.clock.push_back(page);
            } else {
                self.pages.remove(&page);
            }
        }
    }
}

/// The pages of a volume for one operation.
pub(super) struct PageView<'a> {
    pages: &'a mut MetadataPages,
    /// Pages from before this time are too old.
    pub(super) not_before: Instant,
    /// Pages that are absent or too old.
    pub(super) wanted: Vec<u64>,
    /// Start of the oldest read that the result depends on.
    pub(super) since: Instant,
}

impl<'a> PageView<'a> {
    pub(super) const fn new(pages: &'a mut MetadataPages, not_before: Instant) -> Self {
        Self { pages, not_before, wanted: Vec::new(), since: Instant::FAR_FUTURE }
    }

    fn page(&mut self, number: u64) -> Option<&[u8]> {
        let entry = self.pages.pages.get_mut(&number);
        let since = entry.as_ref().and_then(|e| e.content.as_ref()).map(|(_, since)| *since);
        if since.is_none_or(|since| since < self.not_before) && !self.wanted.contains(&number) {
            self.wanted.push(number);
        }
        let entry = entry?;
        entry.used = true;
        let (content, since) = entry.content.as_ref()?;
        self.since = self.since.min(*since);
        Some(content)
    }
}

impl Ext4Metadata for PageView<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Ext4Stop> {
        let (mut at, mut rest, mut is_missing) = (offset, buf, false);
        while !rest.is_empty() {
            let page = PAGE_BYTES as u64;
            let skip = usize::try_from(at % page).unwrap_or(0);
            let here = rest.len().min(PAGE_BYTES - skip);
            let (part, after) = rest.split_at_mut(here);
            match self.page(at / page).and_then(|content| content.get(skip..skip + here)) {
                Some(content) => part.copy_from_slice(content),
                None => is_missing = true,
            }
            (at, rest) = (at + here as u64, after);
        }
        if is_missing { Err(Ext4Stop::Missing) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    fn read(pages: &mut MetadataPages, not_before: Instant, offset: u64) -> (bool, Vec<u64>) {
        let mut view = PageView::new(pages, not_before);
        let mut buf = [0; 8];
        let is_read = view.read(offset, &mut buf).is_ok();
        (is_read, view.wanted)
    }

    #[test]
    fn old_pages_are_shown_and_wanted_again() {
        let mut pages = MetadataPages::new(10);
        assert_eq!(read(&mut pages, at(0), 4092), (false, vec![0, 1]));
        assert!(pages.wait(at(5), 0, 7) && !pages.wait(at(6), 0, 8) && pages.wait(at(6), 1, 8));
        assert_eq!(pages.fetched(0, Some(&[1; PAGE_BYTES])), [7, 8]);
        assert_eq!(read(&mut pages, at(0), 4092), (false, vec![1]));
        assert_eq!(pages.fetched(1, Some(&[2; PAGE_BYTES])), [8]);
        assert_eq!(read(&mut pages, at(5), 4092), (true, vec![]));
        assert_eq!(read(&mut pages, at(6), 4092), (true, vec![0]), "page 0 is as of 5 ms");
    }

    #[test]
    fn pages_are_bounded_and_used_ones_stay() {
        let mut pages = MetadataPages::new(3);
        for page in 0..100 {
            pages.wait(at(1), page, 1);
            pages.fetched(page, Some(&[0; PAGE_BYTES]));
            assert!(read(&mut pages, at(0), 0).0, "page 0 is used all the time");
        }
        assert_eq!((pages.pages.len(), pages.clock.len()), (3, 3));
    }
}

//! The plan of a download: the ranges that are requested, and the decision about each head.
//!
//! Called by [`super`]. The first request is answered before others are sent. Its response tells
//! whether the object can be received in parts; then the rest is divided. Requests for ranges carry
//! If-Range, so that no part of another version of the object is ever accepted (RFC 9110 section
//! 13.1.5).

use core::ops::Range;
use std::collections::VecDeque;

use super::error::GetError;
use super::response::ResponseHead;

/// Minimum number of bytes of a part. Shorter parts cost more in connections than they save.
const PART_BYTES_MIN: u64 = 1 << 20;

/// State of a download that was interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    /// Validator of the object: a strong entity tag or a date.
    pub validator: String,
    /// Length of the object in bytes.
    pub length: u64,
    /// Ranges that were not received, in ascending order; at least one, none of them empty.
    pub missing: Vec<Range<u64>>,
}

/// A request of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartRequest {
    /// First byte.
    pub(super) start: u64,
    /// Byte behind the last; `None` if the end of the object is not known.
    pub(super) end: Option<u64>,
    /// Value of If-Range of a request for a range; `None` for the whole object.
    pub(super) if_range: Option<String>,
}

impl PartRequest {
    /// Returns the fields Range and If-Range of a request for a range.
    pub(super) fn range_fields(&self) -> Option<(String, &str)> {
        let last = self.end.map_or_else(String::new, |end| (end.saturating_sub(1)).to_string());
        let validator = self.if_range.as_deref()?;
        Some((format!("bytes={}-{last}", self.start), validator))
    }
}

/// Decision about the first head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FirstPart {
    /// First byte and, if known, the end of the part.
    pub(super) start: u64,
    pub(super) end: Option<u64>,
    /// True if the download continues at its [`ResumePoint`]; false if it begins with the first
    /// byte.
    pub(super) resumed: bool,
}

/// The plan of one download.
#[derive(Clone, Debug)]
pub(super) struct DownloadPlan {
    parts_max: usize,
    resume: Option<ResumePoint>,
    /// Length and validator of the object, after the first head.
    pub(super) length: Option<u64>,
    pub(super) validator: Option<String>,
    /// Ranges that were not requested yet.
    pending: VecDeque<Range<u64>>,
}

impl DownloadPlan {
    pub(super) fn new(parts_max: usize, resume: Option<ResumePoint>) -> Self {
        let mut pending = VecDeque::new();
        if let Some(resume) = &resume {
            pending = split(resume.missing.clone(), parts_max).into();
        }
        Self { parts_max, resume, length: None, validator: None, pending }
    }

    /// Returns the first request.
    pub(super) fn first_request(&mut self) -> PartRequest {
        match (&self.resume, self.pending.pop_front()) {
            (Some(resume), Some(range)) => PartRequest {
                start: range.start,
                end: Some(range.end),
                if_range: Some(resume.validator.clone()),
            },
            _ => PartRequest { start: 0, end: None, if_range: None },
        }
    }

    /// Returns the next request, after the first head was accepted.
    pub(super) fn next_request(&mut self) -> Option<PartRequest> {
        // Without a validator, nothing is divided.
        let if_range = Some(self.validator.clone()?);
        let range = self.pending.pop_front()?;
        Some(PartRequest { start: range.start, end: Some(range.end), if_range })
    }

    /// Decides about the head of the response to the first request.
    ///
    /// # Errors
    /// [`GetError`] if it is not the object, or another range of it than the requested one.
    pub(super) fn handle_first_head(
        &mut self,
        request: &PartRequest,
        head: &ResponseHead,
    ) -> Result<FirstPart, GetError> {
        check_status(head)?;
        if let (Some(resume), 206) = (self.resume.take(), head.status) {
            check_range(request, head, Some(resume.length))?;
            check_validator(head, &resume.validator)?;
            self.length = Some(resume.length);
            self.validator = Some(resume.validator);
            return Ok(FirstPart { start: request.start, end: request.end, resumed: true });
        }
        if head.status == 206 {
            return Err(GetError::WrongRange);
        }
        // The whole object, because there was nothing to continue, or it has changed.
        self.length = if head.is_chunked { None } else { head.content_length };
        self.validator = head.validator.clone();
        self.pending.clear();
        let mut end = self.length;
        if let (Some(length), true) = (self.length, self.validator.is_some() && head.accepts_ranges)
        {
            self.pending =
                split(Vec::from([Range { start: 0, end: length }]), self.parts_max).into();
            end = self.pending.pop_front().map_or(Some(0), |first| Some(first.end));
        }
        Ok(FirstPart { start: 0, end, resumed: false })
    }

    /// Decides about the head of the response to a later request.
    ///
    /// # Errors
    /// [`GetError`] if it is not the requested range of the same object.
    pub(super) fn handle_later_head(
        &self,
        request: &PartRequest,
        head: &ResponseHead,
    ) -> Result<(), GetError> {
        check_status(head)?;
        let validator = self.validator.as_deref().unwrap_or_default();
        if head.status != 206 {
            check_validator(head, validator)?;
            return Err(GetError::RangesIgnored);
        }
        check_range(request, head, self.length)?;
        check_validator(head, validator)
    }
}

fn check_status(head: &ResponseHead) -> Result<(), GetError> {
    match head.status {
        200..300 => Ok(()),
        300..400 => Err(GetError::Redirected { location: head.location.clone() }),
        status => Err(GetError::Status(status)),
    }
}

/// Checks that a response with status 206 has the requested range.
fn check_range(
    request: &PartRequest,
    head: &ResponseHead,
    length: Option<u64>,
) -> Result<(), GetError> {
    let range = head.content_range.as_ref().ok_or(GetError::WrongRange)?;
    if range.total.is_some() && range.total != length {
        return Err(GetError::Changed);
    }
    let is_it = range.bytes.start == request.start && Some(range.bytes.end) == request.end;
    let bytes = range.bytes.end - range.bytes.start;
    let agrees = head.content_length.is_none_or(|length| length == bytes);
    if is_it && agrees { Ok(()) } else { Err(GetError::WrongRange) }
}

/// Checks that a response, if it has a validator, is one of the same version of the object.
fn check_validator(head: &ResponseHead, validator: &str) -> Result<(), GetError> {
    match &head.validator {
        // A server may omit the date from which a weak validator becomes a strong one.
        Some(other) if other.starts_with('"') == validator.starts_with('"') => {
            if other == validator { Ok(()) } else { Err(GetError::Changed) }
        }
        _ => Ok(()),
    }
}

/// Divides the longest ranges until there are `parts_max`, or all are short.
fn split(mut ranges: Vec<Range<u64>>, parts_max: usize) -> Vec<Range<u64>> {
    while ranges.len() < parts_max {
        let longest = ranges.iter().enumerate().max_by_key(|(_, r)| r.end - r.start);
        let Some((at, range)) = longest.map(|(at, range)| (at, range.clone())) else { break };
        // The last of equal parts, so that all become equally long.
        let shares = (parts_max - ranges.len() + 1) as u64;
        let bytes = (range.end - range.start).div_ceil(shares).max(PART_BYTES_MIN);
        if range.end - range.start < bytes + PART_BYTES_MIN {
            break;
        }
        let middle = range.start + bytes;
        ranges.splice(at..=at, [range.start..middle, middle..range.end]);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::get::response::ContentRange;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn whole(length: u64) -> ResponseHead {
        ResponseHead {
            status: 200,
            content_length: Some(length),
            accepts_ranges: true,
            validator: Some("\"a\"".to_owned()),
            ..ResponseHead::default()
        }
    }

    fn partial(bytes: Range<u64>, total: u64) -> ResponseHead {
        ResponseHead {
            status: 206,
            content_length: Some(bytes.end - bytes.start),
            content_range: Some(ContentRange { bytes, total: Some(total) }),
            ..whole(0)
        }
    }

    fn resume() -> ResumePoint {
        let missing = vec![5..100, 200..300];
        ResumePoint { validator: "\"a\"".to_owned(), length: 300, missing }
    }

    #[test]
    fn a_long_object_is_divided_after_its_first_head() {
        let mut plan = DownloadPlan::new(3, None);
        let first = plan.first_request();
        assert_eq!(first.range_fields(), None);
        let part = plan.handle_first_head(&first, &whole(9 * MIB)).unwrap();
        assert_eq!(part, FirstPart { start: 0, end: Some(3 * MIB), resumed: false });
        let second = plan.next_request().unwrap();
        let range = format!("bytes={}-{}", 3 * MIB, 6 * MIB - 1);
        assert_eq!(second.range_fields(), Some((range, "\"a\"")));
        assert_eq!(plan.next_request().map(|r| (r.start, r.end)), Some((6 * MIB, Some(9 * MIB))));
        assert_eq!(plan.next_request(), None);
        let head = partial(3 * MIB..6 * MIB, 9 * MIB);
        assert_eq!(plan.handle_later_head(&second, &head), Ok(()));
        let changed = ResponseHead { validator: Some("\"b\"".to_owned()), ..head.clone() };
        assert_eq!(plan.handle_later_head(&second, &changed), Err(GetError::Changed));
        let longer = partial(3 * MIB..6 * MIB, 10 * MIB);
        assert_eq!(plan.handle_later_head(&second, &longer), Err(GetError::Changed));
        let other = partial(2 * MIB..6 * MIB, 9 * MIB);
        assert_eq!(plan.handle_later_head(&second, &other), Err(GetError::WrongRange));
        let all = whole(9 * MIB);
        assert_eq!(plan.handle_later_head(&second, &all), Err(GetError::RangesIgnored));
        let new = ResponseHead { validator: Some("\"b\"".to_owned()), ..all };
        assert_eq!(plan.handle_later_head(&second, &new), Err(GetError::Changed));
    }

    #[test]
    fn an_object_without_validator_or_ranges_stays_whole() {
        for head in [
            ResponseHead { validator: None, ..whole(9 * MIB) },
            ResponseHead { accepts_ranges: false, ..whole(9 * MIB) },
            ResponseHead { is_chunked: true, content_length: None, ..whole(0) },
        ] {
            let mut plan = DownloadPlan::new(3, None);
            let first = plan.first_request();
            let part = plan.handle_first_head(&first, &head).unwrap();
            assert_eq!((part.start, part.end), (0, head.content_length));
            assert_eq!(plan.next_request(), None);
        }
    }

    #[test]
    fn an_interrupted_download_continues_or_begins_again() {
        let mut plan = DownloadPlan::new(1, Some(resume()));
        let first = plan.first_request();
        assert_eq!(first.range_fields(), Some(("bytes=5-99".to_owned(), "\"a\"")));
        let mut other = plan.clone();
        let part = plan.handle_first_head(&first, &partial(5..100, 300)).unwrap();
        assert_eq!(part, FirstPart { start: 5, end: Some(100), resumed: true });
        assert_eq!(plan.next_request().map(|r| (r.start, r.end)), Some((200, Some(300))));

        let new = ResponseHead { validator: Some("\"b\"".to_owned()), ..whole(70) };
        let part = other.handle_first_head(&first, &new).unwrap();
        assert_eq!(part, FirstPart { start: 0, end: Some(70), resumed: false });
        assert_eq!((other.next_request(), other.length), (None, Some(70)));
        assert_eq!(other.validator.as_deref(), Some("\"b\""));
    }

    #[test]
    fn errors_and_redirects_are_not_content() {
        let decide = |head: &ResponseHead| {
            let mut plan = DownloadPlan::new(1, None);
            let first = plan.first_request();
            plan.handle_first_head(&first, head)
        };
        let status = |status| ResponseHead { status, ..whole(5) };
        assert_eq!(decide(&status(404)), Err(GetError::Status(404)));
        assert_eq!(decide(&status(199)), Err(GetError::Status(199)));
        assert_eq!(decide(&status(301)), Err(GetError::Redirected { location: None }));
        assert_eq!(decide(&partial(0..5, 5)), Err(GetError::WrongRange), "it was not requested");
    }

    proptest! {
        #[test]
        fn divided_ranges_cover_the_same_bytes(
            lengths in proptest::collection::vec((1_u64..9 * MIB, 0_u64..MIB), 1..5),
            parts_max in 1_usize..20,
        ) {
            let mut at = 0;
            let ranges: Vec<_> = lengths.iter().map(|(length, gap)| {
                let range = at + gap..at + gap + length;
                at = range.end + 1;
                range
            }).collect();
            let parts = split(ranges.clone(), parts_max);
            prop_assert!(parts.len() <= parts_max.max(ranges.len()));
            let mut joined: Vec<Range<u64>> = Vec::new();
            for part in parts {
                prop_assert!(part.start < part.end);
                match joined.last_mut() {
                    Some(last) if last.end == part.start => last.end = part.end,
                    _ => joined.push(part),
                }
            }
            prop_assert_eq!(joined, ranges);
        }
    }
}

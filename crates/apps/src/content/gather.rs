//! Gathers the head of a message that arrives in pieces.
//!
//! Called by the content server and by the proxy with received bytes, until the head is complete or
//! too long. Their parsers find out which of the two it is. No byte after the head is taken.

/// Limits of the length of a head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadLimits {
    /// Bytes of the whole head.
    pub(crate) head_bytes_max: usize,
    /// Bytes of its first line.
    pub(crate) line_bytes_max: usize,
}

/// Result of adding a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GatheredPiece {
    /// Bytes of the piece that belong to the head.
    pub(crate) taken: usize,
    /// The head is complete, or too long.
    pub(crate) complete: bool,
}

/// Appends the next piece to a head that is not complete.
pub(crate) fn gather_head(head: &mut Vec<u8>, piece: &[u8], limits: HeadLimits) -> GatheredPiece {
    let HeadLimits { head_bytes_max, line_bytes_max } = limits;
    let before = head.len();
    // One byte above the limit, so that the parser sees that the head is too long.
    let room = (head_bytes_max + 1).saturating_sub(before);
    head.extend_from_slice(&piece[..piece.len().min(room)]);
    // Only new bytes are searched. Otherwise a client that sends single bytes would make every
    // search read the whole head.
    let end = head_end(head, before.saturating_sub(2));
    if let Some(end) = end {
        head.truncate(end);
    }
    let len = head.len();
    let long_line = before <= line_bytes_max
        && len > line_bytes_max
        && !head[..line_bytes_max].contains(&b'\n');
    GatheredPiece {
        taken: len - before,
        complete: end.is_some() || len > head_bytes_max || long_line,
    }
}

/// Returns the length of the head including the empty line that ends it; searches `bytes[from..]`.
fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut feeds = bytes.iter().enumerate().skip(from).filter(|(_, b)| **b == b'\n');
    feeds.find_map(|(at, _)| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 40, line_bytes_max: 20 };

    /// Gathers a head from pieces of `piece_bytes` bytes; returns it, the bytes taken, and whether
    /// it is complete.
    fn gathered(text: &[u8], piece_bytes: usize) -> (Vec<u8>, usize, bool) {
        let (mut head, mut taken) = (Vec::new(), 0);
        for piece in text.chunks(piece_bytes) {
            let got = gather_head(&mut head, piece, LIMITS);
            taken += got.taken;
            if got.complete {
                return (head, taken, true);
            }
            assert_eq!(got.taken, piece.len(), "all of it, while more is needed");
        }
        (head, taken, false)
    }

    #[test]
    fn ends_of_heads() {
        assert_eq!(head_end(b"GET /\r\nA: b\r\n\r\nrest", 0), Some(15));
        assert_eq!(head_end(b"GET /\n\nrest", 0), Some(7));
        assert_eq!(head_end(b"GET /\r\nA: b\r\n\r", 0), None);
        // Every cut: a search that begins two bytes back finds the end.
        let text = b"GET /\r\nA: b\r\n\r\n";
        for cut in 0..text.len() {
            assert_eq!(head_end(text, cut.saturating_sub(2)), Some(text.len()), "{cut}");
        }
    }

    /// However the head is cut, it is gathered to its end, and no byte after it is taken.
    #[test]
    fn any_pieces_give_the_same_head() {
        let text = b"GET /\r\nA: b\r\n\r\nGET /2";
        for piece_bytes in 1..=text.len() {
            let (head, taken, complete) = gathered(text, piece_bytes);
            assert_eq!((&head[..], taken, complete), (&text[..15], 15, true), "{piece_bytes}");
        }
        assert_eq!(gathered(&text[..14], 3), (text[..14].to_vec(), 14, false));
    }

    /// One byte above a limit shows that the head is too long. A single large piece is not cut at
    /// the first line's limit.
    #[test]
    fn heads_that_are_too_long_are_complete() {
        let (line, fields) = ([b'a'; 100], b"GET /\r\n".iter().chain([b'b'; 100].iter()));
        let fields: Vec<u8> = fields.copied().collect();
        for piece_bytes in [1, 7, 100] {
            let (head, taken, complete) = gathered(&line, piece_bytes);
            assert!(complete && (21..=41).contains(&taken) && head.len() == taken);
            let (head, taken, complete) = gathered(&fields, piece_bytes);
            assert_eq!((head.len(), taken, complete), (41, 41, true), "{piece_bytes}");
        }
        assert_eq!(gathered(&line, 1).1, 21);
        assert!(!gathered(&line[..20], 1).2);
    }
}

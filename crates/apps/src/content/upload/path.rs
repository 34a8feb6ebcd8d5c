//! Converts the target of an upload to a path beneath the directory for uploads.
//!
//! Stricter than the targets of downloads ([`crate::content::request_target`]): a path is refused
//! rather than normalized, so that a file has one name only. The disk resolves the path beneath the
//! directory as well: this is the first of two barriers.

use super::refusal::UploadRefusal;
use crate::content::request_target::{TargetError, normalize_path, split_target};

/// Maximum length of a path in bytes, as in Linux.
const PATH_BYTES_MAX: usize = 4095;
/// Maximum length of a name in bytes, as in Linux.
const NAME_BYTES_MAX: usize = 255;

/// Writes the path to `out`, which is cleared first.
///
/// # Errors
/// The reason for which the target is refused.
pub(crate) fn upload_path(target: &[u8], out: &mut Vec<u8>) -> Result<(), UploadRefusal> {
    let refused = |error| match error {
        TargetError::Malformed => UploadRefusal::PathMalformed,
        TargetError::AboveRoot => UploadRefusal::PathNotNormal,
    };
    let target = split_target(target).map_err(refused)?;
    if !target.query.is_empty() {
        return Err(UploadRefusal::PathMalformed);
    }
    if normalize_path(target.path, out).map_err(refused)? {
        return Err(UploadRefusal::PathIsDirectory);
    }
    // The first slash is the only byte that a normal path loses.
    let encoded = target.path.iter().filter(|b| **b == b'%').count();
    if out.len() + 1 != target.path.len() - 2 * encoded {
        return Err(UploadRefusal::PathNotNormal);
    }
    if out.len() > PATH_BYTES_MAX || out.iter().any(|b| b.is_ascii_control()) {
        return Err(UploadRefusal::PathMalformed);
    }
    out.split(|b| *b == b'/').try_for_each(|name| match name {
        [b'.', ..] => Err(UploadRefusal::PathHidden),
        _ if name.len() > NAME_BYTES_MAX => Err(UploadRefusal::PathMalformed),
        _ => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(target: &str) -> Result<String, UploadRefusal> {
        let mut out = b"of an earlier request".to_vec();
        upload_path(target.as_bytes(), &mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    #[test]
    fn normal_paths() {
        assert_eq!(path("/a").as_deref(), Ok("a"));
        assert_eq!(path("/a/b.c").as_deref(), Ok("a/b.c"));
        assert_eq!(path("http://host/a%20b/c%2Fd").as_deref(), Ok("a b/c/d"));
        let long = "x".repeat(255);
        assert_eq!(path(&format!("/{long}")).as_deref(), Ok(long.as_str()));
    }

    #[test]
    fn other_paths_are_refused() {
        use UploadRefusal::{PathHidden, PathIsDirectory, PathMalformed, PathNotNormal};
        for (target, refusal) in [
            ("", PathMalformed),
            ("*", PathMalformed),
            ("/a?b", PathMalformed),
            ("/a%", PathMalformed),
            ("/a%00", PathMalformed),
            ("/a%0ab", PathMalformed),
            ("/a%7f", PathMalformed),
            ("/", PathIsDirectory),
            ("/a/", PathIsDirectory),
            ("/a%2f", PathIsDirectory),
            ("/..", PathNotNormal),
            ("/../a", PathNotNormal),
            ("/a/../b", PathNotNormal),
            ("/a/%2e%2e/b", PathNotNormal),
            ("/a/..%2fb", PathNotNormal),
            ("/./a", PathNotNormal),
            ("//a", PathNotNormal),
            ("/a//b", PathNotNormal),
            ("/.a", PathHidden),
            ("/a/.b", PathHidden),
            ("/%2ea", PathHidden),
            ("/.outboard-upload-1-1", PathHidden),
        ] {
            assert_eq!(path(target), Err(refusal), "{target}");
        }
        assert_eq!(path(&format!("/{}", "x".repeat(256))), Err(PathMalformed));
        assert_eq!(path(&"/xx".repeat(2000)), Err(PathMalformed));
    }

    proptest! {
        /// No target leads out of the directory, or to a hidden file.
        #[test]
        fn paths_are_normal(target in "/(\\.|/|a|%2e|%2f|%|\\?|é){0,12}") {
            if let Ok(path) = path(&target) {
                prop_assert!(!path.starts_with('/') && !path.ends_with('/'), "{}", path);
                prop_assert!(path.split('/').all(|n| !n.is_empty() && !n.starts_with('.')));
            }
        }
    }
}

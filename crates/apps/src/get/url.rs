//! URLs of objects: parsing, and references of redirects (RFC 3986, RFC 9110 section 4.2).
//!
//! Only the schemes http and https are known. A URL without a scheme is one of http, as in curl.
//! A URL with a user name or a password is refused, because no credentials are sent.

use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

use iri_string::types::{UriAbsoluteStr, UriReferenceStr, UriStr};

/// Maximum length of a URL in bytes. Servers refuse longer ones.
const URL_BYTES_MAX: usize = 8000;

/// Reason for which a text is not a URL of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GetUrlError {
    /// The text is not a URI, or has no host.
    #[error("not a valid URL")]
    Invalid,
    /// The scheme is neither http nor https.
    #[error("unsupported scheme; expected http or https")]
    Scheme,
    /// The URL has a user name or a password.
    #[error("user names and passwords are not supported")]
    Credentials,
}

/// The URL of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetUrl {
    /// True for https.
    pub is_https: bool,
    /// Host in lower case: a name, or an address without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path and query, as in a request line.
    pub target: String,
}

impl GetUrl {
    /// Returns the URL that a reference, the value of a Location field, has relative to this one.
    ///
    /// # Errors
    /// [`GetUrlError`] if the result is not the URL of an object.
    pub fn join(&self, reference: &str) -> Result<Self, GetUrlError> {
        if reference.len() > URL_BYTES_MAX {
            return Err(GetUrlError::Invalid);
        }
        let base = self.to_string();
        let base = UriAbsoluteStr::new(&base).map_err(|_| GetUrlError::Invalid)?;
        let reference = UriReferenceStr::new(reference).map_err(|_| GetUrlError::Invalid)?;
        Self::of(&reference.resolve_against(base).to_string())
    }

    /// Returns host and port, as in the Host field: without the port that the scheme implies.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match (self.is_https, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Returns the last part of the path, decoded, if it can be the name of a file.
    #[must_use]
    pub fn file_name(&self) -> Option<String> {
        let path = self.target.split('?').next().unwrap_or_default();
        let last = path.rsplit('/').next().unwrap_or_default();
        let name = percent_encoding::percent_decode_str(last).decode_utf8().ok()?;
        let fits = !matches!(&*name, "" | "." | "..") && !name.contains(['/', '\0']);
        fits.then(|| name.into_owned())
    }

    fn of(text: &str) -> Result<Self, GetUrlError> {
        let uri = UriStr::new(text).map_err(|_| GetUrlError::Invalid)?;
        let is_https = match uri.scheme_str().to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(GetUrlError::Scheme),
        };
        let authority = uri.authority_components().ok_or(GetUrlError::Invalid)?;
        if authority.userinfo().is_some() {
            return Err(GetUrlError::Credentials);
        }
        let host = match authority.host().strip_prefix('[') {
            Some(literal) => {
                let literal = literal.strip_suffix(']').ok_or(GetUrlError::Invalid)?;
                let addr: Ipv6Addr = literal.parse().map_err(|_| GetUrlError::Invalid)?;
                addr.to_string()
            }
            None => authority.host().to_ascii_lowercase(),
        };
        // Other characters that RFC 3986 allows in a name occur in no DNS name.
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        if host.is_empty() || !(host.contains(':') || host.bytes().all(is_name)) {
            return Err(GetUrlError::Invalid);
        }
        let port = match authority.port().filter(|port| !port.is_empty()) {
            None => {
                if is_https {
                    443
                } else {
                    80
                }
            }
            Some(port) => port.parse().ok().filter(|p| *p > 0).ok_or(GetUrlError::Invalid)?,
        };
        let path = if uri.path_str().is_empty() { "/" } else { uri.path_str() };
        let target = match uri.query_str() {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
        Ok(Self { is_https, host, port, target })
    }
}

impl FromStr for GetUrl {
    type Err = GetUrlError;

    fn from_str(text: &str) -> Result<Self, GetUrlError> {
        if text.len() > URL_BYTES_MAX {
            return Err(GetUrlError::Invalid);
        }
        if text.contains("://") { Self::of(text) } else { Self::of(&format!("http://{text}")) }
    }
}

impl fmt::Display for GetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> Result<String, GetUrlError> {
        text.parse().map(|url: GetUrl| url.to_string())
    }

    #[test]
    fn urls() {
        for (text, expected) in [
            ("http://a.example", "http://a.example/"),
            ("a.example/b", "http://a.example/b"),
            ("10.0.0.1:8080/x?y=z#part", "http://10.0.0.1:8080/x?y=z"),
            ("HTTPS://A.Example:443/%20", "https://a.example/%20"),
            ("https://[FD77::2]:8443", "https://[fd77::2]:8443/"),
            ("http://a.example:/?q", "http://a.example/?q"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(shown("ftp://a.example/"), Err(GetUrlError::Scheme));
        assert_eq!(shown("https://user:pw@a.example/"), Err(GetUrlError::Credentials));
        let long = format!("http://a/{}", "x".repeat(URL_BYTES_MAX));
        for bad in [
            "",
            "http://",
            "http:///x",
            "http://a b/",
            "http://a/\r\nX: y",
            "http://a:0/",
            "http://a:65536/",
            "http://[::1",
            "http://[v1.x]/",
            "http://a%41/",
            &long,
        ] {
            assert_eq!(shown(bad), Err(GetUrlError::Invalid), "{bad:?}");
        }
    }

    #[test]
    fn redirects() {
        let base: GetUrl = "https://a.example:8443/b/c?d".parse().unwrap();
        for (reference, expected) in [
            ("http://other.example/x", "http://other.example/x"),
            ("//other.example/x", "https://other.example/x"),
            ("/x", "https://a.example:8443/x"),
            ("../x?y", "https://a.example:8443/x?y"),
            ("x#part", "https://a.example:8443/b/x"),
        ] {
            let joined = base.join(reference).map(|url| url.to_string());
            assert_eq!(joined.as_deref(), Ok(expected), "{reference}");
        }
        assert_eq!(base.join("file:///etc/passwd"), Err(GetUrlError::Scheme));
        assert_eq!(base.join("/x y"), Err(GetUrlError::Invalid));
    }

    #[test]
    fn file_names() {
        let name = |text: &str| text.parse::<GetUrl>().unwrap().file_name();
        assert_eq!(name("a/b/c%20d.bin?x=/y").as_deref(), Some("c d.bin"));
        for none in ["a", "a/b/", "a/..", "a/%2e%2E", "a/x%2Fy", "a/%00", "a/%ff"] {
            assert_eq!(name(none), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn parsed_urls_are_stable(text in "[ -~]{0,40}") {
            if let Ok(url) = text.parse::<GetUrl>() {
                prop_assert_eq!(url.to_string().parse(), Ok(url.clone()));
                prop_assert!(url.target.starts_with('/') && !url.target.contains([' ', '#']));
            }
        }
    }
}

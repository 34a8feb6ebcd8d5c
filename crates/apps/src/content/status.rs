//! The status codes with which the content server and the proxy respond.

/// A status code (RFC 9110 section 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpStatus {
    Ok,
    Created,
    NoContent,
    PartialContent,
    MovedPermanently,
    NotModified,
    PermanentRedirect,
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    PreconditionFailed,
    ContentTooLarge,
    UriTooLong,
    UnsupportedMediaType,
    RangeNotSatisfiable,
    ExpectationFailed,
    HeaderFieldsTooLarge,
    InternalServerError,
    NotImplemented,
    BadGateway,
    ServiceUnavailable,
    GatewayTimeout,
    VersionNotSupported,
    InsufficientStorage,
}

impl HttpStatus {
    /// Returns the three digits as a number.
    pub(crate) const fn code(self) -> u16 {
        match self {
            Self::Ok => 200,
            Self::Created => 201,
            Self::NoContent => 204,
            Self::PartialContent => 206,
            Self::MovedPermanently => 301,
            Self::NotModified => 304,
            Self::PermanentRedirect => 308,
            Self::BadRequest => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::PreconditionFailed => 412,
            Self::ContentTooLarge => 413,
            Self::UriTooLong => 414,
            Self::UnsupportedMediaType => 415,
            Self::RangeNotSatisfiable => 416,
            Self::ExpectationFailed => 417,
            Self::HeaderFieldsTooLarge => 431,
            Self::InternalServerError => 500,
            Self::NotImplemented => 501,
            Self::BadGateway => 502,
            Self::ServiceUnavailable => 503,
            Self::GatewayTimeout => 504,
            Self::VersionNotSupported => 505,
            Self::InsufficientStorage => 507,
        }
    }

    /// Returns code and reason phrase, as in a status line and in the text body of an error.
    pub(crate) const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::Created => "201 Created",
            Self::NoContent => "204 No Content",
            Self::PartialContent => "206 Partial Content",
            Self::MovedPermanently => "301 Moved Permanently",
            Self::NotModified => "304 Not Modified",
            Self::PermanentRedirect => "308 Permanent Redirect",
            Self::BadRequest => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::RequestTimeout => "408 Request Timeout",
            Self::PreconditionFailed => "412 Precondition Failed",
            Self::ContentTooLarge => "413 Content Too Large",
            Self::UriTooLong => "414 URI Too Long",
            Self::UnsupportedMediaType => "415 Unsupported Media Type",
            Self::RangeNotSatisfiable => "416 Range Not Satisfiable",
            Self::ExpectationFailed => "417 Expectation Failed",
            Self::HeaderFieldsTooLarge => "431 Request Header Fields Too Large",
            Self::InternalServerError => "500 Internal Server Error",
            Self::NotImplemented => "501 Not Implemented",
            Self::BadGateway => "502 Bad Gateway",
            Self::GatewayTimeout => "504 Gateway Timeout",
            Self::ServiceUnavailable => "503 Service Unavailable",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
            // RFC 4918 section 11.5.
            Self::InsufficientStorage => "507 Insufficient Storage",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_begins_with_the_code() {
        for status in [
            HttpStatus::Ok,
            HttpStatus::NotModified,
            HttpStatus::UriTooLong,
            HttpStatus::NotImplemented,
        ] {
            assert!(status.line().starts_with(&status.code().to_string()));
        }
    }
}

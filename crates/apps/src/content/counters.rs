//! Counters of the content server.

use super::upload::UploadRefusal;

base::counters! {
    /// Counters of one content server.
    pub struct ContentCounters {
        /// Connections accepted, those of other queues included that moved here.
        http_connections,
        /// Connections that moved to other queues.
        http_connections_given_up,
        /// Connections reset at once: `connections_max` were open.
        http_connections_refused: alarm,
        /// Requests that were answered, refused ones included.
        http_requests,
        /// Of those, HTTP/3 requests.
        http3_requests,
        /// HTTP/3 connections that were ended by an error of the client.
        http3_connection_errors: alarm,
        /// HTTP/3 streams that were ended by an error.
        http3_stream_errors,
        /// Responses with a status from 200 to 299.
        http_responses_2xx,
        /// Responses with a status from 300 to 399.
        http_responses_3xx,
        /// Responses with a status from 400 to 499.
        http_responses_4xx,
        /// Responses with a status from 500 to 599.
        http_responses_5xx,
        /// 200 OK: whole files, or their heads.
        http_200,
        /// 201 Created: files that were uploaded.
        http_201,
        /// 204 No Content: files that were replaced by uploads.
        http_204,
        /// 206 Partial Content.
        http_206,
        /// 301 Moved Permanently: directories requested without their slash, and redirects to
        /// HTTPS.
        http_301,
        /// 304 Not Modified.
        http_304,
        /// 308 Permanent Redirect: redirects to HTTPS of methods other than GET and HEAD.
        http_308,
        /// 400 Bad Request: malformed requests.
        http_400,
        /// 403 Forbidden: access denied, paths above the root, things that are not files.
        http_403,
        /// 404 Not Found.
        http_404,
        /// 405 Method Not Allowed.
        http_405,
        /// 408 Request Timeout: heads or content that did not arrive in time.
        http_408,
        /// 412 Precondition Failed.
        http_412,
        /// 413 Content Too Large: content of requests above the limit.
        http_413,
        /// 414 URI Too Long: request lines above the limit.
        http_414,
        /// 415 Unsupported Media Type: uploads of encoded content.
        http_415,
        /// 416 Range Not Satisfiable: ranges that lie outside of the file.
        http_416,
        /// 417 Expectation Failed: unknown expectations.
        http_417,
        /// 431 Request Header Fields Too Large: heads above the limit.
        http_431,
        /// 500 Internal Server Error: files that could not be read.
        http_500: alarm,
        /// 501 Not Implemented: unknown methods and transfer codings.
        http_501,
        /// 503 Service Unavailable: no room for another file, or a disk that did not answer in
        /// time.
        http_503: alarm,
        /// 505 HTTP Version Not Supported: versions other than HTTP/1.
        http_505,
        /// 507 Insufficient Storage: uploads without room on the disk or in the quota.
        http_507,
        /// Connections that did not send a whole head in time, or, if new, no first byte.
        http_timeouts_header,
        /// Requests whose content did not arrive in time.
        http_timeouts_content,
        /// Connections that were idle for longer than the keep-alive timeout.
        http_timeouts_keepalive,
        /// Connections that were reset because the peer acknowledged nothing for too long.
        http_timeouts_send,
        /// Requests whose file was not opened in time.
        http_timeouts_open,
        /// Connections that the peer did not close in time after the last response.
        http_timeouts_linger,
        /// Responses cut short because a file failed or changed.
        http_aborted_file: alarm,
        /// Requests or responses cut short by the peer or the network.
        http_aborted_peer,
        /// Responses with the content of a precompressed file.
        http_precompressed,
        /// Requests answered from the cache of open files.
        http_file_cache_hits,
        /// Requests that waited for a file to be opened.
        http_file_cache_misses,
        /// Times that a path, or all paths, were marked as changed.
        http_files_expired,
        /// Bytes of response heads, part heads and error texts.
        http_head_bytes,
        /// Bytes of files in responses.
        http_body_bytes,
        /// Bytes of the content of requests other than uploads, which were read and discarded.
        http_content_bytes,
        /// Bytes that arrived after the last request of a connection and were discarded.
        http_discarded_bytes,
        /// Lines of the access log that were dropped because the queue was full.
        http_log_dropped: alarm,
        /// Connections that were ended because their client sent a pattern of a denying rule.
        http_denied,
    }
}

impl ContentCounters {
    /// Counts the end of an upload at its deadline.
    pub(super) fn count_upload_timeout(&mut self, refusal: UploadRefusal) {
        match refusal {
            UploadRefusal::Slow => self.http_timeouts_content += 1,
            _ => self.http_timeouts_open += 1,
        }
    }

    /// Counts a response by its status code.
    pub(crate) fn count_status(&mut self, code: u16) {
        self.http_requests += 1;
        match code / 100 {
            2 => self.http_responses_2xx += 1,
            3 => self.http_responses_3xx += 1,
            4 => self.http_responses_4xx += 1,
            _ => self.http_responses_5xx += 1,
        }
        match code {
            200 => self.http_200 += 1,
            201 => self.http_201 += 1,
            204 => self.http_204 += 1,
            206 => self.http_206 += 1,
            301 => self.http_301 += 1,
            304 => self.http_304 += 1,
            308 => self.http_308 += 1,
            400 => self.http_400 += 1,
            403 => self.http_403 += 1,
            404 => self.http_404 += 1,
            405 => self.http_405 += 1,
            408 => self.http_408 += 1,
            412 => self.http_412 += 1,
            413 => self.http_413 += 1,
            414 => self.http_414 += 1,
            415 => self.http_415 += 1,
            416 => self.http_416 += 1,
            417 => self.http_417 += 1,
            431 => self.http_431 += 1,
            500 => self.http_500 += 1,
            501 => self.http_501 += 1,
            503 => self.http_503 += 1,
            505 => self.http_505 += 1,
            507 => self.http_507 += 1,
            _ => {}
        }
    }
}

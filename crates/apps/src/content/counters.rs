//! What the content server counts.

base::counters! {
    /// Counters of one content server.
    pub struct Counters {
        /// Connections accepted.
        http_connections,
        /// Connections reset at once: `connections_max` were open.
        http_connections_refused: alarm,
        /// Requests answered, refused ones included.
        http_requests,
        /// Of those, requests by HTTP/3.
        http3_requests,
        /// Connections of HTTP/3 ended by an error of the client.
        http3_connection_errors: alarm,
        /// Streams of HTTP/3 ended by an error.
        http3_stream_errors,
        /// Responses with a status from 200 to 299.
        http_responses_2xx,
        /// Responses with a status from 300 to 399.
        http_responses_3xx,
        /// Responses with a status from 400 to 499.
        http_responses_4xx,
        /// Responses with a status from 500 to 599.
        http_responses_5xx,
        /// Whole files, or their heads.
        http_200,
        /// Parts of files.
        http_206,
        /// Directories asked for without their slash, and requests sent to HTTPS.
        http_301,
        /// The client had it.
        http_304,
        /// Requests other than GET and HEAD sent to HTTPS.
        http_308,
        /// Malformed requests.
        http_400,
        /// Access refused, climbs above the root, things that are no files.
        http_403,
        /// No such file.
        http_404,
        /// Methods that files do not have.
        http_405,
        /// Heads that did not arrive in time.
        http_408,
        /// Preconditions that failed.
        http_412,
        /// Content of requests that is longer than is read.
        http_413,
        /// Request lines that are too long.
        http_414,
        /// Ranges that the file does not have.
        http_416,
        /// Expectations that are not known.
        http_417,
        /// Heads that are too large.
        http_431,
        /// Files that could not be read.
        http_500: alarm,
        /// Methods and transfer codings that are not known.
        http_501,
        /// No room for another file, or a disk that did not answer in time.
        http_503: alarm,
        /// Versions other than HTTP/1.
        http_505,
        /// Connections that sent no whole head in time, the first byte included for new ones.
        http_timeouts_header,
        /// Requests whose content did not arrive in time.
        http_timeouts_content,
        /// Connections that were idle for too long.
        http_timeouts_keepalive,
        /// Connections whose peer acknowledged nothing for too long: reset.
        http_timeouts_send,
        /// Requests whose file was not opened in time.
        http_timeouts_open,
        /// Connections that the peer did not close in time after the last response.
        http_timeouts_linger,
        /// Responses cut short by a file that failed or changed.
        http_aborted_file: alarm,
        /// Requests or responses cut short by the peer or the network.
        http_aborted_peer,
        /// Responses from a file that was compressed before.
        http_precompressed,
        /// Requests answered from the cache of open files.
        http_file_cache_hits,
        /// Requests that waited for an open.
        http_file_cache_misses,
        /// Times that a path, or all of them, was said to lead elsewhere.
        http_files_expired,
        /// Bytes of response heads, part heads and error texts.
        http_head_bytes,
        /// Bytes of files in responses.
        http_body_bytes,
        /// Bytes of the content of requests, which were read and thrown away.
        http_content_bytes,
        /// Bytes that came after the last request of a connection and were thrown away.
        http_discarded_bytes,
        /// Lines of the access log that nobody took in time.
        http_log_dropped: alarm,
    }
}

impl Counters {
    /// Counts a response.
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
            416 => self.http_416 += 1,
            417 => self.http_417 += 1,
            431 => self.http_431 += 1,
            500 => self.http_500 += 1,
            501 => self.http_501 += 1,
            503 => self.http_503 += 1,
            505 => self.http_505 += 1,
            _ => {}
        }
    }
}

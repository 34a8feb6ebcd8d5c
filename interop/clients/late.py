"""Sends data behind a request that is said to be the last, and reads the response to its end.

Called by `interop/tests/teardown.rs` as
`late.py ADDRESS PORT plain|tls VERSION LATE BYTES`: VERSION is that of HTTP, LATE how many bytes
follow the request, a third with it, a third while the response is read, and a third behind the
server's end. Fails where the response is not BYTES long or a reset comes instead of the end.
"""

import socket
import ssl
import sys

address, port, kind, version, late, length = sys.argv[1:]
late, length = int(late), int(length)
plain = socket.create_connection((address, int(port)), timeout=60)
if kind == "tls":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    client = context.wrap_socket(plain, suppress_ragged_eofs=False)
else:
    client = plain
request = f"GET /a.bin HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n"
again = (request * (late // len(request) + 1)).encode()
third = late // 3
client.sendall(request.encode() + again[:third])
got = b""
while b"\r\n\r\n" not in got:
    got += client.recv(4096)
client.sendall(again[third : 2 * third])
body = len(got) - got.index(b"\r\n\r\n") - 4
while piece := client.recv(65536):
    body += len(piece)
assert body == length, f"{body} bytes of {length}"
# The server has ended its direction; ours goes on.
client.sendall(again[2 * third : late])
if kind == "tls":
    plain = client.unwrap()
plain.shutdown(socket.SHUT_WR)
assert plain.recv(1) == b"", "something behind the end"
# The kernel knows whether a reset came.
assert plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0

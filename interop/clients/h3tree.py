"""A client of HTTP/3 for the tests, by aioquic: fetches a tree of files.

`h3tree.py ADDR:PORT FOLDER CONNECTIONS PATH..` deals the paths out over so many connections, asks
for all of a connection's at one time, each on a stream of its own, and writes them beneath the
folder. It believes every certificate. `src/bin/h3tree.rs` does the same with another stack.
"""

import asyncio
import pathlib
import ssl
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamReset


class Client(QuicConnectionProtocol):
    """One connection, with what is on its way on each stream."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.waiting = {}

    async def fetch(self, path, to):
        """Fetches one path into a file."""
        stream = self._quic.get_next_available_stream_id()
        done = asyncio.get_running_loop().create_future()
        with open(to, "wb") as file:
            self.waiting[stream] = (path, file, done)
            head = {":method": "GET", ":scheme": "https", ":authority": "localhost", ":path": path}
            fields = [(name.encode(), value.encode()) for name, value in head.items()]
            self.http.send_headers(stream, fields, end_stream=True)
            self.transmit()
            await done

    def quic_event_received(self, event):
        """Called by aioquic."""
        if isinstance(event, ConnectionTerminated):
            for path, _, done in self.waiting.values():
                fail(done, f"{path}: connection ended: {event.error_code:#x} {event.reason_phrase}")
            return
        if isinstance(event, StreamReset) and event.stream_id in self.waiting:
            path, _, done = self.waiting.pop(event.stream_id)
            fail(done, f"{path}: reset with {event.error_code:#x}")
        for http in self.http.handle_event(event):
            if http.stream_id in self.waiting:
                self.http_event_received(http)

    def http_event_received(self, event):
        """Something of a response that we wait for."""
        path, file, done = self.waiting[event.stream_id]
        if isinstance(event, HeadersReceived):
            status = dict(event.headers).get(b":status")
            if status != b"200":
                fail(done, f"{path}: {status}")
        elif isinstance(event, DataReceived):
            file.write(event.data)
        if event.stream_ended:
            del self.waiting[event.stream_id]
            if not done.done():
                done.set_result(None)


def fail(done, why):
    if not done.done():
        done.set_exception(RuntimeError(why))


async def fetch_all(host, port, folder, paths):
    """Fetches paths by one connection."""
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE, server_name="localhost"
    )
    connection = connect(host, port, configuration=configuration, create_protocol=Client)
    async with connection as client:
        files = [(path, folder / path.lstrip("/")) for path in paths]
        for _, to in files:
            to.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.gather(*(client.fetch(path, to) for path, to in files))


async def main():
    addr, folder, connections, *paths = sys.argv[1:]
    host, port = addr.split(":")
    folder, connections = pathlib.Path(folder), int(connections)
    parts = [paths[nth::connections] for nth in range(connections)]
    await asyncio.gather(*(fetch_all(host, int(port), folder, part) for part in parts))


asyncio.run(main())

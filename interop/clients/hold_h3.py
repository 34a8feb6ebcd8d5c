"""Connections over HTTP/3 that wait for the end of a server.

    hold_h3.py ADDR PORT TARGET N

Opens N connections, asks for TARGET on each, and says `ready` when all have a byte of it. Then, when
a line comes to its standard input, it prints how many were closed by H3_INTERNAL_ERROR, as a server
does that ends in the middle of a response, how many ended otherwise, and how many heard nothing.
"""

import asyncio
import ssl
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, ErrorCode, H3Connection
from aioquic.h3.events import DataReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated

PATIENCE = 5  # seconds after the end of the server, in which a close would have come


class Client(QuicConnectionProtocol):
    """One connection with one request."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        # It gives no more credit: a client that cannot keep up would lose the close with the rest.
        self._quic._write_stream_limits = lambda *_, **__: None
        self.began = asyncio.get_running_loop().create_future()
        self.ended = asyncio.get_running_loop().create_future()

    def ask(self, target):
        """Asks for a file."""
        head = {":method": "GET", ":scheme": "https", ":authority": "localhost", ":path": target}
        fields = [(name.encode(), value.encode()) for name, value in head.items()]
        self.http.send_headers(self._quic.get_next_available_stream_id(), fields, end_stream=True)
        self.transmit()

    def quic_event_received(self, event):
        """Called by aioquic."""
        if isinstance(event, ConnectionTerminated):
            if not self.ended.done():
                self.ended.set_result(event.error_code)
            return
        for http in self.http.handle_event(event):
            if isinstance(http, DataReceived) and not self.began.done():
                self.began.set_result(None)


async def hold(host, port, target, began):
    """Holds a connection to its end, and returns why it ended."""
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=H3_ALPN,
        verify_mode=ssl.CERT_NONE,
        server_name="localhost",
        max_stream_data=32 << 10,
    )
    async with connect(host, port, configuration=configuration, create_protocol=Client) as client:
        client.ask(target)
        await client.began
        began.release()
        return await client.ended


async def main():
    host, port, target, n = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    began = asyncio.Semaphore(0)
    held = [asyncio.ensure_future(hold(host, port, target, began)) for _ in range(n)]
    for _ in range(n):
        await began.acquire()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    done, silent = await asyncio.wait(held, timeout=PATIENCE)
    closed = sum(end.result() == ErrorCode.H3_INTERNAL_ERROR for end in done)
    print(closed, len(done) - closed, len(silent), flush=True)
    for end in silent:
        end.cancel()


asyncio.run(main())

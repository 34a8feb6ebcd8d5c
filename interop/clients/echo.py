"""A client of an echo server.

    echo.py ADDR PORT

Sends bytes and reads the same back, and says `ready`. When a line comes to its standard input it waits
until the server refuses a new connection, and sends once more on the old one.
"""

import socket
import sys
import time

MESSAGE = bytes(range(251)) * 1000

connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
connection.settimeout(30)


def echo():
    connection.sendall(MESSAGE)
    received = b""
    while len(received) < len(MESSAGE):
        received += connection.recv(len(MESSAGE)) or sys.exit("the server closed early")
    assert received == MESSAGE


echo()
print("ready", flush=True)
sys.stdin.readline()
deadline = time.monotonic() + 20
while True:
    assert time.monotonic() < deadline, "the server still accepts connections"
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 30).close()
    except ConnectionResetError:
        # Its handshake was complete when the listener was closed.
        continue
    except ConnectionRefusedError:
        break
echo()
connection.shutdown(socket.SHUT_WR)
assert connection.recv(1) == b""

"""A client of an echo server.

    echo.py ADDR PORT

Sends bytes and reads the same back, says `ready`, and when a line comes to its standard input does it
once more on the same connection.
"""

import socket
import sys

MESSAGE = bytes(range(251)) * 1000

connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
connection.settimeout(30)


def echo():
    connection.sendall(MESSAGE)
    assert connection.recv(len(MESSAGE), socket.MSG_WAITALL) == MESSAGE


echo()
print("ready", flush=True)
sys.stdin.readline()
echo()
connection.shutdown(socket.SHUT_WR)
assert connection.recv(1) == b""

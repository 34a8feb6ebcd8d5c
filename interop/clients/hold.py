"""Connections that wait for the end of a server.

    hold.py ADDR PORT TARGET N

Opens N connections, asks for TARGET on each and reads one byte; says `ready` when all have one.
Then, when a line comes to its standard input, it reads each to its end, and prints how many were
reset, how many were closed, and how many hear nothing.
"""

import socket
import sys

PATIENCE = 5  # seconds without a byte: who says nothing for so long says nothing any more

addr, port, target, n = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
connections = []
for index in range(n):
    connection = socket.create_connection((addr, port), 30)
    # Of every second the server shall close its end: tear-down is another engine's.
    close = "close" if index % 2 else "keep-alive"
    request = f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: {close}\r\n\r\n"
    connection.sendall(request.encode())
    assert connection.recv(1)
    connections.append(connection)
print("ready", flush=True)
sys.stdin.readline()
ends = {"reset": 0, "closed": 0, "silent": 0}
for connection in connections:
    connection.settimeout(PATIENCE)
    try:
        while connection.recv(1 << 20):
            pass
        ends["closed"] += 1
    except ConnectionResetError:
        ends["reset"] += 1
    except TimeoutError:
        ends["silent"] += 1
print(ends["reset"], ends["closed"], ends["silent"], flush=True)

"""Connections that wait for the end of a server.

    hold.py ADDR PORT TARGET N

Opens N connections, asks for TARGET on each and reads one byte; says `ready` when all have one.
With an NQN for TARGET each connects to an NVMe controller of its own instead. Then, when a line comes to its standard input, it reads each to its end, and prints how many were
reset, how many were closed, and how many hear nothing.
"""

import socket
import struct
import sys

PATIENCE = 5  # seconds without a byte: who says nothing for so long says nothing any more


def connect_nvme(connection, nqn):
    """ICReq, and Connect of an admin queue; the answers are read, and the second is a success."""
    connection.sendall(struct.pack("<BBBBIHBBI112x", 0, 0, 128, 0, 128, 0, 0, 0, 0))
    answer = connection.recv(128, socket.MSG_WAITALL)
    assert len(answer) == 128 and answer[0] == 1, answer
    header = struct.pack("<BBBBI", 4, 0, 72, 72, 72 + 1024)
    data_block_at_offset = 1
    sqe = struct.pack("<BBHB19x", 0x7F, 0x40, 0, 1)
    sqe += struct.pack("<QI3xB", 0, 1024, data_block_at_offset)
    sqe += struct.pack("<HHHBxI12x", 0, 0, 31, 0, 0)
    host = b"nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111"
    data = struct.pack("<16sH238x256s256s256x", b"\x11" * 16, 0xFFFF, nqn.encode(), host)
    connection.sendall(header + sqe + data)
    answer = connection.recv(24, socket.MSG_WAITALL)
    assert len(answer) == 24 and answer[0] == 5, answer
    assert struct.unpack("<H", answer[22:])[0] >> 1 == 0, answer


addr, port, target, n = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
connections = []
for index in range(n):
    connection = socket.create_connection((addr, port), 30)
    connections.append(connection)
    if target.startswith("nqn."):
        connect_nvme(connection, target)
        continue
    # Of every second the server shall close its end: tear-down is another engine's.
    close = "close" if index % 2 else "keep-alive"
    request = f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: {close}\r\n\r\n"
    connection.sendall(request.encode())
    assert connection.recv(1)
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

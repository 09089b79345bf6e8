"""A framed socket on the loop: what could not be sent is said to who sent it."""

import os
import socket

from ling_api import fdpass
from ling_engine.channel import Channel


async def test_put_says_whether_the_connection_lives() -> None:
    ours, theirs = socket.socketpair()
    ended: list[bool] = []
    channel = Channel(ours, lambda message, fds: None, lambda: ended.append(True))
    assert channel.put({"op": "metrics"})
    assert fdpass.receive(theirs) == ({"op": "metrics"}, [])
    gone = os.dup(0)
    os.close(gone)
    assert not channel.put({"op": "pass", "count": 1}, [gone])
    assert ended == [True]
    assert not channel.put({"op": "metrics"})
    theirs.close()

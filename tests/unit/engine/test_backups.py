"""Back-ups: kept, given back, and closed exactly on drop."""

import os
import socket

from tests.support.descriptors import none_leaked

from ling_engine.backups import Backups

SET = "a" * 64 + ":0"


def region() -> int:
    return os.memfd_create("test-region")


def keep(part: int = 0, parts: int = 1, *, manifest: bool = False) -> dict[str, object]:
    return {"op": "keep", "set": SET, "kind": "memfd", "sizes": [7], "part": part, "parts": parts, "manifest": manifest}


def test_what_was_kept_is_given_back_and_dropped() -> None:
    with none_leaked():
        backups = Backups()
        manifest, one, two = region(), region(), region()
        assert backups.keep(keep(0, 2, manifest=True), [manifest, one]) == {"op": "stored", "set": SET, "part": 0}
        assert backups.keep(keep(1, 2), [two]) == {"op": "stored", "set": SET, "part": 1}
        frames = list(backups.give_back())
        assert [fds for _, fds in frames] == [[manifest, one], [two]]
        assert [(m["op"], m["part"], m["parts"], m["manifest"]) for m, _ in frames] == [
            ("have", 0, 2, True),
            ("have", 1, 2, False),
        ]
        assert backups.nbytes == {SET: 14}
        assert backups.drop(SET) == {"op": "dropped", "set": SET}
        assert list(backups.give_back()) == []


def test_kept_again_replaces_the_copies() -> None:
    with none_leaked():
        backups = Backups()
        backups.keep(keep(), [region()])
        second = region()
        backups.keep(keep(), [second])
        assert [fds for _, fds in backups.give_back()] == [[second]]
        backups.close()


def test_a_manifest_may_come_later_and_too_late() -> None:
    with none_leaked():
        backups = Backups()
        backups.keep(keep(), [region()])
        manifest = region()
        assert backups.keep_manifest({"set": SET}, [manifest]) == {"op": "stored-manifest", "set": SET}
        ((message, fds),) = backups.give_back()
        assert message["manifest"] is True
        assert fds[0] == manifest
        backups.drop(SET)
        assert backups.keep_manifest({"set": SET}, [region()]) is None


def test_a_drop_of_what_is_not_held_is_acknowledged() -> None:
    assert Backups().drop(SET) == {"op": "dropped", "set": SET}


def test_the_listener_is_given_back_with_its_namespace() -> None:
    with none_leaked():
        backups = Backups()
        for _ in range(2):
            with socket.socket() as sock:
                backups.keep_listener(os.dup(sock.fileno()))
        ((message, fds),) = backups.give_back()
        assert message["op"] == "have-listener"
        assert message["netns"] > 0
        assert len(fds) == 1
        backups.close()

"""Those who try to get, give or spoil what is not theirs, against a real agent process on its real sockets.

After each attack: it was refused with a reason, nothing was granted, the agent lives, serves a good client, and has as
many descriptors as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
from tests.support import attacks, processes
from tests.support.attacks import SET, Scene, hello, plain_memfd, refused
from tests.support.launcher_client import wire_set
from tests.support.rank_client import MIB, RankClient, RankError, TestSet, memfd_of

from ling_api import fdpass
from ling_api.manifest import Manifest, RegionEntry
from ling_api.v1 import agent_pb2 as pb
from ling_api.v1 import agent_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

pytestmark = pytest.mark.integration
HALF = SET.nbytes // 2


@pytest.fixture(scope="module")
def stage() -> Iterator[Scene]:
    with Scene() as made:
        asyncio.run(_sealed(made))
        yield made


async def _sealed(scene: Scene) -> None:
    await scene.fill()
    await scene.serves_a_good_client()
    await scene.clear()


@pytest.fixture
async def scene(stage: Scene) -> AsyncIterator[Scene]:
    """The stage, which must be as before when the attack is over."""
    before, held = await stage.at_rest(), stage.known()["openFds"]
    sets = [each["set"] for each in stage.status()["weightSets"]]
    yield stage
    assert stage.agent.poll() is None, "the agent died"
    await stage.serves_a_good_client()
    await stage.clear()
    await stage.until(lambda: stage.descriptors() <= before, f"{before} descriptors, now {stage.descriptors()}")
    await stage.until(lambda: stage.known().get("openFds") == held, "sets and listener held as before")
    await stage.until(lambda: [each["set"] for each in stage.status()["weightSets"]] == sets, "the sets as before")
    assert stage.keeper.poll() is None, "the keeper died"


def rank_refused(call: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(RankError) as error:
        call(*args)
    return str(error.value)


# tickets


async def replayed_ticket(scene: Scene) -> str:
    launcher = await scene.engine()
    rank = await scene.rank(launcher)
    ticket = await scene.granted(launcher)
    rank.read(ticket)
    return rank_refused(rank.read, ticket)


async def invented_ticket(scene: Scene) -> str:
    return rank_refused(scene.connect_rank(scene.fresh(), "s").read, "00" * 32)


async def stolen_by_another_slot(scene: Scene) -> str:
    launcher = await scene.engine()
    await scene.rank(launcher)
    ticket = await scene.granted(launcher)
    return rank_refused(scene.connect_rank("d003", launcher.server).read, ticket)


async def stolen_by_another_pod(scene: Scene) -> str:
    launcher = await scene.engine()
    await scene.rank(launcher)
    return rank_refused(scene.connect_rank(scene.fresh(), "mine").read, await scene.granted(launcher))


async def used_by_another_server(scene: Scene) -> str:
    launcher = await scene.engine()
    await scene.rank(launcher)
    return rank_refused(scene.connect_rank(launcher.folder.name, "second").read, await scene.granted(launcher))


async def of_another_purpose(scene: Scene) -> str:
    launcher = await scene.engine()
    rank = await scene.rank(launcher)
    return rank_refused(rank.deposit, await scene.granted(launcher), SET.id, SET.nbytes)


async def of_another_set(scene: Scene) -> str:
    _, rank, ticket = await scene.filling(TestSet(name="another-set"))
    return rank_refused(rank.deposit, ticket, TestSet(name="no-such").id, 4 * MIB)


async def of_an_ended_stream(scene: Scene) -> str:
    launcher = await scene.engine()
    rank = await scene.rank(launcher)
    ticket = await scene.granted(launcher)
    streams = scene.known()["streams"]
    await launcher.break_off()
    await scene.until(lambda: scene.known()["streams"] < streams, "the stream to end")
    return rank_refused(rank.read, ticket)


async def late_ticket(scene: Scene) -> str:
    launcher = await scene.engine()
    rank = await scene.rank(launcher)
    ticket = await scene.granted(launcher)
    await asyncio.sleep(5.05)  # the only way to be late at a real agent
    return rank_refused(rank.read, ticket)


# whose folder, whose server


async def unknown_device(scene: Scene) -> str:
    return refused(scene.folder("d004"), hello("launcher"))


async def engine_as_keeper(scene: Scene) -> str:
    return refused(scene.folder(scene.fresh()), hello("keeper"), {"op": "ready"})


async def slot_pod_as_rank(scene: Scene) -> str:
    return refused(scene.folder("d001"), hello("rank"))


async def rank_of_another_pods_server(scene: Scene) -> str:
    victim = await scene.engine()
    await scene.rank(victim)
    await scene.until(lambda: any(e["pod"] == victim.pod for e in scene.status()["engines"]), "the victim is known")
    return refused(scene.folder(scene.fresh()), hello("rank", server=victim.server))


async def other_slots_pod_asks_for_the_set(scene: Scene) -> str:
    """It is told to fill a set of its own slot; ours stays ours."""
    _, _, _ticket = await scene.filling(SET, device="d003")
    assert [each["state"] for each in scene.status(attacks.OTHER)["weightSets"]] == ["filling"]
    return "to fill its own"


# the stream


async def stream_refused(scene: Scene, message: pb.LauncherMessage | None) -> str:
    channel = grpc.aio.insecure_channel(
        f"unix:{scene.folder(scene.fresh()) / 'agent.sock'}", options=(("grpc.use_local_subchannel_pool", 1),)
    )
    async with channel:
        call = agent_pb2_grpc.NodeAgentStub(channel).Engine()
        if message is not None:
            await call.write(message)
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for answer in call:
                raise AssertionError(f"granted {answer}")
        return f"{error.value.code().name} {error.value.details()}"


async def hello_with_an_invented_ticket(scene: Scene) -> str:
    return await stream_refused(scene, pb.LauncherMessage(hello=pb.Hello(ticket=b"x" * 32, revision="aaaaaaaa")))


async def attach_before_hello(scene: Scene) -> str:
    return await stream_refused(scene, pb.LauncherMessage(attach=pb.Attach(request=1, server="s", sets=[SET.id])))


async def nothing_said(scene: Scene) -> str:
    return await stream_refused(scene, None)


async def replayed_stream_ticket(scene: Scene) -> str:
    launcher = await scene.engine()
    return await stream_refused(scene, pb.LauncherMessage(hello=launcher.hello(launcher._ticket.result())))


async def digest_of_another_identity(scene: Scene) -> str:
    with attacks.call(scene.folder(scene.fresh())) as sock:
        fdpass.send(sock, hello("launcher"))
        message, _ = fdpass.receive(sock)
        mine = TestSet(name="mine").identity
        weights = [pb.WeightSet(role="target", bytes=1, digest=SET.identity.digest, identity=mine.to_bytes())]
        said = pb.Hello(ticket=bytes.fromhex(message["ticket"]), revision="aaaaaaaa", weights=weights)
        return await stream_refused(scene, pb.LauncherMessage(hello=said))


async def revision_that_the_slot_does_not_name(scene: Scene) -> str:
    launcher = await scene.engine(revision="cccccccc")
    await scene.rank(launcher)
    answer = await launcher.attach()
    assert answer is not None
    assert launcher.last("go") is None
    return str(answer.refused.reason)


async def server_that_was_not_started(scene: Scene) -> str:
    launcher = await scene.engine()
    launcher.server = "ghost"
    answer = await launcher.attach()
    assert answer is not None
    return str(answer.refused.reason)


async def set_that_the_hello_does_not_name(scene: Scene) -> str:
    launcher = await scene.engine(weights=[TestSet(name="mine")])
    await scene.rank(launcher)
    launcher.weights = [SET]
    answer = await launcher.attach()
    assert answer is not None
    return str(answer.refused.reason)


# deposits and seals: a filling server that lies


async def deposit(scene: Scene, name: str, fds: list[int], sizes: list[int]) -> str:
    weights = TestSet(name=name)
    _, rank, ticket = await scene.filling(weights)
    try:
        shape = {"set": weights.id, "kind": "memfd", "sizes": sizes, "part": 0, "parts": 1, "ticket": ticket}
        with pytest.raises(RankError) as error:
            rank.ask("deposit", "stored", fds, **shape)
        return str(error.value)
    finally:
        fdpass.close_all(fds)


async def more_than_fits(scene: Scene) -> str:
    return await deposit(scene, "greedy", [plain_memfd(254 * MIB)], [254 * MIB])


async def more_than_the_slot_has(scene: Scene) -> str:
    return await deposit(scene, "greedier", [plain_memfd(1 << 40)], [1 << 40])


async def a_pipe(scene: Scene) -> str:
    reading, writing = os.pipe()
    os.close(writing)
    return await deposit(scene, "pipe", [reading], [2 * MIB])


async def a_device(scene: Scene) -> str:
    return await deposit(scene, "zero", [os.open("/dev/zero", os.O_RDWR)], [2 * MIB])


async def a_file(scene: Scene) -> str:
    file = scene.root / "file"
    file.write_bytes(b"\0" * 2 * MIB)
    return await deposit(scene, "file", [os.open(file, os.O_RDWR)], [2 * MIB])


async def a_socket(scene: Scene) -> str:
    one, two = socket.socketpair()
    two.close()
    return await deposit(scene, "socket", [one.detach()], [2 * MIB])


async def sizes_that_lie(scene: Scene) -> str:
    return await deposit(scene, "liar", [plain_memfd(2 * MIB)], [4 * MIB])


async def deposited(scene: Scene, weights: TestSet) -> RankClient:
    _, rank, ticket = await scene.filling(weights)
    rank.deposit(ticket, weights.id, weights.nbytes)
    return rank


async def sealing(scene: Scene, name: str, manifest: Callable[[TestSet], bytes]) -> str:
    weights = TestSet(name=name)
    rank = await deposited(scene, weights)
    fd = memfd_of(manifest(weights))
    try:
        with pytest.raises(RankError) as error:
            rank.ask("seal", "sealed", [fd], set=weights.id)
        return str(error.value)
    finally:
        os.close(fd)


def lying(weights: TestSet, **changes: Any) -> bytes:
    """A manifest that contradicts what was deposited, or itself."""
    text = weights.manifest([HALF, HALF]).decode()
    for old, new in changes.items():
        text = text.replace(f'"{old}":[]', f'"{old}":{new}')
    return text.encode()


async def manifest_of_another_set(scene: Scene) -> str:
    return await sealing(scene, "impostor", lambda _: SET.manifest([HALF, HALF]))


async def manifest_with_other_sizes(scene: Scene) -> str:
    return await sealing(scene, "odd-sizes", lambda weights: weights.manifest([HALF, HALF * 2]))


async def manifest_with_overlapping_tensors(scene: Scene) -> str:
    rows = '[["a","uint8",[1024],[1],0,1024],["b","uint8",[1024],[1],512,1024]]'
    return await sealing(scene, "overlap", lambda weights: lying(weights, tensors=rows))


async def manifest_with_a_tensor_outside(scene: Scene) -> str:
    rows = f'[["a","uint8",[1024],[1],{SET.nbytes},1024]]'
    return await sealing(scene, "outside", lambda weights: lying(weights, tensors=rows))


async def manifest_that_is_no_json(scene: Scene) -> str:
    return await sealing(scene, "no-json", lambda _: b"[" * 100_000)


async def manifest_of_nothing_but_lists(scene: Scene) -> str:
    """A megabyte of text that would be many of memory, and a second of everybody's time."""
    return await sealing(scene, "lists", lambda _: b'{"schema":1,"x":[' + b"[]," * 500_000 + b"[]]}")


async def manifest_larger_than_any(scene: Scene) -> str:
    return await sealing(scene, "large", lambda _: b'{"form":"' + bytes(17 << 20) + b'"}')


async def manifest_of_another_kind(scene: Scene) -> str:
    def cuda(weights: TestSet) -> bytes:
        regions = tuple(RegionEntry(HALF, (0,)) for _ in range(2))
        return Manifest(identity=weights.identity, rank=0, kind="cuda", tensors=(), regions=regions).to_bytes()

    return await sealing(scene, "cuda", cuda)


async def manifest_that_is_no_memfd(scene: Scene) -> str:
    weights = TestSet(name="no-memfd")
    rank = await deposited(scene, weights)
    reading, writing = os.pipe()
    try:
        with pytest.raises(RankError) as error:
            rank.ask("seal", "sealed", [reading], set=weights.id)
        return str(error.value)
    finally:
        fdpass.close_all([reading, writing])


async def seal_with_a_writer_left(scene: Scene) -> str:
    weights = TestSet(name="writer")
    rank = await deposited(scene, weights)
    rank.hold_writable(weights.id)
    try:
        return rank_refused(rank.seal, weights.id, weights.manifest([HALF, HALF]).decode())
    finally:
        rank.filling[weights.id][2].close()


async def seal_of_truncated_regions(scene: Scene) -> str:
    weights = TestSet(name="truncated")
    rank = await deposited(scene, weights)
    for fd in rank.filling[weights.id][0]:
        os.ftruncate(fd, 0)
    return rank_refused(rank.seal, weights.id, weights.manifest([HALF, HALF]).decode())


async def seal_of_regions_that_cannot_be_sealed(scene: Scene) -> str:
    weights = TestSet(name="unsealable")
    _, rank, ticket = await scene.filling(weights)
    rank.filling[weights.id] = ([plain_memfd(HALF, sealable=False) for _ in range(2)], [HALF, HALF], None)
    rank.deposit(ticket, weights.id, weights.nbytes)
    return rank_refused(rank.seal, weights.id, weights.manifest([HALF, HALF]).decode())


async def seal_of_the_set_of_others(scene: Scene) -> str:
    rank = scene.connect_rank(scene.fresh(), "s")
    fd = memfd_of(SET.manifest([HALF, HALF]))
    try:
        with pytest.raises(RankError) as error:
            rank.ask("seal", "sealed", [fd], set=SET.id)
        return str(error.value)
    finally:
        os.close(fd)


async def deposit_in_place_of_the_sealed_set(scene: Scene) -> str:
    launcher = await scene.engine()
    rank = await scene.rank(launcher)
    ticket = await scene.granted(launcher)
    return rank_refused(rank.deposit, ticket, SET.id, SET.nbytes)


# frames


async def oversized_frame(scene: Scene) -> str:
    with attacks.call(scene.folder(scene.fresh())) as sock:
        sock.sendall(fdpass.HEADER.pack(fdpass.MAX_BYTES + 1) + b"{}")
        return attacks.refusal(sock)


async def truncated_frame(scene: Scene) -> str:
    with attacks.call(scene.folder(scene.fresh())) as sock:
        sock.sendall(fdpass.encode(hello("launcher"))[:-3])
        sock.shutdown(socket.SHUT_WR)
        return attacks.refusal(sock)


async def another_version(scene: Scene) -> str:
    return refused(scene.folder(scene.fresh()), hello("launcher", version=2))


async def another_kind(scene: Scene) -> str:
    return refused(scene.folder(scene.fresh()), hello("agent"))


async def hello_twice(scene: Scene) -> str:
    return refused(scene.folder(scene.fresh()), hello("launcher"), hello("launcher"))


async def pulse_twice(scene: Scene) -> str:
    rank = await scene.rank(await scene.engine())
    for _ in range(2):
        page = plain_memfd(4096)
        fcntl.fcntl(page, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        rank.say({"op": "pulse"}, [page])
        os.close(page)
    return attacks.refusal(rank.sock)


async def descriptors_that_were_not_announced(scene: Scene) -> str:
    fds = [plain_memfd(4096) for _ in range(100)]
    try:
        return refused(scene.folder(scene.fresh()), (hello("launcher"), fds))
    finally:
        fdpass.close_all(fds)


async def a_listener_that_is_none(scene: Scene) -> str:
    fd = plain_memfd(4096)
    try:
        message = {"op": "have-listener", "netns": 1}
        return refused(scene.folder(scene.fresh()), hello("launcher"), (message, [fd]))
    finally:
        os.close(fd)


async def unsealed_give_back(scene: Scene) -> str:
    fd = plain_memfd(2 * MIB)
    try:
        message = {"op": "have", "set": SET.id, "kind": "memfd", "sizes": [2 * MIB], "part": 0, "parts": 1}
        return refused(scene.folder(scene.fresh()), hello("launcher"), ({**message, "manifest": False}, [fd]))
    finally:
        os.close(fd)


ATTACKS: dict[Callable[[Scene], Awaitable[str]], str] = {
    replayed_ticket: "used already",
    invented_ticket: "ticket is unknown",
    stolen_by_another_slot: "another pod's",
    stolen_by_another_pod: "another pod's",
    used_by_another_server: "not to fetch",
    of_another_purpose: "to fetch .*, not to deposit",
    of_another_set: "the ticket is for the set",
    of_an_ended_stream: "its stream ended",
    late_ticket: "older than 5 s",
    unknown_device: "not known",
    engine_as_keeper: "component engine is no keeper",
    slot_pod_as_rank: "component slot is no rank",
    rank_of_another_pods_server: "another pod's",
    other_slots_pod_asks_for_the_set: "to fill its own",
    hello_with_an_invented_ticket: "PERMISSION_DENIED the ticket is unknown",
    attach_before_hello: "INVALID_ARGUMENT the first message must be Hello",
    nothing_said: "INVALID_ARGUMENT the first message must be Hello",
    replayed_stream_ticket: "PERMISSION_DENIED the ticket is unknown, used already",
    digest_of_another_identity: "INVALID_ARGUMENT .*which is another's",
    revision_that_the_slot_does_not_name: "names the revisions aaaaaaaa, not cccccccc",
    server_that_was_not_started: "server ghost is not the one",
    set_that_the_hello_does_not_name: "hello does not name the set",
    more_than_fits: "no room for",
    more_than_the_slot_has: "no room for",
    a_pipe: "no memfd",
    a_device: "no memfd",
    a_file: "no memfd|cannot be sealed",
    a_socket: "no memfd",
    sizes_that_lie: "has 2097152 bytes, not 4194304",
    manifest_of_another_set: "the manifest is of memfd set",
    manifest_with_other_sizes: "other sizes",
    manifest_with_overlapping_tensors: "overlap",
    manifest_with_a_tensor_outside: "behind the set's",
    manifest_that_is_no_json: "manifest",
    manifest_of_nothing_but_lists: "more lists and values than any",
    manifest_larger_than_any: "a manifest of 178",
    manifest_of_another_kind: "the manifest is of cuda set",
    manifest_that_is_no_memfd: "no memfd|cannot be sealed",
    seal_with_a_writer_left: "still mapped writable",
    seal_of_truncated_regions: "has 0 bytes",
    seal_of_regions_that_cannot_be_sealed: "cannot be sealed",
    seal_of_the_set_of_others: "not being filled by server",
    deposit_in_place_of_the_sealed_set: "not to deposit",
    oversized_frame: "a frame of 1048577 bytes",
    truncated_frame: "ended inside a frame",
    another_version: "this agent speaks 1",
    another_kind: "unknown kind 'agent'",
    hello_twice: "hello was said already",
    pulse_twice: "told of its page already",
    descriptors_that_were_not_announced: "100 descriptors came along; it says 0",
    a_listener_that_is_none: "no socket",
    unsealed_give_back: "sealed sets only",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_it_is_refused_with_a_reason(scene: Scene, attack: Callable[[Scene], Awaitable[str]]) -> None:
    reason = await attack(scene)
    assert re.search(ATTACKS[attack], reason), reason
    if attack is not other_slots_pod_asks_for_the_set:  # it gets an answer, of its own slot
        why = re.sub(r"^[A-Z]+_[A-Z]+ ", "", ATTACKS[attack])
        processes.wait_for(lambda: re.search(why, scene.log.read_text()), "the agent's log tells of it")


@pytest.mark.parametrize("kind", ["keeper", "launcher", "rank"])
async def test_mutated_frames_change_nothing(scene: Scene, kind: str) -> None:
    device = "d001" if kind == "keeper" else "d003"  # of the other slot: it has nothing that could be its due
    mutations = attacks.Mutations(seed=len(kind))
    first, *rest = attacks.session(kind)
    for number in range(1000):  # what ends the connection must not always be the same frame
        attacks.provoke(scene.folder(device), mutations.frames([first, *rest[number % len(rest) :]]))


async def test_mutated_protobuf_changes_nothing(scene: Scene) -> None:
    device = scene.fresh()
    mutations = attacks.Mutations(seed=1)
    channel = grpc.aio.insecure_channel(
        f"unix:{scene.folder(device) / 'agent.sock'}", options=(("grpc.use_local_subchannel_pool", 1),)
    )
    async with channel:
        raw = channel.stream_stream("/ling.v1.NodeAgent/Engine")  # bytes in, bytes out
        sent = 0
        while sent < 1000:
            with attacks.call(scene.folder(device)) as sock:
                fdpass.send(sock, hello("launcher"))
                message, _ = fdpass.receive(sock)
                sent += await _mutated_stream(raw, mutations, bytes.fromhex(message["ticket"]), hello_too=sent % 2 == 0)


async def _mutated_stream(raw: Any, mutations: attacks.Mutations, ticket: bytes, *, hello_too: bool) -> int:
    """One stream; how many mutated messages went into it."""
    greeting = pb.Hello(ticket=ticket, revision="aaaaaaaa", purpose=pb.PURPOSE_SERVE, weights=[wire_set(SET)])
    said = [
        pb.LauncherMessage(attach=pb.Attach(request=1, server="s", sets=[SET.id])),
        pb.LauncherMessage(
            server_event=pb.ServerEvent(server="s", phase=pb.PHASE_WARM, phases={"a": 1.0}, progress=0.5)
        ),
        pb.LauncherMessage(performance=pb.Performance(in_flight=1, requests=2, output_tokens=3, mean_tpot_ms=1.0)),
        pb.LauncherMessage(leaving=pb.Leaving()),
    ]
    first = pb.LauncherMessage(hello=greeting).SerializeToString()
    messages = [mutations.bytes(first) if hello_too else first]
    messages += [mutations.bytes(each.SerializeToString()) for each in said]
    call = raw(_all(messages))
    try:
        async for answer in call:
            kind = pb.AgentMessage.FromString(answer)
            assert not kind.attach_answer.HasField("granted"), kind
    except grpc.aio.AioRpcError as error:
        assert error.code() in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.UNKNOWN,
            grpc.StatusCode.INTERNAL,
        ), error
    return len(messages)


async def _all(messages: list[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def test_idle_connections_and_half_frames_keep_nobody_out(scene: Scene) -> None:
    device = scene.fresh()
    idle = [fdpass.connect(scene.folder(device) / "fd.sock", 5) for _ in range(500)]
    try:
        for sock in idle[::2]:
            with contextlib.suppress(BrokenPipeError):  # the oldest of a crowd are closed
                sock.send(fdpass.encode(hello("launcher"))[:9])
        await scene.serves_a_good_client()
        launcher = await scene.engine(device)  # the same pod may still be served
        rank = await scene.rank(launcher)
        rank.read(await scene.granted(launcher))
    finally:
        for sock in idle:
            sock.close()


async def test_an_heir_that_does_not_read_holds_few_descriptors(scene: Scene) -> None:
    """One pod passes the same connection again and again to another of its slot: the agent must not keep them all."""
    before, heirs, givers = scene.descriptors(), scene.fresh(), scene.fresh()
    await scene.engine(
        heirs, role=pb.ROLE_ACTIVE, server="heir", phase=pb.PHASE_ACCEPTING, term=scene.status()["active"]["term"] + 1
    )
    scene.connect_rank(heirs, "heir")  # it never reads again
    launcher = await scene.engine(givers)
    await scene.rank(launcher)
    one, other = socket.socketpair()
    with attacks.call(scene.folder(givers)) as sock, one, other:
        attacks.say(sock, hello("rank", server=launcher.server, rank=1))
        with contextlib.suppress(fdpass.PeerGone, TimeoutError):  # nor does the giver
            for _ in range(1000):
                attacks.say(sock, {"op": "pass", "count": 128}, [one.fileno()] * 128)
        assert scene.descriptors() < before + 10_000
        await scene.serves_a_good_client()


async def test_a_live_process_that_comes_and_goes_costs_nothing(scene: Scene) -> None:
    for _ in range(300):
        with attacks.call(scene.folder("d003")) as sock:
            fdpass.send(sock, hello("rank"))
            fdpass.receive(sock)


async def test_who_connects_to_the_agents_socket_and_says_nothing_is_let_go(scene: Scene) -> None:
    """Also a pod that is nobody's: each connection costs the agent memory and a descriptor."""
    before = await scene.at_rest()
    socks = [socket.socket(socket.AF_UNIX) for _ in range(200)]
    try:
        for sock in socks:
            sock.connect(str(scene.folder("d004") / "agent.sock"))
        await scene.until(lambda: scene.descriptors() >= before + 100, "they are accepted")
        await scene.until(lambda: scene.descriptors() < before + 10, "they are let go")
    finally:
        for sock in socks:
            sock.close()


async def test_a_stream_that_says_nothing_is_ended(scene: Scene) -> None:
    began = time.monotonic()
    channel = grpc.aio.insecure_channel(f"unix:{scene.folder(scene.fresh()) / 'agent.sock'}")
    async with channel:
        call = agent_pb2_grpc.NodeAgentStub(channel).Engine()
        with pytest.raises(grpc.aio.AioRpcError, match="the first message must be Hello"):
            await call.read()
    assert time.monotonic() - began < 60

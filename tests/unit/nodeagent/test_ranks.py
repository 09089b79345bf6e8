"""A server of several processes: they attach as one, die as one, and one of them has the connections."""

from __future__ import annotations

from tests.support.slot_mind import Mind, wanted

from ling_nodeagent import choose, events
from ling_nodeagent import decisions as do
from ling_nodeagent.facts import Phase, Role, SetState

RANKS = (wanted("a", rank=0), wanted("a", rank=1))


def join(mind: Mind, pod: str, server: str, rank: int) -> int:
    conn = mind.new()
    mind.post(events.RankConnected(conn=conn, uid=f"uid-{pod}", server=server, rank=rank))
    return conn


def cohort(mind: Mind, pod: str, server: str) -> list[int]:
    """Two ranks that attach and, last, the main process; accepting."""
    mind.says(pod, server, Phase.STARTED)
    main = join(mind, pod, server, 2)
    ranks = [join(mind, pod, server, number) for number in range(2)]
    answer = mind.attach(pod, server, RANKS)
    if isinstance(answer, do.Fill):
        for conn, each in zip(ranks, RANKS, strict=True):
            mind.deposit(conn, each)
            mind.seal(conn, each)
    for phase in (Phase.ATTACHED, Phase.WARM, Phase.ACCEPTING):
        mind.says(pod, server, phase)
    return [*ranks, main]


def ready() -> Mind:
    mind = Mind()
    mind.keeper()
    mind.engine("one", RANKS)
    return mind


def test_one_answer_for_the_sets_of_all_ranks() -> None:
    mind = ready()
    cohort(mind, "one", "s1")
    assert {held.state for held in mind.slot.sets.values()} == {SetState.SEALED}
    mind.engine("two", RANKS)
    mind.says("two", "s2", Phase.STARTED)
    join(mind, "two", "s2", 0)
    answer = mind.attach("two", "s2", RANKS)
    assert isinstance(answer, do.Granted)
    assert answer.sets == tuple(each.set for each in RANKS)


def test_one_dead_rank_is_the_servers_death_and_memory_counts_until_all_are_dead() -> None:
    for first in range(3):
        mind = ready()
        conns = cohort(mind, "one", "s1")
        mind.die(conns.pop(first))
        server = mind["one"].server
        assert server is not None
        assert server.dead
        assert mind["one"].role is not Role.ACTIVE
        mind.die(conns.pop())
        assert all("s1" in held.attached for held in mind.slot.sets.values())
        mind.die(conns.pop())
        assert not any(held.attached for held in mind.slot.sets.values())


def test_connections_and_listeners_go_to_the_main_process_alone() -> None:
    mind = ready()
    *_, main = cohort(mind, "one", "s1")
    assert choose.successor(mind.slot, None) == ("adopt", main)
    mind.post(events.ListenerAsked(conn=main, re=1))
    keeper = mind.keeper(netns=8)  # the slot pod was made again: another listener
    said = [each for each in mind.said if isinstance(each, do.SendListener) and each.conn not in (keeper,)]
    assert {each.conn for each in said if each.conn in mind.slot.ranks} == {main}

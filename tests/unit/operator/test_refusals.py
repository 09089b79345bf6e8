"""What counts as a refusal, and how long it stands."""

from __future__ import annotations

import pytest

from ling_operator.actions import Create, Delete, Step
from ling_operator.refusals import Refusal, from_status, refusal, refuses, still_due, to_status, together

POD = Create(kind="Pod", body={"metadata": {"name": "chat-0"}}, why="")
GOES = Delete(kind="Pod", name="chat-0", uid="uid", why="")
ONE = Refusal(what="create Pod chat-0", slot="chat-0", said="quota")
TWO = Refusal(what="apply Service chat", slot="", said="policy")


@pytest.mark.parametrize(
    ("step", "status", "said", "is_one"),
    [
        pytest.param(POD, 403, "exceeded quota", True, id="quota"),
        pytest.param(POD, 422, "invalid", True, id="it makes no sense"),
        pytest.param(POD, 400, "admission webhook denied the request", True, id="a webhook's no"),
        pytest.param(POD, 500, "failed calling webhook: timeout", True, id="a webhook that is away"),
        pytest.param(POD, 500, "etcd leader changed", False, id="the API server is ill"),
        pytest.param(POD, 429, "too many requests", False, id="later"),
        pytest.param(POD, 0, "nobody answers", False, id="away"),
        pytest.param(POD, 404, "no such namespace", False, id="the namespace goes"),
        pytest.param(POD, 409, "exists", True, id="the name is taken"),
        pytest.param(GOES, 409, "another uid", False, id="the object is another one by now: look again"),
        pytest.param(GOES, 403, "no right", True, id="a change too"),
    ],
)
def test_a_no_that_asking_for_something_else_does_not_change(step: Step, status: int, said: str, is_one: bool) -> None:
    assert refuses(step, status, said) is is_one


def test_a_name_that_is_taken_is_not_remembered() -> None:
    assert refusal(POD, "chat-0", 409, "exists") is None
    assert refusal(POD, "chat-0", 403, "quota") == ONE


def test_it_stands_until_its_step_is_done_or_due_no_more() -> None:
    assert together((ONE, TWO), (), ONE.what) == (TWO,)
    newer = Refusal(what=ONE.what, slot="chat-0", said="another sentence")
    assert together((ONE, TWO), (newer,), "") == (newer, TWO)
    assert still_due((ONE, TWO), {TWO.what}) == (TWO,)
    assert len(together((), [ONE] * 99, "")) == 32


def test_other_numbers_are_no_other_refusal() -> None:
    reset = Refusal(
        what=ONE.what, slot=ONE.slot, said="read tcp 10.0.0.2:40123->10.96.0.9:443: connection reset by peer"
    )
    again = Refusal(
        what=ONE.what, slot=ONE.slot, said="read tcp 10.0.0.2:51877->10.96.0.9:443: connection reset by peer"
    )
    assert together((reset,), (again,), "") == (reset,)
    assert together((ONE,), (again,), "") == (again,)


def test_the_status_keeps_it_as_it_is() -> None:
    assert from_status(to_status((ONE, TWO))) == (ONE, TWO)
    assert [one.reason for one in (ONE, TWO)] == ["CreateRefused", "ChangeRefused"]

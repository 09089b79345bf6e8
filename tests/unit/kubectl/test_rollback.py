"""`kubectl ling rollback`: which revision, and the edit that brings it back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.ling_objects import FORMER, REVISION, deployment, revision, seen

from ling_api.enginepart import BASELINE
from ling_api.errors import BadInput
from ling_kubectl import rollback

OLD = revision(FORMER, 1, 300, model={"source": "host:///old"}, decoding={"algorithm": "NEXTN"})
NEW = revision(REVISION, 2, 100, model={"source": "host:///tiny"})
OLDEST = revision("cccc3333", 0, 900, model={"source": "host:///oldest"})


def looked(*revisions: dict[str, Any], spec: dict[str, Any] | None = None, **status: Any) -> Any:
    return seen(deployment(spec=spec, **status), *revisions)


@pytest.mark.parametrize(
    ("current", "wanted", "chosen"),
    [
        (REVISION, "", FORMER),
        ("cccc3333", "", "cccc3333"),
        (FORMER, "", FORMER),
        (REVISION, "cccc", "cccc3333"),
        (REVISION, REVISION, REVISION),
    ],
    ids=["the one before", "what serves still", "what serves still, newest", "by its first letters", "by its name"],
)
def test_which_revision(current: str, wanted: str, chosen: str) -> None:
    found = rollback.choose(looked(NEW, OLDEST, OLD, currentRevision=current), wanted)
    assert rollback.revision_of(found) == chosen


@pytest.mark.parametrize(
    ("revisions", "wanted", "told"),
    [((), "", "no revisions yet"), ((NEW,), "", "only one revision"), ((NEW, OLD), "dddd", "write one of")],
    ids=["none", "one", "unknown"],
)
def test_what_cannot_be_gone_back_to(revisions: tuple[Any, ...], wanted: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        rollback.choose(looked(*revisions), wanted)


def test_the_edit_puts_back_what_was_stated_and_takes_out_what_was_not() -> None:
    now = looked(NEW, OLD, spec={"engine": {"contextLength": 8192}, "replicas": 3})
    assert rollback.patch(now, OLD) == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "77"},
        {"op": "add", "path": "/spec/model", "value": {"source": "host:///old"}},
        {"op": "add", "path": "/spec/decoding", "value": {"algorithm": "NEXTN"}},
        {"op": "remove", "path": "/spec/engine"},
        {"op": "add", "path": "/spec/weightCache/policy", "value": "Required"},
    ]


@pytest.mark.parametrize(
    ("data", "policy"),
    [
        pytest.param({"weightCache": {"policy": "Preferred"}}, "Preferred", id="stated"),
        pytest.param({"weightCache": {}}, "Required", id="empty"),
        pytest.param({}, "Required", id="older than the field"),
    ],
)
def test_the_policy_of_the_cache_goes_back_and_its_size_stays(data: dict[str, Any], policy: str) -> None:
    former = revision(FORMER, 1, 300, model={"source": "host:///old"}, **data)
    now = looked(NEW, former, spec={"weightCache": {"memory": "8Gi", "spareSlots": 1, "policy": "Off"}})
    of_cache = [one for one in rollback.patch(now, former) if "weightCache" in one["path"]]
    assert of_cache == [{"op": "add", "path": "/spec/weightCache/policy", "value": policy}]


def test_the_policy_of_the_cache_goes_back_where_nothing_is_said_of_the_cache() -> None:
    former = revision(FORMER, 1, 300, weightCache={"policy": "Off"})
    body = deployment()
    body["spec"].pop("weightCache", None)
    edit = {"op": "add", "path": "/spec/weightCache", "value": {"policy": "Off"}}
    assert rollback.patch(seen(body, NEW, former), former)[-1] == edit


def test_what_a_revision_is_made_of_goes_back_whole() -> None:
    former = revision(FORMER, 1, 300, **{part: {} for part in BASELINE})
    put_back = {one["path"].split("/")[2] for one in rollback.patch(looked(NEW, former), former)[1:]}
    assert put_back == set(BASELINE)

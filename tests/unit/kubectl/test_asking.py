"""How `kubectl ling` asks kubectl: what it says when that fails, and whose namespace is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ling_api.errors import BadInput
from ling_kubectl.__main__ import main
from ling_kubectl.cluster import Cluster

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Error from server (Forbidden): pods is forbidden", "pods is forbidden"),
        ("Error from server: etcd is away", "etcd is away"),
        ("error: no resource type lingdeployments", "no resource type lingdeployments"),
        ("W1 a warning\nerror: the last line counts", "the last line counts"),
        ("", "kubectl get failed"),
    ],
    ids=["refused", "server", "kubectl", "lines", "silent"],
)
def test_what_kubectl_complains_of_is_told_without_its_prefix(tmp_path: Path, said: str, told: str) -> None:
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'EOF'\n{said}\nEOF\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(BadInput) as caught:
        Cluster(program=str(program)).run("get", "pods")
    assert str(caught.value) == told


@pytest.mark.parametrize(("flags", "where"), [((), "ling-system"), (("-n", "mine"), "mine")], ids=["default", "named"])
def test_the_dashboard_is_looked_for_where_the_operator_is(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], where: str
) -> None:
    asked: list[list[str]] = []

    def replace_process(self: Cluster, *words: str) -> None:
        asked.append(self.command(*words))
        raise KeyboardInterrupt

    monkeypatch.setattr(Cluster, "replace_process", replace_process)
    assert main(["dashboard", "--context=c", *flags]) == 130
    assert asked == [["kubectl", "--context=c", "port-forward", "-n", where, "deployment/ling-operator", "9401:9401"]]

"""Every `sh` block of every page is run: those for a new user in their order, those for people on call in a trouble."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hack.cluster.access import AGENTS, SYSTEM, program_path
from tests.support import pages
from tests.support.cluster import STANDIN, deployment, leftovers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hack.cluster.access import Cluster
    from tests.support.cluster import Trial

NEW_USER = (pages.ROOT / "README.md", pages.ROOT / "docs/install.md")
OURS = "ling.dev/deployment"
IMAGES = {"REGISTRY": "localhost", "TAG": "dev"}
# finding nothing is no fault of a page; of no other command is a failure passed over
PREAMBLE = 'set -euo pipefail\ngrep() { command grep "$@" || test $? = 1; }\n'


def run(cluster: Cluster, script: str, places: Mapping[str, str]) -> str:
    """What a script prints whose words in capitals stand for something; AssertionError when it fails."""
    tools = (program_path("kubectl", local=True).parent, program_path("helm", local=True).parent)
    path = os.pathsep.join((*map(str, tools), str(Path(sys.executable).parent), os.environ["PATH"]))
    filled = re.sub(r"\b[A-Z][A-Z-]*\b", lambda word: places.get(word[0], word[0]), script)
    done = subprocess.run(
        ["bash", "-c", PREAMBLE + filled],
        cwd=pages.ROOT,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{filled}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.timeout(1800)  # an installation, a first start and a removal, each with patience of its own
def test_the_pages_for_new_users_work_word_by_word(cluster: Cluster) -> None:
    if not cluster.ours:
        pytest.skip("the page ends with the removal of everything: not on somebody's cluster")
    readme, install = NEW_USER
    cluster.wait_for("what earlier tests had is gone", lambda: not leftovers(cluster))
    try:
        for block in filter(lambda block: block.run, pages.blocks(readme)):
            run(cluster, block.text, IMAGES)
        cluster.kubectl("delete", "ld", "tiny", "--namespace", "default")
        cluster.wait_for("its pods are gone", lambda: not cluster.items("pod", "default", OURS))
        for block in filter(lambda block: block.run, pages.blocks(install)):
            said = run(cluster, block.text, {})
            assert "v1/completions" not in block.text or '"choices"' in said
    finally:
        cluster.install()


def test_what_pages_tell_people_on_call_to_type_works(trial: Trial, model: str) -> None:
    """Of an engine, an agent and an operator that have each been killed once, so that each has a log of before."""
    if not trial.cluster.local:
        pytest.skip("containers are killed on the nodes of the local cluster")
    places = in_trouble(trial, "shop", model)
    wrong = []
    for page in pages.PAGES:
        script = "".join(block.text for block in pages.blocks(page) if block.run)
        if script and page not in NEW_USER:
            try:
                run(trial.cluster, script, places)
            except AssertionError as failed:
                wrong.append(f"{page.relative_to(pages.ROOT)}: {failed}")
    assert not wrong, "\n".join(wrong)


def in_trouble(trial: Trial, name: str, model: str) -> dict[str, str]:
    """What the capitals of the pages stand for, once everything that was killed is back."""
    cluster = trial.cluster
    trial.apply(deployment(name, model, image=STANDIN))
    trial.wait_condition(name, "Ready")
    engine = trial.engine_pods(name)[0]
    node = engine["spec"]["nodeName"]
    agents = cluster.items("pod", AGENTS, "ling.dev/component=agent")
    agent = next(one for one in agents if one["spec"]["nodeName"] == node)
    (operator,) = cluster.items("pod", SYSTEM, "ling.dev/component=operator")
    for pod, container in ((engine, "engine"), (agent, "agent"), (operator, "operator")):
        space, pod_name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        cluster.kill_container(space, pod_name, container)
        trial.wait_for(f"{pod_name} is back", lambda s=space, p=pod_name: back(cluster, s, p))
    trial.wait_condition(name, "Ready")
    found = {"NAME": name, "NAMESPACE": trial.name, "NODE": node, "SLOT": f"{name}-0"}
    return {**found, "ENGINE-POD": engine["metadata"]["name"], "AGENT-POD": agent["metadata"]["name"]}


def back(cluster: Cluster, namespace: str, pod: str) -> bool:
    """Whether its container runs again, Ready."""
    (one,) = cluster.get("pod", pod, namespace=namespace)["status"]["containerStatuses"]
    return bool(one["restartCount"] and one["ready"])

"""The command line of ling-nodeagent."""

from pathlib import Path

import pytest

from ling_api.errors import BadInput
from ling_nodeagent import table
from ling_nodeagent.__main__ import main
from ling_nodeagent.settings import Release, Serve, Status, parse

IN_CLUSTER = {"NODE_NAME": "n1", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}


def test_in_a_cluster_the_defaults_are_the_nodes_places(tmp_path: Path) -> None:
    assert parse(["serve", "--plugin-dir", str(tmp_path)], IN_CLUSTER) == Serve(
        run_dir=Path("/run/ling"),
        models_dir=Path("/var/lib/ling/models"),
        static=None,
        plugin_dir=tmp_path,
        pod_resources=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        node="n1",
        metrics_port=9400,
    )


def test_by_a_static_file_it_needs_neither_node_nor_kubelet_and_has_no_port(tmp_path: Path) -> None:
    settings = parse(["serve", "--static", "here.yaml", "--run-dir", str(tmp_path)], {})
    assert isinstance(settings, Serve)
    assert (settings.static, settings.node, settings.metrics_port) == (Path("here.yaml"), "", 0)


def test_taints_of_a_node_that_is_left_are_added_to_the_known_ones(tmp_path: Path) -> None:
    settings = parse(["serve", "--plugin-dir", str(tmp_path), "--leaving-taint", "acme.dev/patching"], IN_CLUSTER)
    assert isinstance(settings, Serve)
    assert {"acme.dev/patching", "node.kubernetes.io/unschedulable"} <= settings.leaving_taints


def test_status() -> None:
    assert parse(["status"], {}) == Status(run_dir=Path("/run/ling"), as_json=False)
    assert parse(["status", "--run-dir", "/r", "--json"], {}) == Status(run_dir=Path("/r"), as_json=True)


def test_release() -> None:
    run_dir = Path("/run/ling")
    assert parse(["release", "--all"], {}) == Release(run_dir=run_dir, slots=None, gpus=None, undo=False, timeout=180.0)
    one = parse(["release", "--gpu", "GPU-1"], {})
    assert one == Release(run_dir=run_dir, slots=None, gpus=("GPU-1",), undo=False, timeout=180.0)
    some = parse(["release", "--slot", "a/b", "--slot", "a/c", "--undo", "--timeout", "5"], {})
    assert some == Release(run_dir=run_dir, slots=("a/b", "a/c"), gpus=None, undo=True, timeout=5.0)


@pytest.mark.parametrize(
    ("argv", "env", "says"),
    [
        pytest.param([], {}, "required: serve|status|release", id="no-command"),
        pytest.param(["drive"], {}, "invalid choice: 'drive'", id="unknown-command"),
        pytest.param(["serve", "--gpu"], {}, "unrecognized arguments: --gpu", id="unknown-flag"),
        pytest.param(["serve"], {"KUBECONFIG": "c"}, "--node: write the name of this node", id="no-node"),
        pytest.param(["serve"], {"NODE_NAME": "n1"}, "no API server to talk to", id="no-cluster"),
        pytest.param(
            ["serve", "--plugin-dir", "/nowhere"], IN_CLUSTER, "--plugin-dir: /nowhere is no folder", id="plugin"
        ),
        pytest.param(
            ["serve", "--static", "f", "--run-dir", "run"], {}, "--run-dir: write an absolute path", id="relative"
        ),
        pytest.param(
            ["serve", "--static", "f", "--metrics-port", "70000"], {}, "--metrics-port: write a port", id="port"
        ),
        pytest.param(["serve", "--static", "f", "--metrics-port", "x"], {}, "invalid int value: 'x'", id="port-text"),
        pytest.param(["release"], {}, "one of the arguments --slot --gpu --all is required", id="release-what"),
        pytest.param(["status", "--static", "f"], {}, "unrecognized arguments: --static f", id="flag-of-another"),
    ],
)
def test_bad_input_is_one_line(argv: list[str], env: dict[str, str], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(argv, env)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_static_file_ends_it_with_2_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "directory.yaml"
    file.write_text("slots: {a: {}}")
    assert main(["serve", "--static", str(file), "--run-dir", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith(f"ling-nodeagent: {file}: slots.a.revision: write a revision")
    assert not (tmp_path / "run").exists()


def test_status_without_an_agent_is_one_line_and_exit_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--run-dir", str(tmp_path)]) == 4
    assert capsys.readouterr().err.startswith(f"ling-nodeagent: no agent answers at {tmp_path}/status.sock")


def test_the_table() -> None:
    engine = {
        "pod": "chat-0-1a2b3c4d-0", "revision": "1a2b3c4d", "role": "active", "phase": "accepting",
        "planBytes": 64 << 20, "requests": 12, "inFlight": 2, "ttftMs": 12.34, "tpotMs": 3.456,
        "acceptLength": 4.567, "deaths": 0,
    }  # fmt: skip
    held = {
        "set": "ab" * 32 + ":0", "role": "target", "rank": 0, "state": "sealed", "bytes": 1 << 30, "progress": 1.0,
        "holders": 3,
    }  # fmt: skip
    status = {
        "active": {"pod": engine["pod"], "uid": "u1", "term": 3},
        "engines": [engine], "weightSets": [held], "listener": True, "gpus": ["GPU-1"], "message": "waits for nothing",
        "capacity": {"total": 2 << 30, "weights": 1 << 30, "plans": 64 << 20},
        "conditions": [{"type": "Serving", "status": "True"}, {"type": "Recovering", "status": "False"}],
    }  # fmt: skip
    caller = {"namespace": "prod", "pod": "chat-0", "component": "slot", "slot": "prod/chat-0", "revision": ""}
    known = {"node": "n1", "slots": {"prod/chat-0": status}, "callers": {"d000": caller}, "openFds": 4, "streams": 1}
    assert table.render(known) == "\n".join(
        [
            "node n1: 1 slots, 1 callers, 1 launchers, 4 descriptors held",
            "",
            "slot prod/chat-0: Serving",
            "  active chat-0-1a2b3c4d-0 (term 3), listener held",
            "  GPUs GPU-1",
            "  memory 1.0 GiB weights + 64.0 MiB plans of 2.0 GiB",
            "  waits for nothing",
            "  ENGINE             REVISION  ROLE    PHASE      PLAN      REQUESTS  NOW  TTFT ms  TPOT ms  ACCEPT  DEATHS  EXIT",  # noqa: E501
            "  chat-0-1a2b3c4d-0  1a2b3c4d  active  accepting  64.0 MiB  12        2    12.3     3.46     4.57    0       -",  # noqa: E501
            "  WEIGHT SET        ROLE    STATE   SIZE     DONE  HOLDERS",
            "  abababababab..:0  target  sealed  1.0 GiB  100%  3",
            "",
            "DEVICE  POD          COMPONENT  SLOT         REVISION",
            "d000    prod/chat-0  slot       prod/chat-0  -",
        ]
    )

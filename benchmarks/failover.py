"""From the SIGKILL of the active server to the next first token, with a warm standby and with a gated one.

A client connects right after the kill and waits in the slot's backlog; nobody is refused. With a big model the kernel
needs long to tear the dead process's memory down: how long is told too (`died`), and that the standby did not wait.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time

from benchmarks.figures import Figure, median
from benchmarks.rig import BIN, REVISION, Rig, begun, model, until
from hack.ports import free_port

STATIC = f"""
slots:
  bench-0:
    {{deployment: bench, revision: {REVISION}, capacity: 8Gi, graceSeconds: 10, holdSeconds: 600, standbys: STANDBYS}}
callers:
  d000: {{pod: bench-0, uid: u0, slot: bench-0, component: slot}}
  d001: {{pod: one, uid: u1, slot: bench-0, component: engine, revision: {REVISION}}}
  d002: {{pod: two, uid: u2, slot: bench-0, component: engine, revision: {REVISION}}}
"""
PODS = {"one": "d001", "two": "d002"}


class Pair(Rig):
    """One slot with two engines; whoever does not serve is warm, or gated when `standbys` is 0."""

    def pair(self, preset: str, standbys: int) -> None:
        """Returns once one serves and the other is ready to take over."""
        self.model, self.standbys = model(preset), standbys
        self.static.write_text(STATIC.replace("STANDBYS", str(standbys)))
        self.start(
            "agent", str(BIN / "ling-nodeagent"), "serve", "--static", str(self.static), "--run-dir", str(self.run)
        )
        until(lambda: (self.run / "d" / "d002" / "fd.sock").exists(), "the agent's folders")
        env = {"LING_RUN": str(self.run / "d" / "d000"), "LING_PORT": str(self.port), "LING_ADDRESS": "127.0.0.1"}
        self.start("keeper", sys.executable, "-m", "ling_nodeagent.keeper", **env, LING_PROBE_PORT=str(free_port()))
        for pod, device in PODS.items():
            flags = ["--model", str(self.model), "--revision", REVISION, "--run-dir", str(self.run / "d" / device)]
            flags += ["--probe-port", "0", "--grace-seconds", "10", "--served-model-name", "try"]
            self.start(pod, str(BIN / "ling-engine"), "run", *flags)
        self.ready()

    def ready(self) -> str:
        """The pod that serves, when the other one is as it should be and the agent knows that both work."""
        other = "warm" if self.standbys else "gated"
        until(lambda: sorted(self.roles().values()) == sorted(["active", other]), f"an active and a {other} engine")
        self.complete(1)
        until(lambda: self.engine_status(self.active()).get("requests"), "the agent to hear of the answer")
        return self.active()

    def active(self) -> str:
        return str(self.status().get("active", {}).get("pod", ""))

    def roles(self) -> dict[str, str]:
        idle = {each["pod"]: each for each in self.status().get("engines", ())}
        return {pod: each["role"] for pod, each in idle.items() if each["phase"] in ("gated", "warm", "accepting")}

    def fail_over(self) -> tuple[float, float]:
        """Kill the active server; milliseconds to the next first token, and to its death as the kernel tells it."""
        server = self.server_pid(self.ready())
        pidfd = os.pidfd_open(server)
        with contextlib.closing(os.fdopen(pidfd)):
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            began = time.time()
            os.kill(server, 9)
            token = self.first_token()
            waited = 0 if poll.poll(0) else 1
            poll.poll(10_000)
            died = time.time()
        return (token - began) * 1000, (died - began) * 1000 if waited else 0.0


def pair(preset: str, standbys: int) -> contextlib.AbstractContextManager[Pair]:
    """Everything ends with the block."""
    return begun(Pair, lambda made: made.pair(preset, standbys))


def run(runs: int, preset: str) -> list[Figure]:
    """Medians of `runs` failovers each."""
    figures = []
    for name, standbys, most in (("warm", 1, 200), ("gated", 0, 5000)):
        with pair(preset, standbys) as slot:
            times = [slot.fail_over() for _ in range(runs)]
        figures.append(median(f"failover_{name}_{preset}", "ms", [first for first, _ in times], most=most))
        figures.append(median(f"failover_{name}_{preset}_died_after_token", "ms", [died for _, died in times]))
    return figures


def main(argv: list[str]) -> int:
    """Prints one line a figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("preset", nargs="?", default="tiny", help="of the random checkpoint (%(default)s)")
    parser.add_argument("runs", nargs="?", type=int, default=5, help="failovers of each kind (%(default)s)")
    flags = parser.parse_args(argv)
    for figure in run(flags.runs, flags.preset):
        print(figure.line(), [round(each, 1) for each in figure.samples])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

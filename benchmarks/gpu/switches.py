"""The parts that look for time: every switch against the cookbook's call, a decode step's profile, the bandwidth floor.

Engines of one mode stand side by side, each looking for requests all the time as SGLang does, on cores of its own
where there are enough; round by round each answers once, the order changing; a switch's steps are compared with the
cookbook's of that round, and the fastest of either with each other: what the GPU allows where the host holds up some.
What does not fit on the GPU at once comes in waves, each with the cookbook's again: every mode's first part, which has
our recipe in it, then every mode's second; small parts share a wave, and its time. Rounds end before the part's time
does, and what was measured is told.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks import moe_plan

from ling_bench import intervals
from ling_engine.reference.config import load_keys
from ling_engine.sglang.shape import shape_of
from ling_engine.sglang.sizes import set_bytes

from . import cores, switch_table, ties, trace
from .asking import Failed, post
from .parity import first_difference, prompts
from .stock import Stock, call

if TYPE_CHECKING:
    from ling_engine.sglang.shape import Shape

    from .asking import Answer
    from .stage import Stage
    from .switch_table import Call

PEAK = 4.8e12  # bytes/s of an H200's memory, as its maker says; a checksum pass read 4.5e12
_PROMPT = 512  # tokens
_FEWEST, _SPARE = 4, 10  # rounds that make an interval; seconds in which rounds are told and engines ended
_WAVE = 100  # seconds that a wave takes at least
_STEPS = 40  # of a profile
_OURS = (
    "recipe",
    switch_table.TUNED_RECIPE,
    switch_table.HOOKS_RECIPE,
    switch_table.LEAN_RECIPE,
    *switch_table.LESS,
    "all",
)


type Group = tuple[str, list[Call]]  # a mode; calls: the cookbook's and others


def switches(stage: Stage) -> None:
    """A row for each switch, and switches.md."""
    stage.drop_stock()
    stage.drop_ours()
    rows: list[Any] = []
    for number, groups in enumerate(waves(stage), 1):
        name = f"switches, wave {number}"
        if stage.lab.ends - time.monotonic() < _WAVE:
            left = {mode: [one.name for one in calls[1:]] for mode, calls in groups}
            stage.report.row(f"{name}: not run", left, "run", False)
            continue
        with stage.report.part(name):
            one_wave(stage, groups, rows)


def waves(stage: Stage) -> list[list[Group]]:
    """What runs side by side, in order: every mode's first part, which has our recipe in it, before any's second."""
    args = stage.args
    wanted = set(args.switches.split(",")) if args.switches else set()
    unknown = set(wanted)
    parts: list[tuple[int, Group]] = []
    for mode in stage.modes:
        called = call(stage.lab, stage.model, mode)
        base, *rest = switch_table.calls(mode, stage.lab.tp, called.argv, called.env, args.tuned)
        unknown -= {one.name for one in rest}
        rest = [one for one in rest if one.name in wanted] if wanted else rest
        each = args.beside - 1
        parts += [(at // each, (mode, [base, *rest[at : at + each]])) for at in range(0, len(rest), each)]
    if unknown:
        raise Failed(f"--switches: no mode has {', '.join(sorted(unknown))}")
    found: list[list[Group]] = []
    for _, group in sorted(parts, key=lambda one: one[0]):  # modes keep their order
        room = (wave for wave in found if sum(len(calls) for _, calls in (*wave, group)) <= args.beside)
        if (wave := next(room, None)) is not None:
            wave.append(group)
        else:
            found.append([group])
    return found


def one_wave(stage: Stage, groups: list[Group], rows: list[Any]) -> None:
    """Appends rows of the table, group by group; all engines are started at once."""
    made: list[Stock] = []
    everywhere = os.sched_getaffinity(0)
    try:
        with ThreadPoolExecutor(len(groups)) as pool:
            ready = list(pool.map(lambda group: comparable(stage, *group, made), groups))
        apart(stage, [engine for engines in ready for engine in engines.values()])
        for number, ((mode, _), engines) in enumerate(zip(groups, ready, strict=True)):
            ends = moe_plan.shares(groups[number:], time.monotonic(), stage.lab.ends)
            with stage.report.part(f"{mode} switches"):
                if "cookbook" not in engines:
                    raise Failed("the cookbook's call does not start: nothing to compare with")
                rows += compared(stage, mode, engines, ends)
                (stage.lab.out / "switches.md").write_text(switch_table.table(rows))
    finally:
        cores.pin([os.getpid()], everywhere)  # or what is started next would inherit a few
        for engine in made:
            engine.stop()


def apart(stage: Stage, engines: list[Stock]) -> None:
    """Every engine on cores of its own where there are enough, and this process on those that are left."""
    cpus = os.sched_getaffinity(0)
    shares = cores.shares(len(engines), cores.order(cpus), stage.lab.tp)
    for engine, own in zip(engines, shares, strict=False):
        cores.pin(engine.pids(), own)
    if shares:
        cores.pin([os.getpid()], shares[-1])
    said = [list(own) for own in shares] or f"{len(engines)} engines share {len(cpus)}"
    stage.report.row("processors of each engine, and of who asks", said)


def comparable(stage: Stage, mode: str, calls: list[Call], made: list[Stock]) -> dict[str, Stock]:
    """Engines that start, all on the same attention as the cookbook's; without it where it starts on none."""
    engines = started(stage, mode, calls, made)
    if calls[0].name not in engines:
        again = [switch_table.plainer(one) for one in calls if switch_table.on_fa3(one)]
        for one in again:  # all on the same attention, those that did start too
            if one.name in engines:
                engines.pop(one.name).stop()
        stage.report.row(f"{mode} cookbook: does not run as it is", "compared on Triton's attention")
        engines |= started(stage, mode, again, made)
    return engines


def started(stage: Stage, mode: str, calls: list[Call], made: list[Stock]) -> dict[str, Stock]:
    """Those that start and have answered once; `made` gets all, to be ended."""

    def start(one: Call) -> tuple[str, Stock] | None:
        name = "switch-" + "".join(c if c.isalnum() else "-" for c in f"{mode}-{one.name}".lower())
        engine = Stock(stage.lab, name, stage.model, mode, argv=one.argv, env=one.env)
        made.append(engine)
        try:
            engine.ready(stage.args.patience)
            engine.ask(prompts()[0][:64], 32, stage.args.temperature)
        except (Failed, OSError) as error:
            stage.report.row(f"{mode} {one.name}: does not run", " ".join(str(error).split())[-400:])
            engine.stop()
            return None
        return one.name, engine

    with ThreadPoolExecutor(max(len(calls), 1)) as pool:
        return dict(found for found in pool.map(start, calls) if found)


def compared(stage: Stage, mode: str, engines: dict[str, Stock], ends: float) -> list[Any]:
    """Step times in ms of whole rounds: {switch: [one a round]}, as rows; `ends`: when they are over, monotonic."""
    names, steps = list(engines), {name: list[float]() for name in engines}
    alike = {name: asked(stage, engines[name])[0] for name in names}  # a first round warms up
    for number in range(1, stage.args.pairs + 1):
        began, turn = time.monotonic(), number % len(names)
        for name in names[turn:] + names[:turn]:
            steps[name].append(statistics.fmean(one.tpot * one.accept for one in asked(stage, engines[name])) * 1000)
        if time.monotonic() + 1.5 * (time.monotonic() - began) + _SPARE > ends:
            break
    if len(steps["cookbook"]) < _FEWEST:
        raise Failed(f"time for {len(steps['cookbook'])} rounds alone: {steps}")
    return [told(stage, mode, name, steps, alike, engines) for name in names if name != "cookbook"]


def prompt(at: int = 0) -> list[int]:
    """_PROMPT ids, from the `at`th of a longer text on."""
    text = prompts()[-1] * (_PROMPT // len(prompts()[-1]) + 2)
    return text[at : at + _PROMPT]


def asked(stage: Stage, engine: Stock) -> list[Answer]:
    """Answers to as many prompts at once as an engine decodes at a time. Of several, one that is being decoded waits
    while the others are read, and the last is decoded alone: their mean step is no step of that many rows."""
    texts = [prompt(at) for at in range(stage.args.concurrency)]
    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(lambda text: engine.ask(text, stage.args.short, stage.args.temperature), texts))


def told(
    stage: Stage,
    mode: str,
    name: str,
    steps: dict[str, list[float]],
    alike: dict[str, Answer],
    engines: dict[str, Stock],
) -> Any:
    pairs = list(zip(steps[name], steps["cookbook"], strict=True))
    ratio, low, high = intervals.paired_ratio(pairs)
    step, best = statistics.fmean(steps[name]), min(steps[name]) / min(steps["cookbook"])
    alone = stage.args.concurrency == 1 and not stage.args.temperature
    goal = "upper < 1; <= 0.7 for one mode" if name in _OURS and alone else ""
    verdict = high < 1 if goal else None
    how = "" if alone else f", {stage.args.concurrency} at a time, temperature {stage.args.temperature:g}"
    what = f"{mode} {name}{how}"
    accept = [round(alike[one].accept, 3) for one in (name, "cookbook")]
    stage.report.row(
        f"{what}: step / cookbook's, {len(pairs)} rounds", f"{ratio:.3f} [{low:.3f}, {high:.3f}]", goal, verdict,
        said=switch_table.verdict(low, high), step_ms=step, fastest=best, accept=accept, rounds=pairs,
    )  # fmt: skip
    stage.report.row(f"{what}: fastest / cookbook's fastest", best)
    if not stage.args.temperature:
        parted(stage, mode, name, alike, engines)
    if mode == "None" and goal:
        floor(stage, f"{mode} {name}", step)
        if name == "recipe":
            floor(stage, f"{mode} cookbook", statistics.fmean(steps["cookbook"]))
    return (mode, f"{name}{how}", step, ratio, low, high, best)


def parted(stage: Stage, mode: str, name: str, alike: dict[str, Answer], engines: dict[str, Stock]) -> None:
    """Where a greedy answer parts from the cookbook's, and how close a call that was."""
    at = first_difference(alike[name], alike["cookbook"])
    stage.report.row(f"{mode} {name}: first token that differs", "none" if at is None else at)
    if at is not None and name in (switch_table.TUNED, "recipe"):
        engine = engines["cookbook"]
        with stage.report.part(f"{mode} {name}: near ties"):
            pair = (alike[name].tokens, alike["cookbook"].tokens)
            ties.told(stage.report, f"{mode} {name}", engine.port, [prompt()], [pair])


def floor(stage: Stage, what: str, step_ms: float) -> None:
    """Share of the speed that reading the active weights once would allow."""
    least = active_bytes(shape_of(load_keys(stage.model))) / PEAK * 1000
    said = f"{least / step_ms:.3f} of {least:.3f} ms"
    stage.report.row(f"{what}: share of the bandwidth floor of a plain step", said, step_ms=step_ms)


def active_bytes(shape: Shape) -> int:
    """Bytes of weights that a step of one token reads: all but the experts that are not met and the embedding."""
    item = 1 if shape.quantization else 2
    met = shape.experts_per_token
    unmet = (shape.experts - met) * 3 * shape.moe_intermediate * shape.hidden * item
    embedding = shape.vocab * shape.hidden * 2
    return set_bytes(shape, ("target",), 1, 1)["target"] - unmet * (shape.layers - shape.dense_layers) - embedding


def profile(stage: Stage) -> None:
    """One decode step of our call of each mode, by kind of kernel: a row, a table in the JSON, an SVG; and its kernels
    in their order as text."""
    stage.drop_stock()
    stage.drop_ours()
    for mode in stage.modes:
        with stage.report.part(f"{mode} profile"):
            engine = Stock(stage.lab, f"profile-{mode}".lower(), stage.model, mode, env=variables(stage))
            try:
                engine.ready(stage.args.patience)
                profiled(stage, mode, engine)
            finally:
                engine.stop()


def variables(stage: Stage) -> dict[str, str]:
    """Beside those of the recipe."""
    named = dict(one.split("=", 1) for one in stage.args.variable)
    return named | ({"SGLANG_MOE_CONFIG_DIR": stage.args.tuned} if stage.args.tuned else {})


def profiled(stage: Stage, mode: str, engine: Stock) -> None:
    """A profiler slows what surrounds the kernels: how long a step takes is asked without it."""
    folder = stage.lab.out / f"trace-{mode}".lower()
    engine.ask(prompts()[0], 64)
    answer = engine.ask(prompts()[0], 512)
    step = answer.tpot * answer.accept * 1e6
    body = {"output_dir": str(folder), "num_steps": _STEPS, "activities": ["GPU"], "with_stack": False,
            "record_shapes": False}  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(engine.ask, prompts()[0], 1024)
        time.sleep(0.3)  # the prompt is read by then
        post(engine.port, "/start_profile", body, text=True)
        asking.result()
    traces = lambda: sorted(folder.rglob("*.trace.json.gz"))  # noqa: E731
    stage.lab.until(lambda: traces() and complete(traces()[0]), "the profile", 60, engine.name)
    events = json.loads(gzip.decompress(traces()[0].read_bytes()))["traceEvents"]
    found = trace.parts(events, _STEPS, step)
    said = ", ".join(f"{one.kind} {one.us:.0f}" for one in found)
    longest = trace.longest(events, _STEPS)
    stage.report.row(
        f"{mode} a step of {step:.0f} us, us by kind of kernel", said,
        parts=[[p.kind, p.us, p.kernels] for p in found], longest=longest,
    )  # fmt: skip
    lines = [f"{begin:9.1f} {us:7.1f} {name}" for begin, us, name in trace.order(events, _STEPS)]
    (stage.lab.out / f"order-{mode}.txt".lower()).write_text("\n".join(lines) + "\n")
    title = f"One decode step, {mode}: {step:.0f} us"
    (stage.lab.out / f"step-{mode}.svg".lower()).write_text(trace.picture(title, found))
    for file in traces():
        file.unlink()  # tens of megabytes


def complete(file: Any) -> bool:
    """It is written when it can be read."""
    try:
        gzip.decompress(file.read_bytes())
    except (OSError, EOFError):
        return False
    return True

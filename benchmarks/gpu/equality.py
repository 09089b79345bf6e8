"""The parts that compare: engines from disk and from the slot, a draft that is broken on purpose, the reference."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from . import agreement, parity, smoke
from .asking import Failed
from .lab import CONTEXT, ROOT
from .models import zeroed
from .parity import prompts
from .stock import DRAFTS, Stock, call

if TYPE_CHECKING:
    from .stage import Stage


def models(stage: Stage) -> None:
    """The checkpoint."""
    smoke.model(stage.lab, stage.report, stage.model, stage.args.size.split(), 300)


def others(stage: Stage) -> None:
    """What times nothing: the reference engine's word, and SGLang's own weight cache, at once."""
    with ThreadPoolExecutor(2) as pool:
        cache = pool.submit(stock_cache, stage)
        with stage.report.part("reference"):
            reference(stage)
        cache.result()


def stock_cache(stage: Stage) -> None:
    """SGLang's own weight cache on the same model: without speculation, then with it."""
    lab, report = stage.lab, stage.report
    if lab.runtime != "sglang" or lab.cpu:
        return
    with report.part("stock weight cache"):
        called = call(lab, stage.model, "None")  # the same flags as its clients': it compares them
        daemon = [sys.executable, "-m", "sglang.srt.weight_cache.daemon", *called.argv, "--gpu-id", "0"]
        lab.start("stock-cache", *daemon, **called.env)
        lab.until(lambda: "Listening on" in lab.log("stock-cache"), "its daemon", 120, "stock-cache")
        more = ("--weight-cache-mode", "client")
        one = Stock(lab, "stock-cache-client", stage.model, "None", *more)
        try:
            one.ready(150)
            report.row("stock weight cache without speculation", f"serves: {one.ask(prompts()[0], 8).tokens}")
        except Failed as error:
            report.row("stock weight cache without speculation", str(error)[:500])
        lab.stop("stock-cache-client")
        two = Stock(lab, "stock-cache-nextn", stage.model, "NEXTN", *more)
        try:
            two.ready(60)
            report.row("stock weight cache with NEXTN", "serves")
        except Failed as error:
            report.row("stock weight cache with NEXTN", str(error)[:500])
    for name in ("stock-cache-client", "stock-cache-nextn", "stock-cache"):
        lab.stop(name)


def equal(stage: Stage) -> None:
    """Disk-loaded, filling and attached engines: all started side by side, then asked one mode after the other."""
    lab, report, args = stage.lab, stage.report, stage.args

    def one(mode: str) -> None:
        stage.pairs[mode] = parity.start(lab, report, stage.model, mode, patience=args.patience)

    with ThreadPoolExecutor(len(stage.modes)) as pool:
        list(pool.map(one, stage.modes))
    for mode in stage.modes:
        with report.part(f"{mode} parity"):
            found = parity.run(lab, report, stage.pairs[mode], args.new)
            stage.expected[mode] = next((found[name] for name in ("disk", "fill") if name in found), [])
    plain = stage.expected.get("None", [])
    for mode in stage.modes:
        if mode != "None" and plain and stage.expected.get(mode):
            parity.differ(report, f"{mode} and None", stage.expected[mode], plain, stage.pairs["None"].engine)


def full(stage: Stage) -> None:
    """An answer that goes on to the end of the context, the drafts of its last round behind it; the engine lives on."""
    prompt, short = prompts()[0][:32], prompts()[1]
    for mode in stage.modes:
        with stage.report.part(f"{mode} full context"):
            pair = stage.pair(mode)
            if pair.slot is None:
                raise Failed("no slot")
            before, server = pair.slot.ask(short, 32).tokens, pair.slot.server(pair.pod)
            new = CONTEXT - len(prompt) - (DRAFTS if mode == "NEXTN" else 0)
            found = len(pair.slot.ask(prompt, new).tokens)
            least = CONTEXT - len(prompt) - 8  # SGLang keeps some to itself
            name = f"{mode} a request to the end of its context"
            stage.report.row(f"{name}: tokens", found, f">= {least}", found >= least)
            alike = pair.slot.ask(short, 32).tokens == before and pair.slot.server(pair.pod) == server
            stage.report.row(f"{name}: the same server goes on, with the same answers", alike, "yes", alike)


def canary(stage: Stage) -> None:
    """One tensor of the draft is zero: the accept length must fall, or the comparisons above prove nothing."""
    if "NEXTN" not in stage.modes:
        return
    layers = json.loads((stage.model / "config.json").read_text())["num_hidden_layers"]
    folder = stage.model.with_name("zeroed")
    zeroed(stage.model, folder, f"model.layers.{layers}.eh_proj.weight")
    slot = stage.lab.slot("zeroed")
    slot.engine("ours-zeroed", folder, "NEXTN")
    slot.serves("ours-zeroed", stage.args.patience)
    found = [slot.ask(prompt, stage.args.new) for prompt in prompts()[:3]]
    mean = sum(one.accept for one in found) / len(found)
    least = parity.LEAST["NEXTN"]
    report = stage.report
    report.row("NEXTN with a zeroed draft tensor: accept length", mean, f"< {least}: noticed", mean < least)
    wanted = stage.expected.get("NEXTN", [])[:3]
    plain = stage.pairs.get("None")
    judge = plain.engine if plain is not None and plain.engine is not None else slot
    if wanted:
        parity.differ(report, "NEXTN with a zeroed draft tensor, and without", found, wanted, judge)
    stage.lab.stop("ours-zeroed")


def reference(stage: Stage) -> None:
    """Top-1 agreement with the reference engine in fp32 over a given text of 2,049 tokens."""
    slot = stage.pair("None").slot
    if slot is None or stage.lab.runtime != "sglang":
        raise Failed("needs SGLang")
    ids: list[int] = []
    pieces = itertools.cycle(prompts(9, seed=5))
    while len(ids) <= stage.args.positions:
        ids += next(pieces)[:60]
        ids += list(slot.ask(ids[-200:], 170).tokens)
    ids = ids[: stage.args.positions + 1]
    top = agreement.told(slot.port, ids)
    told = stage.lab.out / "told.json"
    told.write_text(json.dumps({"ids": ids, "top": top}))
    argv = [sys.executable, "-m", "benchmarks.gpu.agreement", str(stage.model), str(told)]
    done = subprocess.run(argv, env=stage.lab.env, cwd=ROOT, capture_output=True, text=True, timeout=240)
    if done.returncode:
        raise Failed(done.stderr[-600:])
    found = json.loads(done.stdout.splitlines()[-1])
    report, control = stage.report, found.pop("control")
    said = f"{found['share']:.4f} of {found['positions']}"
    report.row("top-1 agreement with fp32 reference", said, ">= 0.99", found["share"] >= 0.99, **found)
    said = f"{found['wide_share']:.4f} of {found['wide']}"
    name = f"top-1 agreement where the two best are {agreement.WIDE} apart"
    report.row(name, said, ">= 0.99", found["wide_share"] >= 0.99)
    least = control["share"] - 0.01
    said = f"{found['share']:.4f} and {control['share']:.4f}"
    report.row("agreement with fp32, of the engine and of the reference in bf16", said, f">= {least:.4f}",
               found["share"] >= least, control=control)  # fmt: skip


def wide(stage: Stage) -> None:
    """Two layers of full width with 512 experts: the same comparison."""
    folder = stage.args.models / "wide"
    smoke.model(stage.lab, stage.report, folder, ["--layers", "2", "--experts", "512", "--dial", "8"], 200)
    for mode in ("None", "NEXTN"):
        with stage.report.part(f"wide {mode}"):
            pair = parity.start(stage.lab, stage.report, folder, mode, patience=stage.args.patience, tag="wide-")
            parity.run(stage.lab, stage.report, pair, stage.args.new, tag="wide ")
            stage.lab.stop(pair.pod)
            if pair.stock is not None:
                pair.stock.stop()

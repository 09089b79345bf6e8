"""The two processes of the weights tests. SGLang's environment.

`fill FOLDER SOCKET RESULT` (stays, and serves) and `attach FOLDER SOCKET RESULT MUTATION`: target, NEXTN and DSPARK,
each as SGLang's model runners load them; every reachable tensor described, a few greedy ids found.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_loader.loader import get_model_loader
from tests.support import sglang_boot as boot
from tests.support.sglang_slot import Attacher, Filler, flipped, seat_with
from tests.support.sglang_tensors import describe

from ling_api.manifest import Manifest
from ling_engine.sglang import take
from ling_engine.sglang.form import Form, Member

PROMPT, IDS = (5, 6, 7, 8, 9, 10, 11, 12), 3
PRIVATE = ("--load-format", "private")


def fill(folder: str, path: str, result: str) -> NoReturn:
    side = Filler()
    seat_with(side)
    booted = boot.boot(folder, *PRIVATE)
    stock = {role: describe(_stock(booted, role, folder)) for role in ("target", "nextn", "dspark")}
    told = {"stock": stock, **_loaded(booted, folder)}
    told["bytes"] = {role: one.manifest.nbytes for role, one in side.sets.items()}
    _write(result, told)
    side.serve(Path(path))


def attach(folder: str, path: str, result: str, mutation: str) -> None:
    patches, change = MUTATIONS[mutation]
    seat_with(Attacher(Path(path), change))
    booted = boot.boot(folder, *PRIVATE)
    with patches():
        told = _loaded(booted, folder) if mutation == "none" else {"described": {"target": describe(_target(booted))}}
    _write(result, told)


def write(folder: str, path: str, _result: str, _mutation: str) -> None:
    """Attaches and then writes into a parameter."""
    seat_with(Attacher(Path(path)))
    runner = boot.target_runner(boot.boot(folder, *PRIVATE))
    print("attached", flush=True)
    runner.model.model.norm.weight.data.zero_()
    print("written", flush=True)


def boot_only(folder: str, _path: str, _result: str, _mutation: str) -> None:
    """As somebody who starts SGLang by itself: no seat."""
    boot.target_runner(boot.boot(folder, *PRIVATE))


def _stock(booted: boot.Booted, role: str, folder: str) -> torch.nn.Module:
    """As SGLang loads it from disk."""
    config = booted.config if role == "target" else booted.draft_config(_place(role, folder))
    loader = get_model_loader(LoadConfig(load_format="auto"), config)
    given = {"model_config": config, "device_config": DeviceConfig("cpu", 0)}
    if role == "target":
        return loader.load_model(**given)
    with boot.as_draft():
        return loader.load_model(**given)


def _target(booted: boot.Booted) -> torch.nn.Module:
    return boot.target_runner(booted).model


def _loaded(booted: boot.Booted, folder: str) -> dict[str, Any]:
    """All three by model runners, described before and after the drafts are lent the target's ends."""
    target = boot.target_runner(booted)
    drafts = {role: boot.draft_runner(booted, target, _place(role, folder)) for role in ("nextn", "dspark")}
    described = {"target": describe(target.model), **{role: describe(one.model) for role, one in drafts.items()}}
    drafts["nextn"].model.set_embed_and_head(*target.model.get_embed_and_head())
    complete = not any(p.is_meta for one in (target, *drafts.values()) for p in one.model.parameters())
    return {"described": described, "complete": complete, "ids": _greedy(target)}


def _place(role: str, folder: str) -> str:
    return folder if role == "nextn" else f"{folder}/dspark"


def _greedy(runner: ModelRunner) -> list[list[float]]:
    """[id, its log-probability] of a few ids."""
    out, batch = boot.prefill(runner, boot.request(PROMPT))
    scores, found = out.next_token_logits, []
    for _ in range(IDS):
        last = scores.argmax(-1)
        found.append([int(last), float(scores.log_softmax(-1)[0, last])])
        _, scores = boot.decode(runner, last, batch)
    return found


def _write(result: str, told: dict[str, Any]) -> None:
    whole = Path(result)
    whole.with_suffix(".part").write_text(json.dumps(told))
    whole.with_suffix(".part").rename(whole)


def _unchanged(manifest: Manifest, fds: list[int]) -> tuple[Manifest, list[int]]:
    return manifest, fds


def _without(wanted: Callable[[Member], bool]) -> Callable[[Manifest, list[int]], tuple[Manifest, list[int]]]:
    def change(manifest: Manifest, fds: list[int]) -> tuple[Manifest, list[int]]:
        form = Form.from_text(manifest.form)
        kept = tuple(member for member in form.members if not wanted(member))
        return replace(manifest, form=replace(form, members=kept).to_text()), fds

    return change


def _flip(manifest: Manifest, fds: list[int]) -> tuple[Manifest, list[int]]:
    middle = manifest.tensors[len(manifest.tensors) // 2]
    at, number = middle.offset, 0
    while at >= manifest.regions[number].size:
        at, number = at - manifest.regions[number].size, number + 1
    return manifest, [flipped(fd, at) if index == number else fd for index, fd in enumerate(fds)]


def _no_aliases() -> Any:
    """A loader that puts parameters in place and nothing else, and does not look at what it did."""
    real = take._hang
    parameters = lambda found, member, tensor: real(found, member, tensor) if member.how == "parameter" else None  # noqa: E731
    return mock.patch.multiple(take, _hang=parameters, _check_taken=lambda *_: None)


def _aliases_unlooked() -> Any:
    """The same, but its own look at the result is left to it."""
    real = take._hang
    parameters = lambda found, member, tensor: real(found, member, tensor) if member.how == "parameter" else None  # noqa: E731
    return mock.patch.object(take, "_hang", parameters)


MUTATIONS: dict[str, tuple[Callable[[], Any], Callable[[Manifest, list[int]], tuple[Manifest, list[int]]]]] = {
    "none": (mock.MagicMock, _unchanged),
    "aliases": (_aliases_unlooked, _unchanged),
    "aliases-unchecked": (_no_aliases, _unchanged),
    "derived": (mock.MagicMock, _without(lambda member: str(member.key) in ("w_kc", "w_vc"))),
    "flipped": (mock.MagicMock, _flip),
}


def main(argv: Sequence[str]) -> int:
    does = {"fill": fill, "attach": attach, "write": write, "boot": boot_only}[argv[0]]
    does(*argv[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

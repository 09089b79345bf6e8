"""SGLang as a runtime. Chosen with `--runtime sglang`; importing this module imports no SGLang."""

from __future__ import annotations

import importlib.util
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ling_api import names
from ling_api.errors import BadInput, DeviceError, PluginMissing
from ling_engine.reference.config import load_keys

from . import caches, device, guards, preload, provenance
from . import describe as description
from .describe import Device

if TYPE_CHECKING:
    from ling_engine.body import Body, Room
    from ling_engine.runtime import Description, ModelSettings, ServedModel


# Tokens between two words of an answer that is not streamed, by which a hung engine is told from a slow one. SGLang
# says one when the number of tokens is a multiple of this: a prime above the most that a round gives (64) is met.
_BUNDLE = "67"


class Sglang:
    """A Runtime, and Hosting."""

    name = "sglang"
    # On a GPU's machine two: the driver library's, which starts with the library, before any CUDA call, and that of
    # jemalloc (pyarrow brings it), which cleans up. Neither holds a lock that a fork needs but malloc's, which glibc
    # and jemalloc take around a fork themselves; the driver is first called in the forked rank. Ran so on an H200.
    native_threads = True

    def __init__(self) -> None:
        self._facts: device.Facts | None = None
        self._asked = False
        self._environ: dict[str, str] = {}  # before SGLang was imported, which sets variables itself

    def preload(self, settings: ModelSettings) -> None:
        """Raises BadInput for settings, PluginMissing without SGLang, DeviceError when CUDA was touched."""
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # said above
        facts = self._device_facts()
        guards.set_environment(facts)
        self._set_environment(settings)
        if facts is not None:
            guards.arm(facts)
        preload.plugins()  # first: each of their hooks looks through all modules that are there
        preload.modules(load_keys(settings.path)["architectures"][0])
        if preload.has_tokenizer(settings.path):
            preload.tokenizer(settings.path)
        here = device.described(facts)
        provenance.machine(here.kind, here.text)
        if device.initialized():
            raise DeviceError("importing SGLang has called the GPU's driver: no fork of this zygote could use the GPU")

    def kernels(self, settings: ModelSettings) -> str:
        here = self._here(settings)
        return provenance.code_digest(here.kind, here.text)

    def describe(self, settings: ModelSettings) -> Description:
        self._set_environment(settings)
        if settings.for_gpu and self._device_facts() is None:
            from . import elsewhere

            with elsewhere.told(self._here(settings)):
                return self._described(settings)
        return self._described(settings)

    def _described(self, settings: ModelSettings) -> Description:
        found = description.describe(settings, self._here(settings), self._environ)
        facts = self._device_facts()
        memory = facts.memory * settings.tp if facts else 0
        jit = self.kernels(settings)
        return replace(found, jit=jit, device_bytes=memory, gpus=facts.uuids[: settings.tp] if facts else ())

    def open(self, settings: ModelSettings) -> ServedModel:
        raise BadInput("SGLang computes in processes of its own; it has a body")

    def body(self, room: Room) -> Body:
        from .hosted import Hosted

        return Hosted(room, self, self._here(room.settings.model_settings()))

    def _set_environment(self, settings: ModelSettings) -> None:
        """Once, before SGLang is imported. Raises BadInput, PluginMissing."""
        if self._environ:
            return
        _, called = description.command(settings, self._here(settings), os.environ)
        for name, value in {**called.env, **_cache_folder()}.items():
            os.environ.setdefault(name, value)
        self._environ = dict(os.environ)
        os.environ.setdefault("SGLANG_FORCE_STREAM_INTERVAL", _BUNDLE if self._facts else "1")
        os.environ.setdefault(preload.REGISTRY, preload.ARCHITECTURES)
        if importlib.util.find_spec("sglang") is None:
            raise PluginMissing("--runtime sglang: this environment has no SGLang; use an engine image that has it")

    def _here(self, settings: ModelSettings) -> Device:
        """The GPU that is here, or the one that is asked about."""
        here = device.described(self._device_facts())
        if not settings.for_gpu:
            return here
        major, minor = (int(part) for part in settings.for_gpu.split("."))
        asked = (major, minor)
        if here.capability not in (None, asked):
            raise BadInput(f"--for-gpu {settings.for_gpu}: the GPU that is here has {here.text}; leave it out")
        return Device(capability=asked)

    def _device_facts(self) -> device.Facts | None:
        if not self._asked:
            self._facts, self._asked = device.facts() if device.visible() else None, True
        return self._facts


def _cache_folder() -> dict[str, str]:
    """Variables for the folder of compiled kernels; none where nothing can be kept."""
    folder = Path(os.environ.get(names.ENV_CACHE_DIR, names.CACHE_DIR))
    return caches.variables(folder) if folder.is_dir() and os.access(folder, os.W_OK) else {}


RUNTIME = Sglang()

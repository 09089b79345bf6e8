"""SGLang's registry of models as a zygote of ours has it. `RESULT`: a file for what was found, as JSON."""

import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from ling_engine.sglang import preload

OTHER = "sglang.srt.models.gpt_oss"


def main(argv: Sequence[str]) -> int:
    with mock.patch.dict(os.environ, {preload.REGISTRY: preload.ARCHITECTURES}):
        registry = importlib.import_module("sglang.srt.models.registry").ModelRegistry
    told = {
        "from the start": sorted(registry.models),
        "target": registry.resolve_model_cls(["BailingMoeV3ForCausalLM"])[0].__module__,
        "draft": registry.resolve_model_cls(["BailingMoeForCausalLMNextN"])[0].__module__,
        "others imported": OTHER in sys.modules,
        "another": registry.resolve_model_cls(["GptOssForCausalLM"])[0].__module__,
    }
    Path(argv[0]).write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

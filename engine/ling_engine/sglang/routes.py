"""Which of SGLang's routes are served: OpenAI's, `/generate`, and what only informs. Pure.

SGLang has some hundred routes more; many of them write weights, release memory, stop or slow the engine.
"""

from __future__ import annotations

from ling_engine.paths import Paths

PATHS = Paths(
    generating=frozenset({"/v1/completions", "/v1/chat/completions", "/generate"}),
    informing=frozenset({"/v1/models", "/model_info", "/server_info", "/ready"}),
    below=("/v1/models/",),
    asking=frozenset({"/v1/tokenize", "/v1/detokenize", "/tokenize", "/detokenize"}),
)

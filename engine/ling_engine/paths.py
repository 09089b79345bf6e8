"""Which paths a server answers; all others are answered 403, whatever routes the application behind has.

Pure. An allow-list, not a deny-list: some runtimes have routes that write weights, and each release has new ones.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """`generating` answers POST and is counted, timed, drained; `informing` and what lies `below` answers GET."""

    generating: frozenset[str]
    informing: frozenset[str]
    below: tuple[str, ...] = ()  # prefixes, each ends with /
    asking: frozenset[str] = frozenset()  # POST, but no generation: tokenizing, for one

    def label(self, path: str) -> str:
        """For metrics: one word for all below a prefix, `other` for what is not served."""
        if path in self.generating or path in self.informing or path in self.asking:
            return path
        return next((prefix.rstrip("/") for prefix in self.below if path.startswith(prefix)), "other")

    def methods(self, path: str) -> frozenset[str]:
        """That the path answers to; none = it is not served. OPTIONS is what browsers ask first."""
        if path in self.generating or path in self.asking:
            return frozenset({"POST", "OPTIONS"})
        if path in self.informing or path.startswith(self.below):
            return frozenset({"GET", "HEAD", "OPTIONS"})
        return frozenset()


OPENAI = Paths(
    generating=frozenset({"/v1/completions", "/v1/chat/completions", "/generate"}),
    informing=frozenset({"/v1/models"}),
    below=("/v1/models/",),
)

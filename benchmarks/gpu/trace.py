"""Where the time of a decode step goes, from a trace of torch's profiler. Pure: events in, rows and a picture out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The first that matches a kernel's name.
KINDS: Final = (
    ("experts", r"fused_moe|experts_|router|moe_align|moe_sum|act_and_mul|silu_and_mul|topk|routing|grouped_gemm"),
    ("KDA", r"kda|gated_delta|delta_rule|chunk_|recurrent|causal_conv|conv1d|l2norm|gla_"),
    ("MLA", r"mla|attention|attn|flash|paged|decode_kernel|extend|fwd_grouped|concat_and_cast|rope|rotary"),
    ("all-reduce", r"all_?reduce|nccl|reduce_scatter|all_?gather|lamport"),
    ("matrix products", r"gemm|gemv|cutlass|cublas|matmul|sm90_|splitk|nvjet|dot_kernel"),
    ("norms", r"norm"),
    ("drafts and acceptance", r"markov|accept|verify|draft|spec|tree|sample|argmax"),
    ("copies", r"memcpy|memset|copy|fill|cat_|catarray|index|scatter|gather"),
)
REST: Final = "other kernels"
GAPS: Final = "nothing runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Microseconds and kernels of one step."""

    kind: str
    us: float
    kernels: float


def kind_of(name: str) -> str:
    lowered = name.lower()
    return next((kind for kind, pattern in KINDS if re.search(pattern, lowered)), REST)


def kernels(events: Iterable[dict[str, Any]]) -> list[tuple[float, float, str]]:
    """(begin, end, name) in us of everything that ran on the GPU, by time."""
    chosen = (one for one in events if one.get("ph") == "X" and str(one.get("cat")) in _ON_GPU)
    return sorted((float(one["ts"]), float(one["ts"]) + float(one["dur"]), str(one["name"])) for one in chosen)


_ON_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")


def parts(events: Iterable[dict[str, Any]], steps: int, step_us: float) -> list[Part]:
    """Of one of `steps` steps, the longest first, what nobody used last. Work side by side counts as each of both.

    What nobody used is what is left of `step_us`, of a step without the profiler, which stretches what surrounds the
    kernels.
    """
    ran = kernels(events)
    if not ran or steps < 1:
        return []
    found: dict[str, list[float]] = {}
    for begin, end, name in ran:
        found.setdefault(kind_of(name), []).append(end - begin)
    told = [Part(kind=kind, us=sum(each) / steps, kernels=len(each) / steps) for kind, each in found.items()]
    told.sort(key=lambda one: -one.us)
    busy, reached = 0.0, ran[0][0]
    for begin, end, _ in ran:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return [*told, Part(kind=GAPS, us=max(step_us - busy / steps, 0.0), kernels=0.0)]


def longest(events: Iterable[dict[str, Any]], steps: int, count: int = 12) -> list[tuple[str, float, float]]:
    """(name, us of a step, calls of a step) of the kernels that take most."""
    found: dict[str, list[float]] = {}
    for begin, end, name in kernels(events):
        found.setdefault(name, []).append(end - begin)
    ordered = sorted(found.items(), key=lambda one: -sum(one[1]))[:count]
    return [(name[:120], sum(each) / steps, len(each) / steps) for name, each in ordered]


def order(events: Iterable[dict[str, Any]], steps: int) -> list[tuple[float, float, str]]:
    """(us since the step's first kernel, us, name) of the kernels of a step in the middle, as they began."""
    ran = kernels(events)
    each = len(ran) // steps if steps else 0
    chosen = ran[each * (steps // 2) :][:each]
    return [(begin - chosen[0][0], end - begin, name[:120]) for begin, end, name in chosen]


_WIDTH, _ROW, _LEFT = 720, 26, 190


def picture(title: str, told: Sequence[Part]) -> str:
    """Bars, one a kind of work, as SVG."""
    most = max((one.us for one in told), default=1.0) or 1.0
    height = _ROW * (len(told) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">',
        '<style>text { font-size: 13px }</style><rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-weight="bold">{escape(title)}</text>',
    ]
    for number, one in enumerate(told, 1):
        y, width = _ROW * number + 8, one.us / most * (_WIDTH - _LEFT - 190)
        colour = "#bbbbbb" if one.kind == GAPS else "#3b6ea5"
        said = f"{one.us:.0f} us" + (f", {one.kernels:.0f} kernels" if one.kernels else "")
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(one.kind)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{max(width, 1):.1f}" height="18" fill="{colour}"/>',
            f'<text x="{_LEFT + width + 6:.1f}" y="{y + 14}">{said}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"

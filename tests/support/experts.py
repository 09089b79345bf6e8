"""A layer of experts by its definition, in plain torch: what kernels are held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ling_engine.kernels.plans import Choice


def chosen(scores: torch.Tensor, bias: torch.Tensor, choice: Choice) -> tuple[torch.Tensor, torch.Tensor]:
    """By the definition, of equals the lower number first."""
    weights, ids = [], []
    for row in scores.double().sigmoid().tolist():
        rank = [torch.tensor(value).float().add(shift).item() for value, shift in zip(row, bias.tolist(), strict=True)]
        size = len(rank) // choice.groups
        groups = [range(at, at + size) for at in range(0, len(rank), size)]
        of_group = [sum(sorted((rank[one] for one in group), reverse=True)[:2]) for group in groups]
        best = sorted(range(choice.groups), key=lambda one: (-of_group[one], one))[: choice.of_groups]
        picked = sorted((one for at in best for one in groups[at]), key=lambda one: (-rank[one], one))[: choice.chosen]
        values = torch.tensor([row[one] for one in picked], dtype=torch.float64)
        values = values / values.sum() if choice.renormalize else values
        values = values * choice.scale if choice.scaled else values
        shared = choice.slots - choice.chosen
        weights.append([*values.tolist(), *[1.0 if choice.scaled else 1 / choice.scale] * shared])
        ids.append([*picked, *range(len(rank), len(rank) + shared)])
    return torch.tensor(weights), torch.tensor(ids, dtype=torch.int32)


def summed(
    x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, scale: float,
    limit: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """[rows, hidden] in x's type, rounded where SGLang rounds; `up` [experts, 2 x columns, hidden], gate first."""
    columns, kind = down.shape[2], x.dtype
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for row, experts in enumerate(ids.tolist()):
        for slot, expert in enumerate(experts):
            if expert < 0:
                continue
            both = (up[expert].float() @ x[row].float()).to(kind).float()
            gate, value = torch.nn.functional.silu(both[:columns]), both[columns:]
            if limit is not None:
                gate, value = gate.clamp(max=limit), value.clamp(-limit, limit)
            part = down[expert].float() @ (gate * value).to(kind).float()
            out[row] += (part * weights[row, slot]).to(kind).float()
    return (out * scale).to(kind)

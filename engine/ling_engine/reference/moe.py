"""Feed-forward layers: dense, and a mixture of experts with a grouped sigmoid router.

The choice of experts uses sigmoid + bias, their weights the sigmoid alone. Other engines differ in places: some apply
the routed clamp to the shared expert, or no scaling at all; here the published formula holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ling_engine.reference.layers import Linear, Weight, parameter

if TYPE_CHECKING:
    from ling_engine.reference.config import Config

FEW_ROWS = 16  # so few rows pass an expert as fast as one: its weights are what takes time, and no row is copied


class Glu(nn.Module):
    """down(silu(gate x) ⊙ up x); with a limit L, silu is cut at L from above and up x to -L..L."""

    def __init__(self, width: int, inner: int, limit: float | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.limit = limit
        self.gate_proj, self.up_proj = Linear(inner, width, dtype=dtype), Linear(inner, width, dtype=dtype)
        self.down_proj = Linear(width, inner, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.silu(self.gate_proj(x)), self.up_proj(x)
        if self.limit is not None:
            a, b = a.clamp(max=self.limit), b.clamp(-self.limit, self.limit)
        y: Tensor = self.down_proj(a * b)
        return y


class Router(Weight):
    """Chooses experts; its arithmetic is in its own dtype up to the scores, then fp32."""

    def __init__(self, c: Config) -> None:
        super().__init__(c.num_experts, c.hidden_size, dtype=getattr(torch, c.router_dtype))
        self.expert_bias = parameter(c.num_experts, dtype=torch.float32)
        self.groups, self.kept, self.chosen = c.n_group, c.topk_group, c.num_experts_per_tok
        self.scale = c.routed_scaling_factor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, D] -> ids [T, k] and weights [T, k], fp32, that sum to the routed scaling factor."""
        scores = F.linear(x.to(self.weight.dtype), self.weight).float().sigmoid()
        groups = torch.unflatten(scores + self.expert_bias, -1, (self.groups, -1))
        best = groups.topk(2, -1).values.sum(-1).topk(self.kept, -1).indices
        closed = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter_(-1, best, False)
        ids = groups.masked_fill(closed[..., None], -torch.inf).flatten(1).topk(self.chosen, -1).indices
        weights = scores.gather(-1, ids)
        return ids, weights * (self.scale / (weights.sum(-1, keepdim=True) + 1e-20))


class Moe(nn.Module):
    """Routed experts, and one that every token passes, unscaled."""

    def __init__(self, c: Config, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        width, inner = c.hidden_size, c.moe_intermediate_size
        self.gate = Router(c)
        self.experts = nn.ModuleList(Glu(width, inner, c.expert_limits[layer], dtype) for _ in range(c.num_experts))
        self.shared_experts = Glu(width, c.moe_shared_expert_intermediate_size, c.shared_limits[layer], dtype)

    def forward(self, x: Tensor) -> Tensor:
        ids, weights = self.gate(x)
        y: Tensor = self.shared_experts(x).float()
        share = weights.new_zeros(len(x), len(self.experts)).scatter_(1, ids, weights)
        for expert in sorted(set(ids.flatten().tolist())):
            column = share[:, expert, None]
            if len(x) <= FEW_ROWS:
                y.addcmul_(self.experts[expert](x), column)
            else:
                rows = column.squeeze(1).nonzero().squeeze(1)
                y.index_add_(0, rows, self.experts[expert](x[rows]) * column[rows])
        return y.to(x.dtype)

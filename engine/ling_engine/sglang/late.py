"""Modules that SGLang's ranks import late on a GPU, beside those of `preload`: seen on an H200 with every algorithm.

Without them each respawn imports them again. Only those that know nothing of a device, and of SGLang what its models
import: what loads a device's library is left to the ranks. A release that lacks one does without.
"""

from __future__ import annotations

from typing import Final

MODULES: Final = (
    "sglang.kernels.ops.attention.fla.fused_recurrent",
    "sglang.kernels.ops.attention.fla.op",
    "sglang.kernels.ops.attention.score_mod",
    "sglang.kernels.ops.mamba.causal_conv1d_triton",
    "sglang.kernels.ops.mamba.mamba_state_indices_triton",
    "sglang.kernels.ops.mamba.mamba_state_scatter_triton",
    "sglang.srt.layers.attention.hybrid_linear_attn_backend",
    "sglang.srt.layers.attention.mamba.causal_conv1d",
    "sglang.srt.layers.attention.mamba.mamba",
    "sglang.srt.layers.attention.mamba.mamba2_metadata",
    "sglang.srt.layers.attention.mamba.mixer2_rms_norm_gated",
    "sglang.srt.layers.attention.mamba.prefill_track_metadata",
    "sglang.srt.layers.attention.mamba.replay_state_indices_validator",
    "sympy.combinatorics.free_groups",
    "sympy.combinatorics.generators",
    "sympy.combinatorics.graycode",
    "sympy.combinatorics.group_constructs",
    "sympy.combinatorics.named_groups",
    "sympy.combinatorics.partitions",
    "sympy.combinatorics.pc_groups",
    "sympy.combinatorics.perm_groups",
    "sympy.combinatorics.permutations",
    "sympy.combinatorics.polyhedron",
    "sympy.combinatorics.prufer",
    "sympy.combinatorics.subsets",
    "sympy.combinatorics.tensor_can",
    "sympy.combinatorics.util",
    "sympy.tensor.tensor",
    "tomllib._parser",
    "tomllib._re",
    "tomllib._types",
    "torch._dynamo.backends.cudagraphs",
    "torch._dynamo.backends.distributed",
    "torch._dynamo.backends.inductor",
    "torch._dynamo.backends.onnxrt",
    "torch._dynamo.backends.tensorrt",
    "torch._dynamo.backends.torchxla",
    "torch._dynamo.backends.tvm",
    "torch._export.db.logging",
    "torch._export.passes.add_runtime_assertions_for_constraints_pass",
    "torch._export.passes.collect_tracepoints_pass",
    "torch._subclasses.schema_check_mode",
    "torch.distributed.tensor.experimental._attention",
    "torch.distributed.tensor.experimental._context_parallel._attention",
    "torch.distributed.tensor.experimental._context_parallel._cp_custom_ops",
    "torch.distributed.tensor.experimental._context_parallel._load_balancer",
    "torch.distributed.tensor.experimental._func_map",
    "torch.distributed.tensor.experimental._register_sharding",
    "torch.export._leakage_detection_utils",
    "torch.export._trace",
    "torch.export._unlift",
    "torch.fx.experimental.validator",
)

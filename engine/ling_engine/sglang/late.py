"""Modules that SGLang's ranks import late on a GPU, beside those of `preload`: seen on an H200 with every algorithm.

Without them each respawn imports them again. Only those that know nothing of a device: kernels and what loads a
device's library are left to the ranks. A release that lacks one does without.
"""

from __future__ import annotations

from typing import Final

MODULES: Final = (
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

"""SGLang's Triton kernels in Triton's own CPU interpreter, and three things that it does not do by itself.

It swaps the functions of `triton.language` while a kernel runs; kernels that hold such a function under a name of their
own (`exp = tl.exp`) keep the real one, which needs a compiler. They get one that looks it up when called. Its products
of bfloat16 matrices multiply the bits as whole numbers. And the autotuner would time kernels with a GPU's clock.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import triton
import triton.language as tl
from triton.runtime import autotuner
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def exp2(x):
    return tl.exp2(x)


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def log2(x):
    return tl.log2(x)


def install() -> None:
    """Once, after SGLang's modules were imported; those imported later must hold no such names."""
    autotuner.Autotuner.do_bench = property(lambda _self: lambda _call, quantiles=None: [1.0, 1.0, 1.0])
    held = {id(tl.exp): exp, id(tl.math.exp2): exp2, id(tl.log): log, id(tl.log2): log2}
    importlib.import_module("triton.language.extra.libdevice").exp = exp
    op = importlib.import_module("sglang.kernels.ops.attention.fla.op")
    for name, function in (("exp", exp), ("exp2", exp2), ("log", log), ("log2", log2)):
        setattr(op, name, function)
    InterpreterBuilder.create_dot = _dot
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.") and module is not None:
            for key, value in list(vars(module).items()):
                if id(value) in held:
                    setattr(module, key, held[id(value)])


_real_dot, _real_cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl


def _dot(builder: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *others: Any) -> TensorHandle:
    return _real_dot(builder, _widened(a), _widened(b), *others)


def _widened(handle: TensorHandle) -> TensorHandle:
    if handle.data.dtype != np.uint16 or handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Inside, kernels that round to bfloat16 between two products in float32 do not: what is left is their formula."""

    def cast(builder: InterpreterBuilder, source: TensorHandle, wanted: Any) -> TensorHandle:
        if wanted.scalar == tl.bfloat16 and source.data.dtype == np.float32:
            return source
        return _real_cast(builder, source, wanted)

    with mock.patch.object(InterpreterBuilder, "cast_impl", cast):
        yield

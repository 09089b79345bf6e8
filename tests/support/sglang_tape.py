"""What every module of SGLang's model was given and gave back in one forward pass. Loaded in SGLang's environment."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn


class Call(NamedTuple):
    """One call of a module; tensors are copies, so what a kernel writes in place does not show."""

    inputs: tuple[Any, ...]
    named: dict[str, Any]
    output: Any


@contextlib.contextmanager
def record(model: nn.Module) -> Iterator[dict[str, Call]]:
    """Fills a dict by module name while the block runs; a module called twice keeps its last call."""
    given: dict[str, tuple[Any, Any]] = {}
    calls: dict[str, Call] = {}
    hooks = []

    def watch(name: str, module: nn.Module) -> None:
        def before(_module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            given[name] = _copied(inputs), _copied(named)

        def after(_module: nn.Module, _inputs: Any, _named: Any, output: Any) -> None:
            calls[name] = Call(*given.pop(name), _copied(output))

        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(module.register_forward_hook(after, with_kwargs=True))

    for name, module in model.named_modules():
        watch(name, module)
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _copied(value: Any) -> Any:
    match value:
        case Tensor():
            return value.detach().clone()
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*map(_copied, value))
        case tuple() | list():
            return type(value)(map(_copied, value))
        case dict():
            return {key: _copied(inner) for key, inner in value.items()}
    return value

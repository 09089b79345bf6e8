"""SGLang's own resolution of its command line: what every setting finally is. Imports SGLang, inside the functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """`server_args` is SGLang's own object; the two mappings have every setting by name."""

    server_args: Any
    resolved: dict[str, Any]
    defaults: dict[str, Any]


def resolve(argv: Sequence[str]) -> Resolution:
    """Parses and checks as SGLang does at its start. Raises BadInput with SGLang's own sentence."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    load_plugins()
    try:
        server_args = prepare_server_args(list(argv))
        server_args.resolve_once()
        view = resolving_view(server_args)
        server_args.check_server_args()
    except SystemExit as error:
        raise BadInput("SGLang does not know one of its flags; its own message stands above") from error
    except (ValueError, AssertionError, RuntimeError, NotImplementedError) as error:
        raise BadInput(f"SGLang refuses its settings: {_line(error)}") from error
    names: tuple[str, ...] = ServerArgs.__struct_fields__
    untouched = ServerArgs(model_path=server_args.model_path)
    return Resolution(
        server_args=server_args,
        resolved={name: getattr(view, name, None) for name in names},
        defaults={name: getattr(untouched, name, None) for name in names},
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__

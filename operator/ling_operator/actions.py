"""The few things that one step of a plan may do to the API server. Values only; `apply` does them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Make an object that must not exist: a pod, a slot, a ControllerRevision."""

    kind: str
    body: dict[str, Any]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Server-side apply of our fields of an object."""

    kind: str
    body: dict[str, Any]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Put a label on this very object, or take it off (`value` None)."""

    kind: str
    name: str
    uid: str
    label: str
    value: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete this very object. `foreground`: it stays, marked, until what it owns is gone. `grace` in seconds."""

    kind: str
    name: str
    uid: str
    why: str
    foreground: bool = False
    grace: int | None = None


type Step = Create | Apply | Label | Delete


def describe(step: Step) -> str:
    """The step in three words: verb, kind and name."""
    name = step.body["metadata"]["name"] if isinstance(step, Create | Apply) else step.name
    return f"{type(step).__name__.lower()} {step.kind} {name}"

"""Does one step of a plan. No decision is made here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_operator.actions import Apply, Create, Delete, Label, Step

if TYPE_CHECKING:
    from ling_operator.kube import Verbs


async def execute(kube: Verbs, namespace: str, step: Step) -> None:
    """One write. ApiError when the API server refuses it or is away."""
    match step:
        case Create(body=body):
            await kube.create(body)
        case Apply(body=body):
            await kube.apply(body)
        case Label(kind=kind, name=name, uid=uid, label=label, value=value):
            await kube.label(kind, namespace, name, uid, {label: value})
        case Delete(kind=kind, name=name, uid=uid, foreground=foreground, grace=grace):
            await kube.delete(kind, namespace, name, uid, foreground=foreground, grace=grace)

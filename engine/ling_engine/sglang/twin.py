"""A model of the runtime as a weight set's twin: bound before it loads, settled afterwards, attached without loading.

The filler's own loader writes into the bound memory. It may replace storages, tensors and plain values while it
post-processes: `settle` moves what was replaced into its place or into the tail, and writes the form. An attacher
builds the same model and takes the form on; nothing is recomputed. Pure torch: knows no runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_api.errors import FillFailed
from ling_api.tensors import tensor_at

from . import reach
from .bare import Bare
from .settle import Settling, Snapshot, snapshot
from .storages import Group, flat, grouped, rehang
from .take import take_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ling_api.identity import Value
    from ling_api.manifest import Layout, Manifest, TensorEntry, TensorSpec
    from ling_api.memory.base import Mapping

    from .reach import Descend


class ModelTwin:
    """`absent`: paths of parameters that stay without storage, because another model's are put there later.

    `loads(progress)` runs the runtime's loader and returns the checkpoint's sha256, or ""; `looks()` gives the fields
    of the identity that the checkpoint's files decide.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        role: str,
        rank: int,
        descend: Descend,
        absent: frozenset[str] = frozenset(),
        bare: Bare | None = None,
        loads: Callable[[Callable[[float], None]], str],
        looks: Callable[[], dict[str, Value]] = dict,
    ) -> None:
        self.role = role
        self.rank = rank
        self.model = model
        self._descend = descend
        self._absent = absent
        self._bare = bare or Bare()
        self._loads = loads
        self._looks = looks
        self._before: Snapshot | None = None
        self._settling: Settling | None = None

    def specs(self) -> list[TensorSpec]:
        """One for each storage that parameters use; views of it are found again by the storage."""
        return [group.spec() for group in self._weights(self._found())]

    def bind(self, mapping: Mapping, layout: Layout) -> None:
        """The filler's: every parameter into the mapping, with the value that its constructor gave it, if any.

        Raises FillFailed for a tensor that was written while it had no storage.
        """
        entries = {entry.name: entry for entry in layout.tensors}
        found = self._found()
        for group in self._weights(found):
            home = tensor_at(mapping, flat(entries[group.name]))
            if not group.meta:
                home.copy_(group.bytes())
            rehang(found, group, home)
        self._make_the_rest(torch.device(mapping.device))
        self._before = snapshot(self._found())

    def load(self, progress: Callable[[float], None]) -> str:
        """Runs the runtime's loader over the bound memory."""
        with torch.no_grad():
            return self._loads(progress)

    def facts(self) -> dict[str, Value]:
        return self._looks()

    def tail(self, mapping: Mapping, layout: Layout) -> int:
        """Bytes that loading made necessary behind the layout. Raises FillFailed."""
        if self._before is None:
            raise FillFailed("a twin has a tail once it was bound and loaded")
        self._settling = Settling(self._found(), self._before, mapping=mapping, layout=layout, absent=self._absent)
        self._before = None
        return self._settling.tail

    def settle(self, mapping: Mapping, start: int) -> tuple[tuple[TensorEntry, ...], str]:
        """Moves what loading replaced into the set; its tail begins at `start`. The set's tensors and its form."""
        if self._settling is None:
            raise FillFailed("a twin settles after its tail is known")
        with torch.no_grad():
            settled = self._settling.run(mapping, start)
        self._settling = None  # what it moved out of the way is freed
        return settled

    def attach(self, mapping: Mapping, manifest: Manifest) -> None:
        """The attacher's. Raises AttachCheckFailed that names what cannot be taken on."""
        with torch.no_grad():
            take_on(self._found, mapping, manifest, self._absent)

    def _found(self) -> reach.Found:
        return reach.walk(self.model, self._descend)

    def _weights(self, found: reach.Found) -> list[Group]:
        return [group for group in grouped(found.places) if self._is_weight(group)]

    def _is_weight(self, group: Group) -> bool:
        return any(place.path not in self._absent for place in group.parameters)

    def _make_the_rest(self, device: torch.device) -> None:
        """Large empty tensors that are no weights get their storage, as they would have had it all along."""
        found = self._found()
        for group in grouped(found.places):
            if not group.meta or {place.path for place in group.parameters} & self._absent:
                continue
            if self._bare.wrote(group.places[0].tensor):
                raise FillFailed(f"tensor {group.name} was written before it had a storage; it cannot be filled")
            rehang(found, group, torch.empty(group.nbytes, dtype=torch.uint8, device=device))

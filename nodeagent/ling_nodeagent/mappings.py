"""Read-only mappings with one entry set or left out. Pure."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def with_item[K, V](mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    """A copy with one entry set."""
    return MappingProxyType({**mapping, key: value})


def without[K, V](mapping: Mapping[K, V], key: K) -> Mapping[K, V]:
    """A copy without one entry; the mapping itself when it is not there."""
    return MappingProxyType({k: v for k, v in mapping.items() if k != key}) if key in mapping else mapping

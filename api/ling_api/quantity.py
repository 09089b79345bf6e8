"""Kubernetes quantities ("8Gi", "500m", 1024) as exact numbers and as bytes, and bytes as text for people."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

from ling_api.errors import BadInput

_FACTORS: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
_FORM: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,2})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?))")


def parse_exact(value: str | int) -> Fraction:
    """The exact number that a quantity means; BadInput when it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    found = _FORM.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise BadInput(f"quantity {value!r}: write a number with a suffix such as 500m, 2, 512Mi or 8Gi")
    number, exponent, suffix = found.groups()
    if exponent:
        return Fraction(number) * Fraction(10) ** int(exponent[1:])
    return Fraction(number) * _FACTORS[suffix]


def parse_quantity(value: str | int) -> int:
    """The quantity in whole units (bytes for memory), a fraction rounded up as Kubernetes does; BadInput if none."""
    return math.ceil(parse_exact(value))

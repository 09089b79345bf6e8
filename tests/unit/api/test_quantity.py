"""Quantities mean what Kubernetes takes them for."""

from fractions import Fraction

import pytest

from ling_api.errors import BadInput
from ling_api.quantity import parse_exact, parse_quantity


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        pytest.param("1Gi", Fraction(1 << 30), id="binary"),
        pytest.param("1G", Fraction(10**9), id="decimal"),
        pytest.param("500m", Fraction(1, 2), id="milli"),
        pytest.param("0.5", Fraction(1, 2), id="a fraction"),
        pytest.param(".5Mi", Fraction(1 << 19), id="no digit before the point"),
        pytest.param("2e3", Fraction(2000), id="an exponent"),
        pytest.param("1E", Fraction(10**18), id="exa, not an exponent"),
        pytest.param("-1", Fraction(-1), id="negative"),
        pytest.param(7, Fraction(7), id="a number"),
        pytest.param("100u", Fraction(1, 10**4), id="micro"),
    ],
)
def test_a_quantity_is_read_exactly(text: str | int, exact: Fraction) -> None:
    assert parse_exact(text) == exact


@pytest.mark.parametrize("text", ["", "eight", "1 Gi", "1gi", "1KiB", "--1", "1e", "0x10", True, None, 1.5])
def test_what_is_no_quantity_is_refused_with_examples(text: object) -> None:
    with pytest.raises(BadInput, match="write a number with a suffix such as 500m"):
        parse_exact(text)  # type: ignore[arg-type]


def test_parts_of_a_unit_count_as_a_whole_one() -> None:
    assert parse_quantity("1500m") == 2
    assert parse_quantity("1Gi") == 1 << 30

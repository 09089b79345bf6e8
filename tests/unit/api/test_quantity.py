"""Quantities mean what Kubernetes takes them for."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ling_api.errors import BadInput
from ling_api.quantity import format_bytes, parse_exact, parse_quantity


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


@given(st.integers(0, 1 << 62))
def test_bytes_as_text_mean_the_same_bytes(count: int) -> None:
    assert parse_quantity(format_bytes(count)) == count


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (1 << 30, "1Gi"), (3 << 19, "1536Ki"), (1000, "1000")])
def test_bytes_are_told_in_the_largest_unit_that_is_exact(count: int, text: str) -> None:
    assert format_bytes(count) == text

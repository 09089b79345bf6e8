"""The API reference is what the CRDs say."""

from __future__ import annotations

from hack import reference


def test_the_api_reference_is_current() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run hack/generate-reference"

"""Identity: one digest for equal values, another for any other, and a difference that names the field."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ling_api.errors import BadInput
from ling_api.identity import FieldDifference, Identity, difference, nearest, set_id

FIELDS: dict[str, Any] = {
    "model": {"config": "abc", "shards": {"model-1.safetensors": {"size": 12, "mtime": 1.5}}},
    "dtype": "bfloat16",
    "tp": 1,
    "flags": ["a", 2, None, {"k": 0.1}],
    "strict": True,
    "draft": None,
}


def test_nested_mappings_become_dotted_fields_and_values_text() -> None:
    assert dict(Identity.of("target", FIELDS).fields) == {
        "model.config": "abc",
        'model.shards["model-1.safetensors"].size': "12",
        'model.shards["model-1.safetensors"].mtime': "1.5",
        "dtype": "bfloat16",
        "tp": "1",
        "flags": '["a",2,null,{"k":0.1}]',
        "strict": "true",
        "draft": "null",
    }


def test_the_digest_is_the_sha256_of_canonical_json_whatever_the_order() -> None:
    identity = Identity.of("target", FIELDS)
    assert identity == Identity.of("target", dict(reversed(FIELDS.items())))
    data = identity.to_bytes()
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
    assert identity.digest == hashlib.sha256(data).hexdigest()
    assert Identity.from_bytes(data) == identity


def test_the_digest_never_changes_between_releases() -> None:
    digest = Identity.of("target", {"a": 1, "b": {"c": [1.5, "ü"]}}).digest
    assert digest == hashlib.sha256(b'{"fields":{"a":"1","b.c":"[1.5,\\"\\\\u00fc\\"]"},"role":"target"}').hexdigest()


LOOK_ALIKES: list[Any] = [
    *(1, 1.0, True, "1", "1.0", "true", "True", None, "null", "None", "", '""', [], {}, "[]", "{}"),
    *([1], "[1]", '"1"', 0, False, "false", -1, "-1", "NaN", "Infinity", " ", "nullable", "tru"),
]


def test_values_that_look_alike_are_different() -> None:
    digests = [Identity.of("target", {"field": value}).digest for value in LOOK_ALIKES]
    assert len(set(digests)) == len(LOOK_ALIKES)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    one=st.dictionaries(st.sampled_from("abc"), json_values), two=st.dictionaries(st.sampled_from("abc"), json_values)
)
def test_digests_are_equal_exactly_when_the_values_are(one: dict[str, Any], two: dict[str, Any]) -> None:
    first, second = Identity.of("target", one), Identity.of("target", two)
    same = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    assert (first.digest == second.digest) is same
    assert (difference(first, second) == ()) is same
    assert Identity.from_bytes(first.to_bytes()) == first


@pytest.mark.parametrize("name", sorted(dict(Identity.of("target", FIELDS).fields)))
def test_each_field_in_turn_changes_the_digest_and_is_named(name: str) -> None:
    wanted = Identity.of("target", FIELDS)
    held = Identity("target", tuple((field, "other" if field == name else text) for field, text in wanted.fields))
    assert held.digest != wanted.digest
    assert difference(wanted, held) == (FieldDifference(name, dict(wanted.fields)[name], "other"),)
    missing = Identity("target", tuple(pair for pair in wanted.fields if pair[0] != name))
    assert difference(wanted, missing) == (FieldDifference(name, dict(wanted.fields)[name], ""),)
    assert difference(missing, wanted) == (FieldDifference(name, "", dict(wanted.fields)[name]),)


def test_another_role_is_another_identity() -> None:
    one, two = Identity.of("target", FIELDS), Identity.of("nextn", FIELDS)
    assert one.digest != two.digest
    assert difference(one, two) == (FieldDifference("role", "target", "nextn"),)


class TestNearest:
    def test_has_the_fewest_differences(self) -> None:
        wanted = Identity.of("target", {"a": 1, "b": 2, "c": 3})
        far = Identity.of("target", {"a": 9, "b": 9, "c": 3})
        near = Identity.of("target", {"a": 1, "b": 9, "c": 3})
        other_role = Identity.of("nextn", {"a": 1, "b": 2, "c": 3})
        assert nearest(wanted, [far, near, other_role]) == (near, (FieldDifference("b", "2", "9"),))

    def test_does_not_depend_on_the_order(self) -> None:
        wanted = Identity.of("target", {"a": 1})
        held = [Identity.of("target", {"a": number}) for number in (2, 3, 4)]
        assert nearest(wanted, held) == nearest(wanted, held[::-1])

    def test_is_none_without_a_set_of_the_role(self) -> None:
        assert nearest(Identity.of("target", {}), [Identity.of("nextn", {})]) is None


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"a": float("nan")}, "identity field 'a'"),
        ({"a": [float("inf")]}, "identity field 'a'"),
        ({"a": b"bytes"}, "bytes is no value"),
        ({"a": [{1, 2}]}, "set is no value"),
        ({"a": {1: 2}}, "keys must be text"),
        ({"a": [{1: 2}]}, "keys must be text"),
        ({"a": {"b": 1}, "a.b": 2}, "'a.b' appears twice"),
        ({"a": "\ud800"}, "no canonical JSON"),
    ],
    ids=["NaN", "infinity", "bytes", "set", "number as key", "number as inner key", "twice", "half a pair"],
)
def test_what_has_no_one_spelling_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Identity.of("target", fields)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"role":"target"}', "must have the text `role`"),
        (b'{"fields":{},"more":1,"role":"target"}', "nothing else"),
        (b'{"fields":{"a":1},"role":"target"}', "'a' must be text, not int"),
        (b'{"role":"target","fields":{}}', "canonical"),
        (b'{"fields": {},"role":"target"}', "canonical"),
        (b'{"fields":{"a":"1","a":"2"},"role":"target"}', "canonical"),
        (b'{"fields":' + b"[" * 40_000, "not JSON"),
        (b'{"fields":{"a":[' + b"[]," * 60_000 + b"[]]}}", "more lists and values"),
        (b'{"fields":{"a":[' + b"1," * 60_000 + b"1]}}", "more lists and values"),
        (b'{"fields":{"a":"' + b"x" * (1 << 20) + b'"}}', "at most 1048576"),
    ],
    ids=[
        "nothing",
        "no UTF-8",
        "a list",
        "no fields",
        "more",
        "a number",
        "unsorted",
        "space",
        "twice",
        "deep",
        "many lists",
        "many values",
        "long",
    ],
)
def test_bytes_that_were_never_written_are_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Identity.from_bytes(data)


def test_an_identity_of_a_checkpoint_in_very_many_files_is_read() -> None:
    facts = {"size": 5 << 30, "mtime_ns": 1_764_000_000_000_000_000, "header": "a" * 64}
    shards = {f"model-{number:05}-of-02500.safetensors": facts for number in range(2500)}
    identity = Identity.of("target", {"checkpoint": {"shards": shards}})
    assert Identity.from_bytes(identity.to_bytes()) == identity


def test_a_set_id_names_digest_and_rank() -> None:
    assert set_id("a" * 64, 12) == "a" * 64 + ":12"

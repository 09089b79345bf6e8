"""Every field of an OpenAI request that is known here, its test, and what to write instead of a value that fails it.

A field that the answer would need but this engine cannot give (penalties, tools, log-probabilities) has only its
neutral value. Without a temperature the engine is greedy: the same request has the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ling_engine.reference.openai_error import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    type Field = tuple[Callable[[Any], bool], str]

ROLES = ("system", "developer", "user", "assistant")


def _is(kind: type, low: float | None = None, high: float | None = None) -> Callable[[Any], bool]:
    def test(value: Any) -> bool:
        fits = isinstance(value, (int, float) if kind is float else kind)
        fits = fits and isinstance(value, bool) == (kind is bool)
        return fits and (low is None or value >= low) and (high is None or value <= high)

    return test


def _one_of(*values: object) -> Callable[[Any], bool]:
    return lambda value: any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in values)


def _text_or_texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and len(value) <= 4 and all(map(_is(str), value)))


def _prompt(value: Any) -> bool:
    if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], int):
        value = value[0]  # a list of one prompt
    return isinstance(value, str) or (isinstance(value, list) and all(map(_is(int), value)))


def _messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_message, value))


def _message(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("role") not in ROLES or not value.keys() <= {"role", "content", "name"}:
        return False
    content = value.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in parts)


_NONE = "this engine has no penalties: write 0 or leave it out"
_ONE = "this engine gives one answer a request: write 1 or leave it out"
_NO = "this engine does not offer it: leave it out"
_SWITCH = "write true or false"
_BOTH: dict[str, Field] = {
    "model": (_is(str), "write a text"),
    "max_tokens": (_is(int, 1), "write a whole number from 1"),
    "temperature": (_is(float, 0, 2), "write a number from 0 (greedy, the default) to 2"),
    "top_p": (_is(float, 0, 1), "write a number from 0 to 1"),
    "n": (_one_of(1), _ONE),
    "stream": (_is(bool), _SWITCH),
    "stream_options": (_is(dict), "write an object"),
    "stop": (_text_or_texts, "write a text or a list of up to 4 texts"),
    "presence_penalty": (_one_of(0), _NONE),
    "frequency_penalty": (_one_of(0), _NONE),
    "logit_bias": (_one_of({}), _NO),
    "seed": (_is(int), "write a whole number"),
    "user": (_is(str), "write a text"),
    "ignore_eos": (_is(bool), _SWITCH),
}
COMPLETION: dict[str, Field] = _BOTH | {
    "prompt": (_prompt, "write one text or one list of token ids"),
    "best_of": (_one_of(1), _ONE),
    "logprobs": (_one_of(), _NO),
    "echo": (_one_of(False), _NO),
    "suffix": (_one_of(""), _NO),
}
CHAT: dict[str, Field] = _BOTH | {
    "messages": (_messages, f"write a list of objects with a role ({', '.join(ROLES)}) and a text as content"),
    "max_completion_tokens": (_is(int, 1), "write a whole number from 1"),
    "logprobs": (_one_of(False), _NO),
    "top_logprobs": (_one_of(), _NO),
    "response_format": (_one_of({"type": "text"}), _NO),
    "tools": (_one_of([]), _NO),
    "tool_choice": (_one_of("none"), _NO),
    "functions": (_one_of([]), _NO),
    "function_call": (_one_of("none"), _NO),
    "store": (_one_of(False), _NO),
}


def check(body: Mapping[str, Any], fields: Mapping[str, Field], required: tuple[str, ...]) -> dict[str, Any]:
    """The fields that are not null. Raises ApiError 400 that names the first bad one."""
    for name in required:
        if body.get(name) is None:
            raise ApiError(400, f"{name} is missing: {fields[name][1]}", name)
    for name, value in body.items():
        if name not in fields:
            raise ApiError(400, f"{name} is not known here: {_NO}", name)
        test, sentence = fields[name]
        if value is not None and not test(value):
            raise ApiError(400, f"{name}: {sentence}", name)
    return {name: value for name, value in body.items() if value is not None}

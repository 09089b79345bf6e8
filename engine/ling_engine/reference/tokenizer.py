"""Bytes as tokens: ids 0 to 255 are bytes, two more begin and end a text; the rest of the vocabulary has no text.

The files that `make-model` writes are those of a byte-level BPE without merges, which other engines read too.
"""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path

CONFIG_FILE = "tokenizer_config.json"
KIND = "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteTokenizer:
    """Text to ids and back."""

    bos: int
    eos: int

    def encode(self, text: str) -> list[int]:
        """One id a byte of UTF-8; nothing is added. Lone surrogates, which JSON can spell, become '?'."""
        return list(text.encode("utf-8", "replace"))

    def chat(self, messages: list[tuple[str, str]]) -> list[int]:
        """(role, text) pairs -> ids that end where the assistant is to speak."""
        text = "".join(f"{role}: {said}\n" for role, said in messages)
        return [self.bos, *self.encode(f"{text}assistant: ")]


class Text:
    """Ids to text as they come: bytes that begin a character wait for the rest of it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """The text that this token completes, often one character, sometimes none."""
        return self._decoder.decode(bytes((token,))) if token < 256 else ""

    def end(self) -> str:
        """What is left: U+FFFD if the last character is not complete."""
        return self._decoder.decode(b"", final=True)


def read(folder: Path, vocabulary: int) -> ByteTokenizer:
    """The tokenizer of a checkpoint. Raises BadInput for any but ours."""
    path = folder / CONFIG_FILE
    try:
        keys = json.loads(path.read_bytes())
        kind, bos, eos = keys["ling_tokenizer"], keys["bos_token_id"], keys["eos_token_id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: no byte tokenizer as `ling-engine make-model` writes it ({error!r})") from None
    if kind != KIND or not all(isinstance(i, int) and 256 <= i < vocabulary for i in (bos, eos)):
        raise BadInput(f"{path}: ling_tokenizer must be {KIND!r}, its bos and eos ids from 256 to {vocabulary - 1}")
    return ByteTokenizer(bos=bos, eos=eos)


def files(bos: int, eos: int) -> dict[str, dict[str, Any]]:
    """File name -> JSON."""
    special = {"<s>": bos, "</s>": eos}
    added = [
        {
            "id": i,
            "content": t,
            "special": True,
            "normalized": False,
            "lstrip": False,
            "rstrip": False,
            "single_word": False,
        }
        for t, i in special.items()
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {"type": "BPE", "vocab": {_printable(b): b for b in range(256)} | special, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": added, "pre_tokenizer": level, "decoder": level, "model": model}
    config = {
        "ling_tokenizer": KIND,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    return {"tokenizer.json": tokenizer, CONFIG_FILE: config | {"bos_token_id": bos, "eos_token_id": eos}}


def _printable(byte: int) -> str:
    """How byte-level BPE spells a byte: itself if it shows, else a letter from 256 on, in order."""
    hidden = [b for b in range(256) if not (33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255)]
    return chr(256 + hidden.index(byte)) if byte in hidden else chr(byte)

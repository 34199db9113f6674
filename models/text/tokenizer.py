"""Tokenization of prompts by the checkpoint's tokenizer, as in diffusers' pipelines."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from models.checkpoint.folder import CheckpointError
from models.interface.pipeline import RequestWarning

SHOWN_CHARS = 200
"""Maximum characters of dropped text in a warning."""
VERY_LARGE_INTEGER = 10**30
"""Maximum length that transformers sets for a tokenizer without one."""


class Tokens(NamedTuple):
    """Ids and masks of prompts padded to one length."""

    ids: Int[np.ndarray, "prompts tokens"]
    mask: Bool[np.ndarray, "prompts tokens"]
    """False for padding."""


class ReadTexts(NamedTuple):
    """Tokenized prompts of one request, with warnings about truncation."""

    inputs: Mapping[str, np.ndarray]
    """Tokens and the encoders' other inputs."""
    warnings: tuple[RequestWarning, ...]
    """Warnings of text that the encoders do not read."""


class Piece(NamedTuple):
    """Token of an untruncated text."""

    id: int
    start: int
    """Offset of the token's word in the text, in characters."""


class Tokenizer:
    """Tokenizer that truncates prompts to a length and pads them to it. Thread-safe."""

    ADDS_MARKERS: ClassVar[bool] = True
    """Whether it adds the markers of its vocabulary to each text."""

    def __init__(self, kind: str, folder: Path, *choices: tuple[str, ...]) -> None:
        """Read the tokenizer of a folder that contains all files of at least one choice.

        Args:
            kind: its class in transformers.

        Raises:
            CheckpointError: the folder or a file of it is missing or damaged.
        """
        # The library would return an empty vocabulary for an empty folder.
        if not any(all((folder / name).is_file() for name in names) for names in choices):
            required = " or ".join(" and ".join(names) for names in choices)
            raise CheckpointError(f"{folder}: no tokenizer in it; it should hold {required}")
        import transformers  # takes half a second; only processes with a model need it

        tokenizers = getattr(transformers, kind)
        try:
            self._tokenizer = tokenizers.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the library's own parsers raise bare Exceptions
            raise CheckpointError(f"{folder}: the tokenizer cannot be read: {error}") from error
        self._lock = threading.Lock()  # length and padding are state of the tokenizer itself

    @property
    def max_length(self) -> int:
        """Maximum tokens of the encoder by the checkpoint; very large if it states none."""
        return int(self._tokenizer.model_max_length)

    def encode(
        self, texts: Sequence[str], max_length: int | None = None
    ) -> Int[np.ndarray, "prompts tokens"]:
        """Return ids, int32 [len(texts), max_length]; longer texts lose their end, not the marker.

        Args:
            max_length: in tokens, markers included; None: the tokenizer's own.
        """
        return self.encode_with_mask(texts, max_length).ids

    def encode_with_mask(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Return the ids of `encode` with the attention mask."""
        with self._lock:
            encoded = self._tokenizer(
                list(texts),
                add_special_tokens=self.ADDS_MARKERS,
                padding="max_length",
                max_length=max_length or self.max_length,
                truncation=True,
                return_tensors="np",
            )
        mask = np.asarray(encoded["attention_mask"], bool)
        return Tokens(np.asarray(encoded["input_ids"], np.int32), mask)

    def pieces(self, texts: Sequence[str]) -> list[list[Piece]]:
        """Return the tokens of untruncated texts, without markers."""
        if not texts:
            return []
        with self._lock:
            encoded = self._tokenizer(
                list(texts),
                add_special_tokens=False,
                truncation=False,
                return_offsets_mapping=True,
                verbose=False,  # no warning of texts longer than the encoder reads
            )
        return [
            [Piece(id, start) for id, (start, _) in zip(ids, offsets, strict=True)]
            for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        ]

    @property
    def markers(self) -> tuple[list[int], list[int]]:
        """Tokens before and after each text."""
        with self._lock:
            *before, after = self._tokenizer("")["input_ids"]
        return before, [after]

    @property
    def padding(self) -> int:
        """Token that fills the positions after the end marker."""
        return int(self._tokenizer.pad_token_id)

    def unread(self, text: str, max_length: int | None = None) -> str:
        """Return the end of a text that `encode` drops, from the beginning of its first word.

        Empty if `encode` reads the whole text.
        """
        end = self._chars_read(text, max_length)
        if end is None:
            return ""
        return text[end:].strip() if text[end : end + 1].isspace() else from_word(text, end)

    def _chars_read(self, text: str, max_length: int | None) -> int | None:
        """Return the number of characters of a text that `encode` reads; None: all."""
        with self._lock:
            encoded = self._tokenizer(
                text,
                add_special_tokens=self.ADDS_MARKERS,
                max_length=max_length or self.max_length,
                truncation=True,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
        if len(encoded["input_ids"]) < 2:
            return None
        return max(int(end) for _, end in encoded["offset_mapping"][0])


def cut_prompts(
    encoder: str, tokenizer: Tokenizer, texts: Mapping[str, str], max_length: int | None = None
) -> tuple[RequestWarning, ...]:
    """Warn of prompts that are longer than an encoder reads, with the dropped words.

    Args:
        encoder: display name.
        texts: by request field.
        max_length: in tokens, markers included; None: the tokenizer's own.
    """
    limit = max_length or tokenizer.max_length
    unread = {field: tokenizer.unread(text, limit) for field, text in texts.items()}
    return tuple(
        RequestWarning(field, f"{encoder} reads {limit} tokens; not read: {shortened(rest)!r}")
        for field, rest in unread.items()
        if rest
    )


def from_word(text: str, start: int) -> str:
    """Return the end of a text from the beginning of the word at `start`."""
    head = text[:start]
    word = head.rsplit(maxsplit=1)[-1] if head and not head[-1].isspace() else ""
    return text[start - len(word) :].strip()


def shortened(text: str) -> str:
    """Shorten a text for messages: its beginning, and the number of further characters."""
    rest = len(text) - SHOWN_CHARS
    return text if rest <= 0 else f"{text[:SHOWN_CHARS]}… ({rest} more characters)"


class ClipTokenizer(Tokenizer):
    """Tokenizer of CLIP's byte pairs."""

    def __init__(self, folder: Path) -> None:
        choices = (("tokenizer.json",), ("vocab.json", "merges.txt"))
        super().__init__("CLIPTokenizerFast", folder, *choices)


class T5Tokenizer(Tokenizer):
    """Tokenizer of T5's sentence pieces."""

    def __init__(self, folder: Path) -> None:
        super().__init__("T5TokenizerFast", folder, ("tokenizer.json",), ("spiece.model",))


class GemmaTokenizer(Tokenizer):
    """Tokenizer of Gemma's sentence pieces, padded on the left."""

    def __init__(self, folder: Path) -> None:
        super().__init__("GemmaTokenizerFast", folder, ("tokenizer.json",), ("tokenizer.model",))
        self._tokenizer.padding_side = "left"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token


class BlankTokenizer(Tokenizer):
    """Tokenizer that returns only padding, for token shapes without a vocabulary."""

    def __init__(self) -> None:
        """Create the tokenizer without reading files."""

    @property
    def max_length(self) -> int:
        """Maximum tokens: unlimited."""
        return VERY_LARGE_INTEGER

    def pieces(self, texts: Sequence[str]) -> list[list[Piece]]:
        """Return no tokens for each text."""
        return [[] for _ in texts]

    @property
    def markers(self) -> tuple[list[int], list[int]]:
        """Tokens before and after each text: none."""
        return [], []

    @property
    def padding(self) -> int:
        """Padding token, which fills all texts."""
        return 0

    def unread(self, text: str, max_length: int | None = None) -> str:
        """Return an empty text: nothing is dropped."""
        return ""

    def encode_with_mask(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Return ids of zeros, with a mask that is True everywhere."""
        shape = (len(texts), max_length or self.max_length)
        return Tokens(np.zeros(shape, np.int32), np.ones(shape, bool))

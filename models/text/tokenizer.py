"""Prompts → token ids, by the checkpoint's own tokenizer, as diffusers' pipelines do it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from models.checkpoint.folder import CheckpointError
from models.interface.pipeline import RequestWarning

SHOWN_CHARS = 200
"""Maximum characters shown of the words that were cut."""
VERY_LARGE_INTEGER = 10**30
"""Length that transformers gives a tokenizer that names none."""


class Tokens(NamedTuple):
    """Prompts of one length."""

    ids: Int[np.ndarray, "prompts tokens"]
    mask: Bool[np.ndarray, "prompts tokens"]
    """False where there is only padding."""


class ReadTexts(NamedTuple):
    """Texts of one request, tokenized."""

    inputs: Mapping[str, np.ndarray]
    """Tokens, and what else the encoders read."""
    warnings: tuple[RequestWarning, ...]
    """Warnings of what they do not read."""


class Piece(NamedTuple):
    """Token of a text that is not cut."""

    id: int
    start: int
    """Offset of its word in the text, in characters."""


class Tokenizer:
    """Cuts prompts to a length and pads them to it. Serves any number of threads."""

    def __init__(self, kind: str, folder: Path, *choices: tuple[str, ...]) -> None:
        """Read the tokenizer of a folder that holds all files of one of the choices.

        Args:
            kind: its class in transformers.

        Raises:
            CheckpointError: the folder or a file of it is missing or damaged.
        """
        # The library would make an empty vocabulary of an empty folder.
        if not any(all((folder / name).is_file() for name in names) for names in choices):
            wanted = " or ".join(" and ".join(names) for names in choices)
            raise CheckpointError(f"{folder}: no tokenizer in it; it should hold {wanted}")
        import transformers  # half a second, which only processes with a model need to spend

        tokenizers = getattr(transformers, kind)
        try:
            self._tokenizer = tokenizers.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the library's own parsers raise bare Exceptions
            raise CheckpointError(f"{folder}: the tokenizer cannot be read: {error}") from error
        self._lock = threading.Lock()  # length and padding are state of the tokenizer itself

    @property
    def max_length(self) -> int:
        """Tokens that the checkpoint says its encoder takes; huge where it does not say."""
        return int(self._tokenizer.model_max_length)

    def encode(
        self, texts: Sequence[str], max_length: int | None = None
    ) -> Int[np.ndarray, "prompts tokens"]:
        """Ids, int32 [len(texts), max_length]; longer texts lose their end, not its marker.

        Args:
            max_length: in tokens, markers included; left out: the tokenizer's own.
        """
        return self.encode_with_mask(texts, max_length).ids

    def encode_with_mask(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """The same with the attention mask."""
        with self._lock:
            encoded = self._tokenizer(
                list(texts),
                padding="max_length",
                max_length=max_length or self.max_length,
                truncation=True,
                return_tensors="np",
            )
        mask = np.asarray(encoded["attention_mask"], bool)
        return Tokens(np.asarray(encoded["input_ids"], np.int32), mask)

    def pieces(self, texts: Sequence[str]) -> list[list[Piece]]:
        """Return the tokens of texts of any length, without markers."""
        if not texts:
            return []
        with self._lock:
            encoded = self._tokenizer(
                list(texts),
                add_special_tokens=False,
                truncation=False,
                return_offsets_mapping=True,
                verbose=False,  # that one is longer than the encoder reads is what this is for
            )
        return [
            [Piece(id, start) for id, (start, _) in zip(ids, offsets, strict=True)]
            for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        ]

    @property
    def markers(self) -> tuple[list[int], list[int]]:
        """Tokens before and behind each text."""
        with self._lock:
            *before, behind = self._tokenizer("")["input_ids"]
        return before, [behind]

    @property
    def padding(self) -> int:
        """Token that fills up what is behind the marker."""
        return int(self._tokenizer.pad_token_id)

    def unread(self, text: str, max_length: int | None = None) -> str:
        """Return the end of a text that `encode` drops.

        From the word on that it begins in; empty where it reads all of it.
        """
        end = self._chars_read(text, max_length)
        if end is None:
            return ""
        return text[end:].strip() if text[end : end + 1].isspace() else from_word(text, end)

    def _chars_read(self, text: str, max_length: int | None) -> int | None:
        """Return how much of a text `encode` reads, in characters; None: all of it."""
        with self._lock:
            encoded = self._tokenizer(
                text,
                max_length=max_length or self.max_length,
                truncation=True,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
        if len(encoded["input_ids"]) < 2:
            return None
        return max(end for _, end in encoded["offset_mapping"][0])


def cut_prompts(
    encoder: str, tokenizer: Tokenizer, texts: Mapping[str, str], max_length: int | None = None
) -> tuple[RequestWarning, ...]:
    """Warn of prompts that are longer than an encoder reads, with the words that it leaves out.

    Args:
        encoder: what people call it.
        texts: by request field.
        max_length: in tokens, markers included; left out: the tokenizer's own.
    """
    limit = max_length or tokenizer.max_length
    unread = {field: tokenizer.unread(text, limit) for field, text in texts.items()}
    return tuple(
        RequestWarning(field, f"{encoder} reads {limit} tokens; not read: {shortened(rest)!r}")
        for field, rest in unread.items()
        if rest
    )


def from_word(text: str, start: int) -> str:
    """Return a text from the word on that `start` is in or behind."""
    head = text[:start]
    word = head.rsplit(maxsplit=1)[-1] if head and not head[-1].isspace() else ""
    return text[start - len(word) :].strip()


def shortened(text: str) -> str:
    """The text, or its beginning and how many characters follow."""
    rest = len(text) - SHOWN_CHARS
    return text if rest <= 0 else f"{text[:SHOWN_CHARS]}… ({rest} more characters)"


class ClipTokenizer(Tokenizer):
    """CLIP's byte pairs."""

    def __init__(self, folder: Path) -> None:
        choices = (("tokenizer.json",), ("vocab.json", "merges.txt"))
        super().__init__("CLIPTokenizerFast", folder, *choices)


class T5Tokenizer(Tokenizer):
    """T5's sentence pieces."""

    def __init__(self, folder: Path) -> None:
        super().__init__("T5TokenizerFast", folder, ("tokenizer.json",), ("spiece.model",))


class GemmaTokenizer(Tokenizer):
    """Gemma's sentence pieces; padding goes before the text."""

    def __init__(self, folder: Path) -> None:
        super().__init__("GemmaTokenizerFast", folder, ("tokenizer.json",), ("tokenizer.model",))
        self._tokenizer.padding_side = "left"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token


class BlankTokenizer(Tokenizer):
    """Padding alone, whatever the prompt: the shape of tokens where no vocabulary is at hand."""

    def __init__(self) -> None:
        """Skip the files that others read."""

    @property
    def max_length(self) -> int:
        """Longest prompt; there is none."""
        return VERY_LARGE_INTEGER

    def pieces(self, texts: Sequence[str]) -> list[list[Piece]]:
        """Return no tokens: texts are but padding."""
        return [[] for _ in texts]

    @property
    def markers(self) -> tuple[list[int], list[int]]:
        """Tokens before and behind each text, of which there are none."""
        return [], []

    @property
    def padding(self) -> int:
        """Token that all texts are made of."""
        return 0

    def unread(self, text: str, max_length: int | None = None) -> str:
        """Return no text: none is left unread."""
        return ""

    def encode_with_mask(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Return tokens of zeros, all of which count."""
        shape = (len(texts), max_length or self.max_length)
        return Tokens(np.zeros(shape, np.int32), np.ones(shape, bool))

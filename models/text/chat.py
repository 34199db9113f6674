"""Prompts as a chat model reads them: one message of a user, and the beginning of an answer.

Source: the chat template in Qwen3's tokenizer_config.json, of one message without tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.checkpoint.folder import CheckpointError
from models.text.tokenizer import Tokenizer, Tokens, from_word


@dataclass(frozen=True)
class Chat:
    """Text around a message."""

    before: str
    behind: str

    def rendered(self, message: str) -> str:
        """Return the message in its place; what it spells of markers are markers then."""
        return f"{self.before}{message}{self.behind}"


_USER = "<|im_start|>user\n"
_ANSWER = "<|im_end|>\n<|im_start|>assistant\n"

THINKING = Chat(_USER, _ANSWER)
"""`enable_thinking` true: the answer is open, and a model would think first."""
NOT_THINKING = Chat(_USER, f"{_ANSWER}<think>\n\n</think>\n\n")
"""`enable_thinking` false: the thoughts are there, and empty."""


class QwenTokenizer(Tokenizer):
    """Qwen's byte pairs of messages in their chat, padded on the right."""

    def __init__(self, folder: Path, chat: Chat) -> None:
        """Raises: CheckpointError: no tokenizer there, or one that pads on the left."""
        choices = (("tokenizer.json",), ("vocab.json", "merges.txt"))
        super().__init__("Qwen2TokenizerFast", folder, *choices)
        self.chat = chat
        if self._tokenizer.padding_side != "right":
            raise CheckpointError(
                f"{folder}: padding_side is {self._tokenizer.padding_side!r}; it must be 'right'"
            )

    def encode_with_mask(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Return the ids of the texts as messages, and which are no padding."""
        return super().encode_with_mask([self.chat.rendered(text) for text in texts], max_length)

    def unread(self, text: str, max_length: int | None = None) -> str:
        """Return the end of a message that `encode` drops, without what is around it."""
        read = self._chars_read(self.chat.rendered(text), max_length)
        end = len(text) if read is None else max(0, read - len(self.chat.before))
        if end >= len(text):
            return ""
        return text[end:].strip() if text[end].isspace() else from_word(text, end)

"""Chat template of prompts for Qwen: one user message, and the beginning of an answer.

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
    """Chat template: the text before and after a message."""

    before: str
    after: str

    def rendered(self, message: str) -> str:
        """Insert a message into the template; markers in the message act as markers."""
        return f"{self.before}{message}{self.after}"


_USER = "<|im_start|>user\n"
_ANSWER = "<|im_end|>\n<|im_start|>assistant\n"

THINKING = Chat(_USER, _ANSWER)
"""Template with `enable_thinking` true: the answer is open, and a model would think first."""
NOT_THINKING = Chat(_USER, f"{_ANSWER}<think>\n\n</think>\n\n")
"""Template with `enable_thinking` false: the answer starts with empty thoughts."""


class QwenTokenizer(Tokenizer):
    """Tokenizer of Qwen's byte pairs, for messages in a chat template, padded on the right."""

    def __init__(self, folder: Path, chat: Chat) -> None:
        """Read the tokenizer of a folder.

        Raises: CheckpointError: no tokenizer in it, or one that pads on the left.
        """
        choices = (("tokenizer.json",), ("vocab.json", "merges.txt"))
        super().__init__("Qwen2TokenizerFast", folder, *choices)
        self.chat = chat
        if self._tokenizer.padding_side != "right":
            raise CheckpointError(
                f"{folder}: padding_side is {self._tokenizer.padding_side!r}; it must be 'right'"
            )

    def encode_with_mask(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Return the ids of the texts as messages, and the mask of tokens that are not padding."""
        return super().encode_with_mask([self.chat.rendered(text) for text in texts], max_length)

    def unread(self, text: str, max_length: int | None = None) -> str:
        """Return the end of a message that `encode` drops, without the template."""
        read = self._chars_read(self.chat.rendered(text), max_length)
        end = len(text) if read is None else max(0, read - len(self.chat.before))
        if end >= len(text):
            return ""
        return text[end:].strip() if text[end].isspace() else from_word(text, end)

"""Chat templates of prompts, and the tokenizers of messages in them.

Source: the chat templates of Qwen3 and of Mistral Small 3 (chat_template.jinja), of one message
without tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.checkpoint.folder import CheckpointError
from models.text.tokenizer import Tokenizer, Tokens, from_word


@dataclass(frozen=True)
class Chat:
    """Chat template: the text before and after a message."""

    before: str
    after: str
    keeps_end: bool = False
    """Whether a message that is too long loses its own end, and not the template's."""

    def rendered(self, message: str) -> str:
        """Insert a message into the template; markers in the message act as markers."""
        return f"{self.before}{message}{self.after}"

    def tokenizer(self, folder: Path) -> ChatTokenizer:
        """Read the tokenizer of a folder for messages in this template.

        Raises: CheckpointError: no tokenizer in it, or one that is not supported.
        """
        return QwenTokenizer(folder, self)


class Instruction(Chat):
    """Template of Mistral: a system message, then a user message, without an answer."""

    def rendered(self, message: str) -> str:
        """Insert a message into the template, without places of images in the message."""
        return super().rendered(message.replace(IMAGE, ""))

    def tokenizer(self, folder: Path) -> ChatTokenizer:
        """Read the tokenizer of a folder for messages in this template."""
        return MistralTokenizer(folder, self)


_USER = "<|im_start|>user\n"
_ANSWER = "<|im_end|>\n<|im_start|>assistant\n"

THINKING = Chat(_USER, _ANSWER)
"""Template with `enable_thinking` true: the answer is open, and a model would think first."""
NOT_THINKING = Chat(_USER, f"{_ANSWER}<think>\n\n</think>\n\n")
"""Template with `enable_thinking` false: the answer starts with empty thoughts."""

DESCRIBING = Chat(
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity,"
    " text, spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n",
    _ANSWER,
)
"""Template of Qwen-Image and Krea 2. Source: diffusers pipeline_qwenimage.py,
prompt_template_encode."""
DESCRIBING_CUT = 34
"""Number of its leading tokens that the transformers do not receive: the system message."""

IMAGE = "[IMG]"
"""Mistral's marker of the place of an image."""


def instruction(system: str) -> Instruction:
    """Return Mistral's template with a system message."""
    return Instruction(f"<s>[SYSTEM_PROMPT]{system}[/SYSTEM_PROMPT][INST]", "[/INST]")


class ChatTokenizer(Tokenizer):
    """Tokenizer of messages in a chat template."""

    def __init__(self, chat: Chat, kind: str, folder: Path, *choices: tuple[str, ...]) -> None:
        super().__init__(kind, folder, *choices)
        self.chat = chat

    def encode_with_mask(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Return the ids of the texts as messages, and the mask of tokens that are not padding."""
        if not self.chat.keeps_end:
            rendered = [self.chat.rendered(text) for text in texts]
            return super().encode_with_mask(rendered, max_length)
        heads = [self.chat.before + text for text in texts]
        ids, mask = super().encode_with_mask(heads, self._before_end(max_length))
        end = [piece.id for piece in self.pieces([self.chat.after])[0]]
        room = ((0, 0), (0, len(end)))
        ids, mask = np.pad(ids, room, constant_values=self.padding), np.pad(mask, room)
        for row, count in enumerate(mask.sum(axis=1)):
            ids[row, count : count + len(end)] = end
            mask[row, count : count + len(end)] = True
        return Tokens(ids, mask)

    def unread(self, text: str, max_length: int | None = None) -> str:
        """Return the end of a message that `encode` drops, without the template."""
        if self.chat.keeps_end:
            read = self._chars_read(self.chat.before + text, self._before_end(max_length))
        else:
            read = self._chars_read(self.chat.rendered(text), max_length)
        end = len(text) if read is None else max(0, read - len(self.chat.before))
        if end >= len(text):
            return ""
        return text[end:].strip() if text[end].isspace() else from_word(text, end)

    def _before_end(self, max_length: int | None) -> int:
        """Return the number of tokens before the template's end."""
        return (max_length or self.max_length) - len(self.pieces([self.chat.after])[0])


class QwenTokenizer(ChatTokenizer):
    """Tokenizer of Qwen's byte pairs, padded on the right."""

    def __init__(self, folder: Path, chat: Chat) -> None:
        """Read the tokenizer of a folder.

        Raises: CheckpointError: no tokenizer in it, or one that pads on the left.
        """
        choices = (("tokenizer.json",), ("vocab.json", "merges.txt"))
        super().__init__(chat, "Qwen2TokenizerFast", folder, *choices)
        if self._tokenizer.padding_side != "right":
            raise CheckpointError(
                f"{folder}: padding_side is {self._tokenizer.padding_side!r}; it must be 'right'"
            )


class MistralTokenizer(ChatTokenizer):
    """Tokenizer of Mistral's byte pairs, padded on the left unless its config states a side.

    Templates contain the beginning marker, so that the tokenizer adds none.
    """

    ADDS_MARKERS = False

    def __init__(self, folder: Path, chat: Chat) -> None:
        """Read the tokenizer of a folder.

        Raises: CheckpointError: no tokenizer in it, or one without a padding token.
        """
        super().__init__(chat, "PreTrainedTokenizerFast", folder, ("tokenizer.json",))
        self._tokenizer.padding_side = self._tokenizer.init_kwargs.get("padding_side", "left")
        if self._tokenizer.pad_token is None:
            raise CheckpointError(f"{folder}: the tokenizer has no pad_token; state it")


def chat_tokenizer(folder: Path, chat: Chat) -> ChatTokenizer:
    """Read the tokenizer of a folder for messages in a template; see `Chat.tokenizer`."""
    return chat.tokenizer(folder)

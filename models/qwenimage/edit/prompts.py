"""Prompts of edits as the encoder reads them: behind their images, in a chat of their own.

Source: diffusers pipeline_qwenimage_edit.py and pipeline_qwenimage_edit_plus.py,
prompt_template_encode.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.qwenimage.prompts import DESCRIBING
from models.text.chat import Chat

CHAT = Chat(
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture,"
    " objects, background), then explain how the user's text instruction should alter or modify the"
    " image. Generate a new image that meets the user's requirements while maintaining consistency"
    " with the original input where appropriate.<|im_end|>\n<|im_start|>user\n",
    DESCRIBING.behind,
)
CUT = 64
"""Tokens at the head of the chat that the transformer is not given."""
AREA_PX = 1024 * 1024
"""Pixels that an image to edit is scaled to, whatever the request's size."""


@dataclass(frozen=True)
class Showing:
    """Form that an edit's images have in its chat."""

    label: str
    """Words in front of each, with its number."""
    seen_px: int
    """Pixels that each is scaled to for the encoder."""
    read_px: int = AREA_PX
    """Pixels that each is scaled to for the transformer."""

    def head(self, count: int) -> str:
        """Return what is in front of the prompt, with one marker for each of so many images."""
        return "".join(self._until(index) + _IMAGE + _END for index in range(count))

    def heads(self, count: int) -> list[str]:
        """Return the texts in front of each image's marker, without what is behind it."""
        return [CHAT.before + self.head(index) + self._until(index) for index in range(count)]

    def _until(self, index: int) -> str:
        return self.label.format(index + 1) + _BEGIN


_BEGIN, _IMAGE, _END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
ALONE = Showing("", AREA_PX)
"""Form of Edit, which sees one."""
NUMBERED = Showing("Picture {}: ", 384 * 384)
"""Form of Edit Plus, which sees several."""

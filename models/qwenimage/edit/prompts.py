"""Chat template of edit prompts, in which images precede the prompt.

Source: diffusers pipeline_qwenimage_edit.py and pipeline_qwenimage_edit_plus.py,
prompt_template_encode.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.text.chat import DESCRIBING, Chat

CHAT = Chat(
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture,"
    " objects, background), then explain how the user's text instruction should alter or modify the"
    " image. Generate a new image that meets the user's requirements while maintaining consistency"
    " with the original input where appropriate.<|im_end|>\n<|im_start|>user\n",
    DESCRIBING.after,
)
CUT = 64
"""Number of leading tokens that the transformer does not receive."""
AREA_PX = 1024 * 1024
"""Pixels to which an edited image is scaled, independent of the request's size."""


@dataclass(frozen=True)
class ImagePromptFormat:
    """Format in which an edit's chat contains the images."""

    label: str
    """Text before each image, with its number."""
    encoder_px: int
    """Pixels to which each image is scaled for the text encoder."""
    read_px: int = AREA_PX
    """Pixels to which each image is scaled for the transformer."""

    def head(self, count: int) -> str:
        """Return the text before the prompt, with one marker per image."""
        return "".join(self._until(index) + _IMAGE + _END for index in range(count))

    def heads(self, count: int) -> list[str]:
        """Return the text before each image's marker."""
        return [CHAT.before + self.head(index) + self._until(index) for index in range(count)]

    def _until(self, index: int) -> str:
        return self.label.format(index + 1) + _BEGIN


_BEGIN, _IMAGE, _END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
SINGLE = ImagePromptFormat("", AREA_PX)
"""Format of Edit, for one image."""
NUMBERED = ImagePromptFormat("Picture {}: ", 384 * 384)
"""Format of Edit Plus, for several images."""

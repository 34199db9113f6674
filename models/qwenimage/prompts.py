"""Prompts as Qwen-Image's encoder reads them: as a user's message, of whose chat the head is cut.

Source: diffusers pipeline_qwenimage.py and pipeline_qwenimage_edit.py, prompt_template_encode.
"""

from __future__ import annotations

from models.text.chat import Chat

DESCRIBING = Chat(
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity,"
    " text, spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
)
CUT = 34
"""Tokens at the head of a chat that the transformer is not given: the system's message."""
EDITING_HEAD = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture,"
    " objects, background), then explain how the user's text instruction should alter or modify the"
    " image. Generate a new image that meets the user's requirements while maintaining consistency"
    " with the original input where appropriate.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
)
"""Head of the chat of an edit, up to the image."""
IMAGE = "<|image_pad|>"
"""Marker of one token of an image."""
EDITING = Chat(f"{EDITING_HEAD}{IMAGE}<|vision_end|>", DESCRIBING.behind)
EDIT_CUT = 64
"""Tokens at the head of the chat of an edit that the transformer is not given."""

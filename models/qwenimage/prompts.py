"""Prompts as Qwen-Image's encoder reads them: as a user's message, of whose chat the head is cut.

Source: diffusers pipeline_qwenimage.py, prompt_template_encode.
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

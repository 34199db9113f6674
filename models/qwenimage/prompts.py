"""Chat template of Qwen-Image's prompts, whose head is removed after encoding.

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
"""Number of leading tokens that the transformer does not receive: the system message."""

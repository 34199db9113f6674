"""Qwen-Image-Edit: edits one or several images by a prompt, with Qwen-Image's transformer.

May import every room of `models` but other families and `demo`.
"""

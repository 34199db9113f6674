"""Qwen-Image-Edit: an image, or several, edited as a prompt says, by Qwen-Image's own transformer.

May import every room of `models` but other families and `demo`.
"""

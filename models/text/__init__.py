"""Tokenizers and text encoders: CLIP, T5, UMT5, Qwen3.

May import `checkpoint`, `interface`, `nn`, `parallel`, `spec`.
"""

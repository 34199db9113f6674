"""Tokenizers and text encoders: CLIP, T5, UMT5, Qwen, Mistral, Gemma.

May import `checkpoint`, `interface`, `nn`, `parallel`, `spec`.
"""

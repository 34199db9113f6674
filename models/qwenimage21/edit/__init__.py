"""Qwen-Image 2.1 with references.

May import every room of `models` but other families and `demo`.
"""

"""Qwen-Image 2.1.

May import every room of `models` but other families and `demo`.
"""

"""FLUX.2: klein and dev.

May import every room of `models` but other families and `demo`.
"""

"""LTX-2: video with sound.

May import every room of `models` but other families and `demo`.
"""

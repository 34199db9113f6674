"""The tiny trained checkpoints, and the program that made them.

May import every room of `models`; no other room imports it.
"""

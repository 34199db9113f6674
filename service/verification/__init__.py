"""Verification: repeats an output by its recipe, and compares the pixels.

May import recipes, admission, front_end, http, responses and their dependencies.
"""

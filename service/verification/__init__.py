"""Verification: an output is drawn again by its recipe, and its pixels are compared.

May import recipes, admission, front_end, http, responses and what these stand on.
"""

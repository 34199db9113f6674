"""Reference pages of the documentation, generated from the code (`make reference`).

May import every room; no room imports it.
"""

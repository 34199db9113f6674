"""Programs that write generated files of this repository. No part of the product.

May import every room; no room imports them.
"""

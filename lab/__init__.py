"""Programs that measure Atelier, train its demo models and make pages; not part of the product.

They may import every package of the project, and `tests`; only their own tests import them.
"""

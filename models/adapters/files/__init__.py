"""Files of adapters, read against the names of a model's layers. No JAX: front ends import it.

May import `spec`.
"""

"""HTTP front end: takes requests or refuses them, queues jobs, returns their results.

Of this project it imports `models.spec` alone, and no JAX. Its rooms' floors are in
tests/test_arrows.py; `app`, `server` and `openapi` put them together.
"""

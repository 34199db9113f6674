"""HTTP front end: validates and admits requests, queues jobs, and returns their results.

It imports only `models.spec` of this project, and no JAX. tests/test_arrows.py lists which room may
import which. `app`, `server` and `openapi` assemble the rooms.
"""

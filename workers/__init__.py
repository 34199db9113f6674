"""Workers: each process serves the models of one pool on one mesh slice.

May import `models`, `service.jobs`, settings and tracing; no web framework. Floors of the rooms are
in tests/test_arrows.py; all rooms may import `metrics` and `retry`.
"""

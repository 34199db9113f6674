"""Workers: one process serves one model on one mesh slice.

May import `models`, `service.jobs`, settings and tracing; no web framework. Floors of the rooms are
in tests/test_arrows.py; `metrics` and `retry` are for all of them.
"""

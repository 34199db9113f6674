"""The conformance suite: what every served family does, whatever its network is.

A family is an entry of `suite.py`; all else is parametrised over the registry. One that has no
entry is not served: tests/families/test_suite.py fails.
"""

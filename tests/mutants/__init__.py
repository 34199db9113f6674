"""Mutants: small faults, each applied alone to a copy of the tree, and the tests that find them.

They measure whether the gate (`make test`) finds what the suite (`make test-all`) finds:
`python -m tests.mutants`.
"""

"""The one shape of a tiny random Flux that these tests compile, and keep compiled."""

from __future__ import annotations

from tests.families.suite import SUITE

REQUEST = SUITE["flux"].least_request
SLOTS = 2

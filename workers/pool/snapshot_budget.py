"""Time budget of snapshots: a share of the steps' time, spent at their measured cost."""

from __future__ import annotations

from collections import defaultdict, deque

from workers.engine.row import Row

FIRST_S = 0.05
FIRST_BYTES_A_S = 50e6
"""Assumed cost of a bucket's first snapshot, as with a slow store."""
MEMORY = 8
"""Latest snapshots of one bucket that count."""


class Budget:
    """Time budget of a worker's snapshots, as a share of its steps' time.

    Args:
        share: share of the steps' time; 0: snapshots only when draining.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._seconds: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MEMORY))

    def observe(self, bucket: str, seconds: float) -> None:
        """Record the seconds of one snapshot, from the copy to the store's response.

        The queue's response is excluded: it takes a millisecond, or until Redis is reachable again.
        """
        self._seconds[bucket].append(seconds)

    def expected(self, bucket: str, size: int) -> float:
        """Return the maximum expected seconds of a snapshot. Args: size: bytes of the state."""
        measured = self._seconds.get(bucket)
        return max(measured) if measured else FIRST_S + size / FIRST_BYTES_A_S

    def account(self, device_seconds: float) -> Account:
        """Create an image's snapshot account; `device_seconds` is its usage in earlier claims."""
        return Account(self, self._share, device_seconds)


class Account:
    """Budget of one image: the time its snapshots have cost, and the time its steps have earned."""

    def __init__(self, budget: Budget, share: float, begun_at: float) -> None:
        self._budget = budget
        self._share = share
        self._begun_at = begun_at
        self._spent = 0.0

    def pays(self, row: Row, size: int) -> bool:
        """Return whether the image's finished steps pay for another snapshot."""
        earned = self._share * (row.device_seconds - self._begun_at)
        return self._spent + self._budget.expected(row.programs.bucket, size) <= earned

    def pays_suspension(self, row: Row, size: int) -> bool:
        """Return whether the image's finished steps pay for suspending the image once.

        This allowance equals the budget of its other snapshots, and is separate.
        """
        encode_s = row.programs.encode_times.median or 0.0  # the resuming worker encodes again
        earned = self._share * (row.device_seconds - self._begun_at)
        return self._budget.expected(row.programs.bucket, size) + encode_s <= earned

    def spend(self, row: Row, seconds: float) -> None:
        """Record the seconds that a snapshot of the image took."""
        self._spent += seconds
        self._budget.observe(row.programs.bucket, seconds)

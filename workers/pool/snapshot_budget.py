"""Budget of snapshots.

A share of the time that steps take, held by what they are measured to cost.
"""

from __future__ import annotations

from collections import defaultdict, deque

from workers.engine.row import Row

FIRST_S = 0.05
FIRST_BYTES_A_S = 50e6
"""Assumed cost of a first snapshot, before one of its bucket was measured: a slow store's."""
MEMORY = 8
"""Latest snapshots of one bucket that count."""


class Budget:
    """Budget of a pool's snapshots.

    Args:
        share: of the steps' time; 0: nothing is kept but when the pool drains.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._seconds: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MEMORY))

    def observe(self, bucket: str, seconds: float) -> None:
        """Take in the seconds of one snapshot, from the copy to the store's answer.

        The queue's answer takes a millisecond, or until Redis is back: that tells nothing of the
        next one.
        """
        self._seconds[bucket].append(seconds)

    def expected(self, bucket: str, size: int) -> float:
        """Seconds that one more takes at the most. Args: size: bytes of the state."""
        measured = self._seconds.get(bucket)
        return max(measured) if measured else FIRST_S + size / FIRST_BYTES_A_S

    def account(self, device_seconds: float) -> Account:
        """Open the account of an image; `device_seconds` is what it took in earlier claims."""
        return Account(self, self._share, device_seconds)


class Account:
    """Account of one image: what its snapshots have cost, and what they may."""

    def __init__(self, budget: Budget, share: float, begun_at: float) -> None:
        self._budget = budget
        self._share = share
        self._begun_at = begun_at
        self._spent = 0.0

    def pays(self, row: Row, size: int) -> bool:
        """Return whether the steps that are done pay for one more snapshot."""
        earned = self._share * (row.device_seconds - self._begun_at)
        return self._spent + self._budget.expected(row.programs.bucket, size) <= earned

    def pays_aside(self, row: Row, size: int) -> bool:
        """Return whether the steps that are done pay for putting the image aside once.

        As much again as the budget of its other snapshots.
        """
        encode_s = row.programs.encode_times.median or 0.0  # whoever goes on with it encodes anew
        earned = self._share * (row.device_seconds - self._begun_at)
        return self._budget.expected(row.programs.bucket, size) + encode_s <= earned

    def spend(self, row: Row, seconds: float) -> None:
        """Note the seconds that a snapshot took."""
        self._spent += seconds
        self._budget.observe(row.programs.bucket, seconds)

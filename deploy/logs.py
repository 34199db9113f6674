"""What a process writes to standard error, and how."""

from __future__ import annotations

import logging

OURS = ("atelier", "deploy", "models", "service", "workers")


def log_to_stderr(level: str) -> None:
    """One line an event: ours from `level` on, other people's from warnings on."""
    logging.basicConfig(
        level=logging.WARNING,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())

"""Program of a follower whose leader is in the tests' process, with toy pipelines on both sides.

Each side computes alone on its own device: no collectives, and no JAX between them.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import jax

from models.interface.step_program import StepProgram
from tests.workers.toy import ToyPipeline
from workers.multihost.follower import Follower
from workers.multihost.handshake import Handshake
from workers.multihost.leader_link import LeaderLink
from workers.multihost.rendezvous import call
from workers.slice.mesh import one_device

SILENCE_S = 60.0
"""Timeout of a connection, on a busy machine."""
CALLS = "calls the first process"


class Smaller(ToyPipeline):
    """Toy pipeline on a device without memory for the phase "double"."""

    def step(self, program: StepProgram, *arguments: Any, **more: Any) -> Any:
        if program.network == "double":
            program = StepProgram("hopeless")
        return super().step(program, *arguments, **more)


def main(port: int, token: str, sizes: list[int]) -> None:
    logging.basicConfig(level=logging.INFO)
    logging.info(CALLS)
    link = LeaderLink(call(("127.0.0.1", port), token, 1, SILENCE_S), SILENCE_S)
    pipeline, layout = Smaller(), one_device(jax.devices()[0])
    terms = Handshake.of(pipeline, layout, sizes, elastic=False)
    link.follow(Follower(pipeline, layout, terms))
    link.close()


if __name__ == "__main__":
    port, token, *sizes = sys.argv[1:]
    main(int(port), token, [int(size) for size in sizes])

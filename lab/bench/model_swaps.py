"""Time to move a model off the devices and back, compared with a plain transfer. Not a test.

    python -m lab.bench.model_swaps [--double 1 --single 2] [--rounds 7]

Uses bfloat16 arrays of the Flux transformer at full width, with a depth that fits this machine.
Alternates between one `jax.device_put` of the same bytes and `Weights.reload`. The first move
copies the weights to the host; later moves only free device memory, as the copy stays.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from deploy.cli.options import count
from models.flux.config import FluxConfig
from models.flux.network import FluxTransformer
from models.flux.published import FLUX_DEV
from models.loading.abstract import abstract_module
from models.weights.loader import flat_parameters
from workers.programs.device_weights import Weights
from workers.programs.host_copies import copied


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--double", type=int, default=1, help="double blocks")
    parser.add_argument("--single", type=int, default=2, help="single blocks")
    parser.add_argument("--rounds", type=count, default=7)
    options = parser.parse_args()
    depth = {"num_layers": options.double, "num_single_layers": options.single}
    config = FluxConfig.from_dict({**FLUX_DEV["transformer"], **depth})
    leaves = flat_parameters(abstract_module(FluxTransformer, config, param_dtype="bfloat16"))
    placement = SingleDeviceSharding(jax.devices()[0])
    tree = {
        path: jax.device_put(np.ones(leaf.shape, leaf.dtype), placement)
        for path, leaf in leaves.items()
    }
    weights = Weights("flux", tree, [placement] * len(tree), [False] * len(tree))
    measure(weights, options.rounds)


def measure(weights: Weights, rounds: int) -> None:
    size = weights.device_bytes
    host = [copied(array) for array in weights.common]
    first_s = timed(weights.offload)
    put_s, back_s, left_s = [], [], []
    for number in range(rounds):
        if number % 2:
            put_s.append(plain(host))
        back_s.append(timed(weights.reload))
        left_s.append(timed(weights.offload))
        if not number % 2:
            put_s.append(plain(host))
    ratio = median(back / put for back, put in zip(back_s, put_s, strict=True))
    print(f"{size / 1e9:.2f} GB on {jax.devices()[0].device_kind}, {os.cpu_count()} cores")
    print(f"leaves for the first time: {first_s:.3f} s, later {median(left_s):.3f} s")
    print(f"comes back: {median(back_s):.3f} s; one device_put: {median(put_s):.3f} s")
    print(f"ratio in alternating turns: {ratio:.2f}")


def plain(host: list[object]) -> float:
    placement = SingleDeviceSharding(jax.devices()[0])
    started = time.perf_counter()
    arrays = jax.block_until_ready(jax.device_put(host, placement))
    took_s = time.perf_counter() - started
    for array in arrays:
        array.delete()
    return took_s


def timed(work: object) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

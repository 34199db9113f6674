"""Collectives in HLO text, of compiled programs and as the TPU's compiler writes them."""

from __future__ import annotations

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from models.parallel.axis_rules import auto_mesh
from workers.plan.hlo import Collective, read

DEVICES, LAYERS = 8, 3
WIDTH = 128
TWO_SLICES = [0] * 4 + [1] * 4
SHARE = WIDTH * WIDTH // DEVICES * 4
"""Bytes of a device's share."""


def compiled(step: object) -> str:
    """Return the HLO text of a loop of steps on each device's share."""
    mesh = auto_mesh(jax.devices()[:DEVICES], ("all",))
    spec = PartitionSpec("all")

    @partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    def run(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (step(x), None), x, length=LAYERS)[0]

    x = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=NamedSharding(mesh, spec))
    return jax.jit(run).lower(x).compile().as_text()


def swap(x: jax.Array) -> jax.Array:
    return jax.lax.all_to_all(jnp.sin(x), "all", 1, 0, tiled=True).reshape(x.shape)


def turn(x: jax.Array) -> jax.Array:
    return jax.lax.ppermute(jnp.sin(x), "all", [(i, (i + 1) % DEVICES) for i in range(DEVICES)])


def gather(x: jax.Array) -> jax.Array:
    return jnp.sin(jax.lax.all_gather(x, "all", tiled=True)[: len(x)])


@pytest.mark.parametrize(
    ("step", "kind", "sent"),
    [
        (swap, "all-to-all", SHARE * 7 / 8),
        (turn, "collective-permute", SHARE),
        (lambda x: jax.lax.psum(jnp.sin(x), "all"), "all-reduce", 2 * SHARE * 7 / 8),
        (gather, "all-gather", 8 * SHARE * 7 / 8),
    ],
    ids=["all-to-all", "permute", "all-reduce", "all-gather"],
)
def test_loop_collectives_are_counted_per_iteration(step: object, kind: str, sent: float) -> None:
    collectives = read(compiled(step), [0] * DEVICES).collectives
    total = sum(
        collective.sent_bytes * count
        for collective, count in collectives.items()
        if collective.kind == kind
    )
    assert total == LAYERS * sent
    assert not any(collective.crosses for collective in collectives)


def test_cross_slice_collectives_are_detected() -> None:
    """The same program on two slices of four devices."""
    assert all(collective.crosses for collective in read(compiled(swap), TWO_SLICES).collectives)


def test_permute_crosses_slices_if_any_pair_does() -> None:
    collectives = read(compiled(turn), TWO_SLICES).collectives
    assert all(
        collective.crosses for collective in collectives if collective.kind == "collective-permute"
    )
    alternate = [0, 1] * 4  # devices of a slice need not be numbered in a row
    pairs = "source_target_pairs={{0,2},{2,0}}"
    text = f"{HEAD}  %p = {ARRAY} collective-permute(%x), {pairs}\n}}\n"
    assert not any(collective.crosses for collective in read(text, alternate).collectives)


HEAD = "ENTRY %main (x: f32[8]) -> f32[8] {\n"
ARRAY = "bf16[4,256]{1,0:T(8,128)(2,1)S(1)}"


@pytest.mark.parametrize(
    ("groups", "sent", "crosses"),
    [
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", 2048 * 3 / 4, True),
        ("replica_groups=[4,2]<=[8]", 2048 / 2, False),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", 2048 * 3 / 4, True),
        ("replica_groups=mesh['a'=4,'b'=2] {'b'}", 2048 / 2, False),
        ("replica_groups=mesh['a'=4,'b'=2] {'a'}", 2048 * 3 / 4, True),
        ("replica_groups=mesh['a'=8] {'a':(2)2}", 2048 / 2, False),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", 2048 / 2, True),
    ],
)
def test_groups_are_read_in_every_spelling(groups: str, sent: float, crosses: bool) -> None:
    text = f"{HEAD}  %a = {ARRAY} all-to-all(%x), channel_id=1, {groups}, dimensions={{2}}\n}}\n"
    assert read(text, TWO_SLICES).collectives == Counter(
        {Collective("all-to-all", sent, crosses): 1}
    )


def test_asynchronous_collective_counts_its_output() -> None:
    line = (
        f"  %g = ({ARRAY}, bf16[16,256]{{1,0}}) all-gather-start(%x), replica_groups=[1,4]<=[4]\n"
    )
    collectives = read(f"{HEAD}{line}}}\n", [0] * 4).collectives
    assert collectives == Counter({Collective("all-gather", 16 * 256 * 2 * 3 / 4, False): 1})


def test_cycles_are_added_up() -> None:
    text = f'{HEAD}  %f = f32[8] fusion(%x), backend_config={{"estimated_cycles":"70"}}\n}}\n'
    assert read(text, [0] * 4).cycles == 70


def test_both_branches_of_a_condition_are_read() -> None:
    cycles = 'backend_config={"estimated_cycles":"7"}'
    branches = "".join(
        f"%{name} (x: f32[8]) -> f32[8] {{\n  %f = f32[8] fusion(%x), {cycles}\n}}\n"
        for name in ("yes", "no")
    )
    line = "conditional(%p, %x, %x), true_computation=%yes, false_computation=%no"
    assert read(f"{branches}{HEAD}  %c = f32[8] {line}\n}}\n", [0] * 4).cycles == 14

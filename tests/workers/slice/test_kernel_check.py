"""Atelier's own kernels are compared with plain ones before a worker uses them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from models.nn.kernels import int8_matmul
from models.nn.kernels.block_sizes import of_chip
from models.nn.kernels.kernel import AttentionOutput, kernel_name
from models.nn.kernels.wide_attention import transposed_kernel
from models.nn.kernels.xla import xla_kernel
from workers.programs import aot_key
from workers.slice.kernel_check import (
    ATTENTION_ERROR,
    PRODUCT_ERROR,
    Kernels,
    attention_error,
    product_error,
    usable_kernels,
)

V6E = "TPU v6 lite"
CPU = jax.devices()[0]


def device(runtime: str) -> Any:
    client = SimpleNamespace(runtime_type=runtime)
    return SimpleNamespace(platform="tpu", device_kind=V6E, client=client)


def names(kernels: Kernels) -> list[str]:
    return [kernel_name(kernel) for kernel in kernels]


def test_own_attention_kernel_passes() -> None:
    kernel = transposed_kernel(of_chip(V6E), interpret=True)
    assert attention_error(kernel, jnp.bfloat16, CPU) < ATTENTION_ERROR / 2


def test_own_matrix_product_kernel_passes() -> None:
    product = partial(int8_matmul.product, interpret=True)
    assert product_error(product, jnp.bfloat16, CPU) < PRODUCT_ERROR / 2


def test_wrong_kernels_do_not_pass() -> None:
    def wrong(q: Any, k: Any, v: Any, *, scale: float, keys: Any = None) -> AttentionOutput:
        output = xla_kernel(q, k, v, scale=scale, keys=None)  # keys that do not count, count
        return AttentionOutput(output.values, output.log_sum)

    def rough(parts: Any, kernel: Any, columns: Any, bias: Any) -> jax.Array:
        return jnp.round(parts[0]) @ kernel.values[0].astype(jnp.float32) * columns

    assert attention_error(wrong, jnp.bfloat16, CPU) > ATTENTION_ERROR
    assert attention_error(xla_kernel, jnp.bfloat16, CPU) < ATTENTION_ERROR
    product: Any = rough
    assert product_error(product, jnp.float32, CPU) > PRODUCT_ERROR


def test_kernels_that_fail_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """This device cannot run anything."""
    kernels = usable_kernels(device("runtime"), jnp.bfloat16, "experimental")
    assert names(kernels) == names(usable_kernels(device("runtime"), jnp.bfloat16, "plain"))
    assert "experimental kernel of attention failed" in caplog.text
    assert "experimental kernel of the product in 8 bits failed" in caplog.text


def test_described_devices_have_the_chosen_kernels() -> None:
    described = device("compile_only_runtime")
    custom = usable_kernels(described, jnp.bfloat16, "experimental")
    plain = usable_kernels(described, jnp.bfloat16, "plain")
    assert "transposed_kernel" in names(custom)[0] and names(custom)[1] == "product"
    assert "splash_kernel" in names(plain)[0] and plain.eight_bit is None


def test_executables_are_stored_by_kernels() -> None:
    described = device("compile_only_runtime")
    keys = [
        aot_key.kernels(SimpleNamespace(kernel=kernels.attention, eight_bit=kernels.eight_bit))
        for choice in ("experimental", "plain")
        if (kernels := usable_kernels(described, jnp.bfloat16, choice))
    ]
    assert keys[0] != keys[1]


def test_other_devices_are_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    assert usable_kernels(CPU, jnp.float32, "experimental").eight_bit is None
    assert not caplog.records

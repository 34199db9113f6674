"""Ahead-of-time compilation of each attention kernel for its chips, without that hardware."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from models.nn.kernels.block_size_search import TOPOLOGIES
from models.nn.kernels.cudnn import cudnn_kernel
from models.nn.kernels.int8_matmul import CHIPS
from models.nn.kernels.select import kernel_for
from models.parallel.jax_internals import fused_attention_stablehlo

LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v6e-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
}
"""Environment that stops libtpu from querying the machine, which has no TPU."""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, str]]:
    module = "tests.models.nn.attention.compile_for_tpus"
    done = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, **LIBTPU},
        stdout=subprocess.PIPE,
        check=True,
    )
    outcomes: dict[str, dict[str, str]] = json.loads(done.stdout)
    return outcomes


@pytest.mark.parametrize("chip", TOPOLOGIES)
def test_splash_compiles(chip: str, outcomes: dict[str, dict[str, str]]) -> None:
    for case in ("largest blocks", "text", "float32"):
        assert outcomes[chip][case] == "compiled", case


@pytest.mark.parametrize("chip", CHIPS)
def test_products_of_eight_bits_compile(chip: str, outcomes: dict[str, dict[str, str]]) -> None:
    assert outcomes[chip]["eight bits"] == "compiled"


def test_the_compiler_knows_a_chips_memory(outcomes: dict[str, dict[str, str]]) -> None:
    """Control for the other tests: the compiler reports exhausted memory."""
    assert outcomes["TPU v5 lite"]["too large"] == "RESOURCE_EXHAUSTED"


@pytest.fixture
def some_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch the cuDNN version, all that JAX queries from the machine to lower for cuDNN."""
    versions = SimpleNamespace(cudnn_get_version=lambda: 92000)
    monkeypatch.setattr(fused_attention_stablehlo, "cuda_versions", versions)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gpus_call_cudnn(dtype: str, some_cudnn: None) -> None:
    """Lower only, without a run: the machine has no GPU."""
    kernel = kernel_for(SimpleNamespace(platform="gpu", device_kind="NVIDIA H200"), dtype)
    assert kernel is cudnn_kernel
    q, k = (jax.ShapeDtypeStruct((2, tokens, 3, 64), dtype) for tokens in (100, 77))
    keys = jax.ShapeDtypeStruct((77,), bool)
    every = lowered_for_cuda(partial(kernel, scale=0.1), q, k, k)
    some = lowered_for_cuda(
        lambda q, k, v, keys: kernel(q, k, v, scale=0.1, keys=keys), q, k, k, keys
    )
    for text in (every, some):
        assert "__cudnn$fmhaSoftmax" in text
        assert "tensor<2x3x100xf32>" in text and "2x100x3xbf16" not in text
        assert "2x100x3xf16" not in text  # float32 log-sums, which are never rounded
        assert "77x100" not in text and "100x77" not in text  # neither logits nor their mask
    assert "PADDING" in some and "PADDING" not in every


def lowered_for_cuda(function, *arguments) -> str:
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    assert isinstance(text, str)
    return text


def test_cudnn_refuses_float32_by_name() -> None:
    q = jnp.zeros((1, 8, 1, 64))
    with pytest.raises(ValueError, match="bfloat16 or float16, not float32"):
        cudnn_kernel(q, q, q, scale=1.0)


def test_gpus_take_float32_by_xla() -> None:
    kernel = kernel_for(SimpleNamespace(platform="gpu", device_kind="NVIDIA H200"), "float32")
    q = jax.ShapeDtypeStruct((1, 64, 1, 8), "float32")
    text = lowered_for_cuda(partial(kernel, scale=0.1), q, q, q)
    assert "custom_call" not in text and "dot_general" in text


@pytest.mark.parametrize(("keys", "is_flash"), [(77, False), (128, False), (129, True)])
@pytest.mark.parametrize("chip", ["TPU v5 lite", "TPU v6 lite"])
def test_tpus_attend_to_few_keys_by_plain_products(chip: str, keys: int, is_flash: bool) -> None:
    kernel = kernel_for(SimpleNamespace(platform="tpu", device_kind=chip), "bfloat16")
    q, k = (jax.ShapeDtypeStruct((1, tokens, 2, 64), "bfloat16") for tokens in (256, keys))
    traced = jax.jit(partial(kernel, scale=0.1)).trace(q, k, k)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert ("tpu_custom_call" in text) == is_flash

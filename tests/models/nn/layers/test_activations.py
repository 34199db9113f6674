"""GELU compared with torch's, in every dtype."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from models.nn.layers.activations import erf_gelu

ALL = np.concatenate([np.linspace(-12, 12, 4_001), [-1e4, 1e4, 0.0]]).astype(np.float32)


@pytest.mark.parametrize(("dtype", "steps"), [("float32", 4), ("bfloat16", 1), ("float16", 1)])
def test_gelu_is_torchs(dtype: str, steps: int) -> None:
    """Values are within a few steps of the dtype of torch's, which also computes in float32. Where
    1 + erf is only rounding error, both are below 1e-6."""
    x = jnp.asarray(ALL, dtype)
    reference = torch.nn.functional.gelu(
        torch.tensor(np.asarray(x, np.float32)).to(getattr(torch, dtype))
    )
    output = erf_gelu(x)
    assert output.dtype == x.dtype
    tolerance = steps * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(
        np.asarray(output, np.float32), reference.float().numpy(), rtol=tolerance, atol=1e-6
    )

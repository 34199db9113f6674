"""Pictures as strips side by side in the batch, which is how a TPU convolves them.

A TPU's registers hold eight pictures' channels at a time. Of a single picture its compiler makes
eight strips in front of a convolution and a picture again behind it, and both take longer than the
convolution itself. Here a picture is cut once, where it is smallest; each convolution then takes
the columns beside a strip from its neighbours, and norms count a picture's strips together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh
from jaxtyping import Array, Shaped

from models.sharding import Layout, MeshAxes

ROWS = 8
"""Of a TPU's registers."""

Sides = tuple[int, int]
"""Columns left and right."""

_count: ContextVar[int] = ContextVar("strips", default=1)


@contextmanager
def in_strips(count: int) -> Iterator[None]:
    """What is traced in here takes pictures in so many strips; 1: as they are."""
    token = _count.set(count)
    try:
        yield
    finally:
        _count.reset(token)


def strips() -> int:
    """That a picture is in; 1: it is whole."""
    return _count.get()


def for_layout(layout: Layout, width: int, columns: MeshAxes) -> int:
    """How many strips a picture so wide is cut into where that layout's devices are.

    Args:
        columns: mesh axes that its columns are split over.
    """
    if isinstance(layout.mesh, AbstractMesh):  # shapes alone are asked for
        return 1
    return fitting(layout.mesh.devices.flat[0].platform, width, layout.devices(columns))


def fitting(platform: str, width: int, devices: int) -> int:
    """As many for each device as a TPU's registers have rows, where they come out even; else 1."""
    is_even = width % (ROWS * devices) == 0
    return ROWS * devices if platform == "tpu" and is_even else 1


def cut_up(
    x: Shaped[Array, "batch *frames height _width channels"],
) -> Shaped[Array, "_strips *frames height _columns channels"]:
    """Pictures or frames → their strips, those of a picture one after the other."""
    if strips() == 1:
        return x
    apart = x.reshape(*x.shape[:-2], strips(), x.shape[-2] // strips(), x.shape[-1])
    apart = jnp.moveaxis(apart, -3, 1)
    return apart.reshape(-1, *apart.shape[2:])


def put_together(
    x: Shaped[Array, "_strips *frames height _columns channels"],
) -> Shaped[Array, "batch *frames height _width channels"]:
    """The inverse of `cut_up`, whatever became of the sizes."""
    if strips() == 1:
        return x
    joined = jnp.moveaxis(by_picture(x), 1, -3)
    return joined.reshape(*joined.shape[:-3], -1, joined.shape[-1])


def by_picture(x: Shaped[Array, "_strips ..."]) -> Shaped[Array, "batch _of_each ..."]:
    """The strips of each picture on an axis of their own."""
    return x.reshape(-1, strips(), *x.shape[1:])


def beyond(
    x: Shaped[Array, "_strips *frames height _columns channels"], padding: Sides
) -> tuple[Shaped[Array, "_strips *frames height _more channels"], Sides]:
    """What a window sees beyond the columns of a strip: its neighbours', zeros at the picture's
    sides. Returns the strips with that, and the padding that is still to be added."""
    if strips() == 1 or not any(padding):
        return x, padding
    left, right = padding
    apart = by_picture(x)
    width = apart.shape[-2]
    none = ((0, 0),) * (apart.ndim - 2)
    before = jnp.pad(apart[:, :-1, ..., width - left :, :], ((0, 0), (1, 0), *none))
    after = jnp.pad(apart[:, 1:, ..., :right, :], ((0, 0), (0, 1), *none))
    seen = jnp.concatenate([before, apart, after], axis=-2)
    return seen.reshape(-1, *seen.shape[2:]), (0, 0)


def convolved(
    layer: nnx.Conv, x: Shaped[Array, "_strips *frames height _columns channels"]
) -> Shaped[Array, "_strips *frames _height _columns _channels"]:
    """layer(x), of pictures or of each frame by itself. Its padding names rows and columns."""
    if strips() == 1:
        return layer(x)
    rows, columns = _sides(layer.padding)
    x, columns = beyond(x, columns)
    kernel, bias = layer.kernel[...].astype(x.dtype), layer.bias
    strides = np.broadcast_to(np.asarray(layer.strides), 2).tolist()
    # Frames stay an axis of their own: as part of the batch they would be moved there and back.
    frames = x.ndim - 4
    names = ("NDHWC", "DHWIO", "NDHWC") if frames else ("NHWC", "HWIO", "NHWC")
    out = jax.lax.conv_general_dilated(
        x,
        kernel[(None,) * frames],
        [*(1,) * frames, *strides],
        [*((0, 0),) * frames, rows, columns],
        dimension_numbers=names,
    )
    return out if bias is None else out + bias[...].astype(x.dtype)


def _sides(padding: int | str | Sequence[int | Sides]) -> list[Sides]:
    """Of rows and of columns."""
    rows, columns = np.broadcast_to(np.asarray(padding), (2, 2)).tolist()
    return [tuple(rows), tuple(columns)]

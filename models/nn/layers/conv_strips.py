"""Images as strips side by side in the batch, which is how a TPU convolves them.

A TPU's registers hold eight images' channels at a time. Of a single image its compiler makes
eight strips in front of a convolution and an image again behind it, and both take longer than the
convolution itself. Here an image is cut once, where it is smallest; each convolution then takes
the columns beside a strip from its neighbours, and norms count an image's strips together. How
many strips an image is in is `TraceOptions.strips`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from models.parallel.axis_rules import Layout, MeshAxes
from models.parallel.trace_options import trace_options

ROWS = 8
"""Rows of a TPU's registers."""

_NONE = ((0, 0),) * 3


def for_layout(layout: Layout, width: int, columns: MeshAxes) -> int:
    """Return how many strips an image so wide is cut into on that layout's devices.

    Args:
        columns: mesh axes that its columns are split over.
    """
    return fitting(layout.platform, width, layout.devices(columns))


def fitting(platform: str | None, width: int, devices: int) -> int:
    """Return a TPU's register rows for each device, where they come out even; else 1."""
    is_even = width % (ROWS * devices) == 0
    return ROWS * devices if platform == "tpu" and is_even else 1


def for_batch(layout: Layout | None, batch: int, width: int) -> int:
    """Return how many strips each image of a batch is cut into where a TPU has its images whole.

    Args:
        batch: images of all devices.
        width: of the smallest image.
    """
    if layout is None or layout.platform != "tpu":
        return 1
    if layout.size("rows") * layout.size("channels") > 1:
        return 1
    (axes,) = layout.split(("batch",), (batch,))
    return strips_at_once(batch // layout.devices(axes), width)


def strips_at_once(pictures: int, width: int) -> int:
    """Return how many strips of each fill registers' rows with those of the others.

    Fewer where they do not come out even.
    """
    most = max(ROWS // pictures, 1)
    return next(count for count in range(most, 0, -1) if width % count == 0)


def split_strips(
    x: Shaped[Array, "batch height _width channels"],
) -> Shaped[Array, "_strips height _columns channels"]:
    """Images → their strips, those of an image one after the other."""
    if trace_options().strips == 1:
        return x
    batch, height, _, channels = x.shape
    strips = x.reshape(batch, height, trace_options().strips, -1, channels).swapaxes(1, 2)
    return strips.reshape(-1, *strips.shape[2:])


def join_strips(
    x: Shaped[Array, "_strips height _columns channels"],
) -> Shaped[Array, "batch height _width channels"]:
    """The inverse of `split_strips`, whatever became of the sizes."""
    if trace_options().strips == 1:
        return x
    joined = by_image(x).swapaxes(1, 2)
    return joined.reshape(*joined.shape[:2], -1, joined.shape[-1])


def repeat_by_strip(x: Shaped[Array, "batch ..."]) -> Shaped[Array, "_strips ..."]:
    """Repeat what is said of each image for all of its strips."""
    return jnp.repeat(x, trace_options().strips, axis=0)


def by_image(x: Shaped[Array, "_strips ..."]) -> Shaped[Array, "batch _of_each ..."]:
    """The strips of each image on an axis of their own."""
    return x.reshape(-1, trace_options().strips, *x.shape[1:])


def with_neighbours(
    x: Shaped[Array, "_strips height _columns channels"], left: int, right: int
) -> Shaped[Array, "_strips height _more channels"]:
    """Strips with so many columns of those beside them; zeros at the image's sides."""
    strips = by_image(x)
    width = strips.shape[-2]
    before = jnp.pad(strips[:, :-1, :, width - left :], ((0, 0), (1, 0), *_NONE))
    after = jnp.pad(strips[:, 1:, :, :right], ((0, 0), (0, 1), *_NONE))
    seen = jnp.concatenate([before, strips, after], axis=-2)
    return seen.reshape(-1, *seen.shape[2:])

"""Images as strips in the batch axis, the form in which a TPU convolves them.

A TPU's registers hold the channels of eight images at a time. For a single image its compiler makes
eight strips before a convolution and an image again after it. Both take longer than the convolution
itself. Here an image is cut once, where it is smallest. Each convolution then reads the adjacent
columns of neighbouring strips, and norms reduce over all strips of an image. `TraceOptions.strips`
is the number of strips of an image.
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
    """Return the number of strips of an image of this width, whose columns the layout may split.

    Args:
        columns: mesh axes that its columns are split over.
    """
    return fitting(layout.platform, width, layout.devices(columns))


def fitting(platform: str | None, width: int, devices: int) -> int:
    """Return the rows of a TPU register as strips per device if they divide the width, else 1."""
    is_even = width % (ROWS * devices) == 0
    return ROWS * devices if platform == "tpu" and is_even else 1


def for_batch(layout: Layout | None, batch: int, width: int) -> int:
    """Return the number of strips of each image of a batch, if each TPU has complete images.

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


def strips_at_once(images: int, width: int) -> int:
    """Return the strips per image with which all images together fill a register's rows.

    Fewer if they do not divide the width.
    """
    most = max(ROWS // images, 1)
    return next(count for count in range(most, 0, -1) if width % count == 0)


def split_strips(
    x: Shaped[Array, "batch height _width channels"],
) -> Shaped[Array, "_strips height _columns channels"]:
    """Cut images into vertical strips; the strips of an image are adjacent in the batch."""
    if trace_options().strips == 1:
        return x
    batch, height, _, channels = x.shape
    strips = x.reshape(batch, height, trace_options().strips, -1, channels).swapaxes(1, 2)
    return strips.reshape(-1, *strips.shape[2:])


def join_strips(
    x: Shaped[Array, "_strips height _columns channels"],
) -> Shaped[Array, "batch height _width channels"]:
    """Join strips into images: the inverse of `split_strips`, also for changed sizes."""
    if trace_options().strips == 1:
        return x
    joined = by_image(x).swapaxes(1, 2)
    return joined.reshape(*joined.shape[:2], -1, joined.shape[-1])


def repeat_by_strip(x: Shaped[Array, "batch ..."]) -> Shaped[Array, "_strips ..."]:
    """Repeat per-image values for each of the image's strips."""
    return jnp.repeat(x, trace_options().strips, axis=0)


def by_image(x: Shaped[Array, "_strips ..."]) -> Shaped[Array, "batch _of_each ..."]:
    """Reshape strips [batch · strips, …] to [batch, strips of an image, …]."""
    return x.reshape(-1, trace_options().strips, *x.shape[1:])


def with_neighbours(
    x: Shaped[Array, "_strips height _columns channels"], left: int, right: int
) -> Shaped[Array, "_strips height _more channels"]:
    """Extend strips by columns of the adjacent strips, and by zeros at the image's sides."""
    strips = by_image(x)
    width = strips.shape[-2]
    before = jnp.pad(strips[:, :-1, :, width - left :], ((0, 0), (1, 0), *_NONE))
    after = jnp.pad(strips[:, 1:, :, :right], ((0, 0), (0, 1), *_NONE))
    extended = jnp.concatenate([before, strips, after], axis=-2)
    return extended.reshape(-1, *extended.shape[2:])

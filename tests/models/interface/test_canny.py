"""Canny edges: thin, at sharp changes of colour; weak edges count only next to strong edges."""

from __future__ import annotations

import numpy as np

from models.interface.canny import HIGH, LOW, canny


def stripes(*levels: int, side: int = 12) -> np.ndarray:
    """Vertical stripes of equal width with these grey levels."""
    row = np.repeat(np.array(levels, np.uint8), side)
    return np.broadcast_to(row[None, :, None], (side, len(row), 3))


def test_a_flat_image_has_no_edges() -> None:
    assert not canny(stripes(90)).any()


def test_a_border_is_one_pixel_wide() -> None:
    edges = canny(stripes(0, 255))
    assert set(np.unique(edges)) == {0, 255} and edges.dtype == np.uint8
    assert ((edges[..., 0] == 255).sum(axis=1) == 1).all()
    lying = canny(stripes(0, 255).swapaxes(0, 1).copy())
    assert np.array_equal(lying.swapaxes(0, 1), edges)


def test_thresholds_are_of_sobels_sum_of_four_levels() -> None:
    """An intensity step of 1 has a gradient of 4."""
    assert not canny(stripes(0, HIGH // 4)).any()
    assert canny(stripes(0, HIGH // 4 + 1)).any()


def test_weak_edge_counts_next_to_a_strong_one() -> None:
    weak = LOW // 4 + 5
    image = stripes(0, weak).copy()
    assert not canny(image).any()
    image[:4] = stripes(0, 255)[:4]
    assert canny(image)[-1].any()


def test_any_colour_has_edges() -> None:
    blue = stripes(0, 255).copy()
    blue[..., :2] = 0
    assert np.array_equal(canny(blue), canny(stripes(0, 255)))


def test_a_diagonal_is_found() -> None:
    rows, columns = np.indices((16, 16))
    image = np.repeat(((rows > columns) * np.uint8(255))[..., None], 3, axis=-1)
    edges = canny(image)[2:-2, 2:-2, 0] == 255
    assert edges.any(axis=1).all()

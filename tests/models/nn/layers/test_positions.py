"""Positions of an image's tokens."""

from __future__ import annotations

from models.nn.layers.positions import grid_ids


def test_a_grid_is_counted_row_by_row() -> None:
    assert grid_ids(2, 3).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def test_all_tokens_have_the_same_numbers_around_row_and_column() -> None:
    assert grid_ids(1, 2, before=(7,), after=(8, 9)).tolist() == [[7, 0, 0, 8, 9], [7, 0, 1, 8, 9]]


def test_grid_begins_at_the_first_position() -> None:
    assert grid_ids(2, 1, first=(-1, -4)).tolist() == [[-1, -4], [0, -4]]

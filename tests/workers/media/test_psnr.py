from __future__ import annotations

import numpy as np
import pytest

from workers.media.psnr import MAX_DB, psnr_db


@pytest.mark.parametrize("shape", [(8, 6, 3), (5, 8, 6, 3)], ids=["image", "video"])
def test_the_error_is_the_mean_of_all_pixels(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    first, second = (random.integers(0, 256, shape, np.uint8) for _ in range(2))
    error = np.mean((first.astype(float) - second) ** 2)
    assert psnr_db(first, second) == pytest.approx(10 * np.log10(255**2 / error))
    assert psnr_db(first, first) == MAX_DB
    with pytest.raises(ValueError, match="shorter"):
        psnr_db(first, second[1:])

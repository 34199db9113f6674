"""Checks of video files in child processes: bounded in memory and time, and no child is lost."""

from __future__ import annotations

import pytest

from models.media.image_files import ImageFile, ImageFileError
from models.media.video_files import VideoBounds
from service.http.image_checks import ImageChecks
from tests.hostile_images import HOSTILE_VIDEOS, bomb, video
from tests.service.http.test_image_checks import GOOD, checks, settings

__all__ = ["checks"]

BOUNDS = VideoBounds(max_frames=81, max_pixels=81 * 832 * 480)


async def test_a_video_is_counted(checks: ImageChecks) -> None:
    result = await checks.check_video(video(81), BOUNDS, "acme")
    assert result == ImageFile("video/mp4", 32, 32, 81)
    assert await checks.check(GOOD, "acme") == ImageFile("image/png", 32, 32)


async def test_memory_is_enough_for_the_largest_frames(checks: ImageChecks) -> None:
    """Frames of two million pixels: a worker's default limits allow twenty times as many."""
    bounds = VideoBounds(17, 17 * 1920 * 1040)
    for codec, container in (("libx264", "mp4"), ("libvpx-vp9", "webm")):
        large = video(17, (1920, 1040), codec, container)
        assert (await checks.check_video(large, bounds, "acme")).frames == 17


HOSTILE = {
    **HOSTILE_VIDEOS,
    "long": lambda: video(82),
    "large": lambda: video(1, (2048, 1024)),
    "PNG bomb": lambda: bomb(60_000),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_video_does_not_break_later_checks(checks: ImageChecks, name: str) -> None:
    with pytest.raises(ImageFileError) as refused:
        await checks.check_video(HOSTILE[name](), BOUNDS, "acme")
    assert "breaks the decoder" not in str(refused.value)
    assert await checks.check(GOOD, "acme") == ImageFile("image/png", 32, 32)


async def test_slow_video_is_aborted() -> None:
    checks = ImageChecks(settings(video_cpu_s=0.2), has_tenants=True)
    bounds = VideoBounds(2000, 2000 * 1920 * 1040)
    long = video(200, (1920, 1040), preset="ultrafast")
    with pytest.raises(ImageFileError, match=r"more than 0\.2 s to decode; send it shorter"):
        await checks.check_video(long, bounds, "acme")
    assert await checks.check(GOOD, "acme") == ImageFile("image/png", 32, 32)
    await checks.close()

"""Checks of image files in child processes: bounded, fair between tenants, canceled with their
clients."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models.media.image_files import FORMATS, MAX_SCANS, ImageFile, ImageFileError
from service.http import image_checks
from service.http.image_checks import ImageChecks
from service.http.masked_images import InpaintSettings
from service.settings.limits import LimitSettings
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from tests.hostile_images import (
    TEXT_BOMBS,
    animation,
    bomb,
    jpeg_of_scans,
    png_chunk,
    text_bomb,
    within,
)
from tests.service.eventually import eventually
from tests.service.image_children import children
from tests.service.standin import picture

GOOD = picture()
MAX_PIXELS = 2_000_000
ODD = 1.0
"""Limit of processor seconds that no test's file reaches."""


def settings(**limits: float) -> Settings:
    bounds = {"max_image_pixels": MAX_PIXELS, "image_cpu_s": ODD} | limits
    return Settings(limits=LimitSettings.model_validate(bounds), server=ServerSettings())


@pytest.fixture
async def checks() -> AsyncIterator[ImageChecks]:
    checks = ImageChecks(settings(), has_tenants=True)
    yield checks
    await checks.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux refuses system calls")
async def test_a_child_is_refused_system_calls_and_inherits_no_sockets(
    checks: ImageChecks,
) -> None:
    await checks.check(picture(), "acme")
    (child,) = children()
    assert "NoNewPrivs:\t1" in status_of(child) and "Seccomp:\t2" in status_of(child)
    assert descriptors_of(child) == {"0", "1", "2"}


def status_of(process: int) -> str:
    return Path(f"/proc/{process}/status").read_text()


def descriptors_of(process: int) -> set[str]:
    return {path.name for path in Path(f"/proc/{process}/fd").iterdir()}


async def test_a_child_serves_one_file_after_the_other(checks: ImageChecks) -> None:
    assert await checks.check(GOOD, "acme") == ImageFile("image/png", 32, 32)
    first = children()
    with pytest.raises(ImageFileError, match="is not a PNG"):
        await checks.check(b"GIF89a" + bytes(100), "acme")
    assert await checks.check(picture("JPEG"), "zoo") == ImageFile("image/jpeg", 32, 32)
    assert len(first) == 1 and children() == first


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
async def test_memory_suffices_for_the_largest_image(
    checks: ImageChecks, file_format: str, mode: str
) -> None:
    """Noise, and the longest row that a JPEG can have."""
    noise = np.random.default_rng(0).integers(0, 256, (1400, 1400, len(mode)), np.uint8)
    image = Image.fromarray(noise).convert("RGB" if file_format == "JPEG" else mode)
    file = io.BytesIO()
    image.save(file, file_format, progressive=True, method=0)
    assert (await checks.check(file.getvalue(), "acme")).width == 1400
    if file_format != "WEBP":
        file = io.BytesIO()
        Image.new("RGB", (65_500, 1)).save(file, file_format)
        assert (await checks.check(file.getvalue(), "acme")).width == 65_500


async def test_memory_is_enough_to_redraw_the_largest_image(checks: ImageChecks) -> None:
    """Noise with an alpha channel: the whole image is prepared, filled and pasted back."""
    noise = np.random.default_rng(0).integers(0, 256, (1400, 1400, 4), np.uint8)
    image, mask = io.BytesIO(), io.BytesIO()
    Image.fromarray(noise).save(image, "PNG")
    levels = Image.new("L", (1400, 1400))
    levels.paste(255, (300, 300, 1100, 1100))
    levels.convert("RGB").save(mask, "PNG")
    options = InpaintSettings((1024, 1024), blur_px=(4, 4), fills=True, padding_px=1400)
    files = await checks.prepare_inpainting(image.getvalue(), mask.getvalue(), options, "acme")
    assert files.box == (0, 0, 1400, 1400)
    result = await checks.paste(image.getvalue(), files, picture(), "acme")
    assert Image.open(io.BytesIO(result)).size == (1400, 1400)


async def test_hostile_mask_does_not_break_later_checks(checks: ImageChecks) -> None:
    options = InpaintSettings((64, 64), padding_px=0)
    for image, mask in ((GOOD, bomb(60_000)), (bomb(60_000), GOOD)):
        with pytest.raises(ImageFileError):
            await checks.prepare_inpainting(image, mask, options, "acme")
    assert await checks.check(GOOD, "acme") == ImageFile("image/png", 32, 32)


def with_text_bomb(kind: str) -> bytes:
    return within(GOOD, text_bomb(kind))


HOSTILE: Mapping[str, Callable[[], bytes]] = {
    "scans": lambda: jpeg_of_scans(MAX_SCANS + 1, (1400, 1400)),
    "many scans": lambda: jpeg_of_scans(10_000, (1400, 1400)),
    "PNG bomb": lambda: bomb(60_000),
    "cut": lambda: picture("PNG", (64, 64))[:-40],
    "cut JPEG": lambda: picture("JPEG", (64, 64))[:300],
    "frames": lambda: animation("WEBP", 2000),
    "APNG": lambda: animation("PNG", 2000),
    "GIF": lambda: animation("GIF", 2000),
    "deep EXIF": lambda: within(GOOD, png_chunk(b"eXIf", b"II*\0\x08\0\0\0" + b"\xff" * 500_000)),
    "chunks": lambda: within(GOOD, *[png_chunk(b"tEXt", b"a\0" + b"b" * 1000)] * 1000),
    **{kind: partial(with_text_bomb, kind) for kind in TEXT_BOMBS},
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_file_does_not_break_later_checks(checks: ImageChecks, name: str) -> None:
    """Some of these files are images that decode cheaply; those are accepted."""
    try:
        assert (await checks.check(HOSTILE[name](), "acme")).width == 32
    except ImageFileError as error:
        assert str(error)
    assert await checks.check(GOOD, "acme") == ImageFile("image/png", 32, 32)


async def test_slow_file_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is processor time; the wall-clock limit also allows for starting the next
    process."""
    monkeypatch.setattr(image_checks, "WALL_TIMES", 600)
    checks = ImageChecks(settings(image_cpu_s=0.1, max_image_pixels=3e7), has_tenants=True)
    with pytest.raises(ImageFileError, match=r"more than 0\.1 s"):
        await checks.check(jpeg_of_scans(MAX_SCANS, (5000, 5000)), "acme")
    assert await checks.check(GOOD, "acme") == ImageFile("image/png", 32, 32)
    await checks.close()


async def stopped_child(checks: ImageChecks) -> int:
    """Stop a child process by SIGSTOP; return its id."""
    await checks.check(GOOD, "acme")
    (pid,) = children()
    os.kill(pid, signal.SIGSTOP)
    return pid


async def test_hanging_files_of_a_tenant_delay_no_other_tenant(checks: ImageChecks) -> None:
    """One of ten files hangs and the others wait, while another tenant's files are checked."""
    await stopped_child(checks)
    hanging = [asyncio.create_task(checks.check(GOOD, "acme")) for _ in range(10)]
    await asyncio.sleep(0)  # each requests a slot
    for _ in range(3):
        assert await checks.check(GOOD, "zoo") == ImageFile("image/png", 32, 32)
    assert not any(task.done() for task in hanging)
    assert len(children()) == 2
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


async def test_disconnected_client_ends_its_check_process(checks: ImageChecks) -> None:
    pid = await stopped_child(checks)
    check = asyncio.create_task(checks.check(GOOD, "acme"))
    await asyncio.sleep(0)
    check.cancel()
    with pytest.raises(asyncio.CancelledError):
        await check
    assert pid not in children()
    assert await checks.check(GOOD, "acme") == ImageFile("image/png", 32, 32)


async def test_busy_children_exit_with_the_front_end(checks: ImageChecks) -> None:
    await stopped_child(checks)
    pending = [asyncio.create_task(checks.check(GOOD, tenant)) for tenant in ("acme", "zoo")]
    await asyncio.sleep(0)  # one uses the child, the other starts its own
    await checks.close()
    await asyncio.gather(*pending, return_exceptions=True)
    assert not children()


async def test_a_child_that_was_killed_is_replaced(checks: ImageChecks) -> None:
    pid = await stopped_child(checks)
    os.kill(pid, signal.SIGKILL)

    async def is_served() -> bool:
        try:
            return (await checks.check(GOOD, "acme")).width == 32
        except ImageFileError:  # the child's exit was not noticed yet
            return False

    await eventually(is_served)
    assert pid not in children()


async def test_modules_in_the_working_directory_are_not_imported(
    checks: ImageChecks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "PIL", "models", "signal", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("open('was-run', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert await checks.check(GOOD, "acme") == ImageFile("image/png", 32, 32)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    ("act", "error"),
    [("bytearray(400_000_000)", "MemoryError"), ("open('f', 'wb', 0).write(b'x')", "OSError")],
)
def test_child_is_confined(act: str, error: str, tmp_path: Path) -> None:
    code = f"from service.confined.confinement import bound_memory; bound_memory(1000)\n{act}"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert ended.returncode and error in ended.stderr


async def test_a_mask_is_white_where_a_file_is_transparent(checks: ImageChecks) -> None:
    alpha = np.random.default_rng(0).integers(0, 256, (900, 900), np.uint8)
    image = Image.new("RGB", (900, 900), "red")
    image.putalpha(Image.fromarray(alpha))
    file = io.BytesIO()
    image.save(file, "PNG")
    mask = Image.open(io.BytesIO(base64.b64decode(await checks.mask(file.getvalue(), "acme"))))
    assert np.array_equal(np.asarray(mask), 255 - alpha)


@pytest.mark.parametrize(("data", "said"), [(GOOD, "no alpha channel"), (GOOD[:60], "broken")])
async def test_failed_mask_extraction_states_the_reason(
    checks: ImageChecks, data: bytes, said: str
) -> None:
    with pytest.raises(ImageFileError, match=said):
        await checks.mask(data, "acme")

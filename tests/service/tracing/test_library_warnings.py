"""Warnings of libraries: each line of code is logged once, and all warnings are counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from service.http.image_checks import ImageChecks
from service.settings.settings import Settings
from service.tracing.library_warnings import library_warnings
from tests.hostile_images import broken_tags

TAGS = 1500
PROGRAM = """
import sys
from PIL import TiffImagePlugin
from models.media.image_files import decode
from service.tracing.library_warnings import library_warnings
from service.tracing.log_format import log_to_stderr
log_to_stderr("info", "json")
data = sys.stdin.buffer.read()
for _ in range(2):
    assert decode(data).size == (8, 8)
texts = [key for key in getattr(TiffImagePlugin, "__warningregistry__", ()) if key != "version"]
print(library_warnings._value.get(), len(texts))
"""


def test_a_file_with_many_warnings_adds_one_line_to_the_log() -> None:
    """As in a worker, which decodes in its own process; no text stays in memory."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=broken_tags(TAGS), capture_output=True, check=True
    )
    assert done.stdout.split() == [b"%d.0" % (2 * TAGS), b"0"]
    (line,) = done.stderr.splitlines()
    assert b"Skipping tag" in line


async def test_warnings_of_a_check_process_are_counted(tmp_path: Path) -> None:
    checks = ImageChecks(Settings(state_dir=tmp_path), has_tenants=False)
    before = library_warnings._value.get()
    try:
        assert (await checks.check(broken_tags(TAGS), "acme")).width == 8
        assert library_warnings._value.get() - before >= TAGS
        after = library_warnings._value.get()
        await checks.check(broken_tags(0), "acme")
        assert library_warnings._value.get() == after
    finally:
        await checks.close()

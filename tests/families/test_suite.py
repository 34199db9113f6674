"""Presence of every served family in the suite, and equal structure of the families' folders."""

from __future__ import annotations

import pytest

from models import published
from tests.families.suite import EVERY, SUITE, families
from tests.test_arrows import ROOT

FILES = (
    *("README.md", "config.py", "network.py", "pipeline.py", "request.py", "spec.py"),
    *("family.py", "load.py", "key_mapping.py"),
)
"""Files in every family's folder.

`latents.py` exists only where latents or positions are special, and `published.py` only where
`family.py` would be long with the configs of published checkpoints.
"""
SECTIONS = ("## The network", "## The checkpoint", "## Implementation notes", "## Verification")


def test_served_families_are_in_the_suite() -> None:
    assert families() == SUITE.keys()
    assert {name for entry in EVERY.values() for name in entry.published} == {
        *published.CHECKPOINTS
    }


@pytest.mark.parametrize("name", sorted(families()))
def test_a_familys_folder_is_like_the_others(name: str) -> None:
    folder = ROOT / "models" / name
    assert {*FILES} <= {path.name for path in folder.iterdir()}
    page = (folder / "README.md").read_text("utf-8")
    assert [line for line in page.splitlines() if line.startswith("## ")] == [*SECTIONS]


LINES = {
    **{"chroma": 560, "flux2": 785, "krea2": 700, "qwenimage": 980, "qwenimage/edit": 360},
    **{"qwenimage21": 730, "qwenimage21/edit": 280, "zimage": 1240},
}
"""Maximum lines of Python of families that are made of shared parts, with their suite entries.

FLUX.2 has two text encoders (klein's Qwen3, dev's Mistral) and two kinds of guidance.
Qwen-Image and Z-Image have ControlNets, also in files without a config; those of Z-Image share no
network code. Token buckets need about 30 lines of a family.
"""


def lines_of(folder: str) -> int:
    """Return the lines of Python in a family's folder and in the module of its suite entries."""
    files = [*(ROOT / "models" / folder).glob("*.py")]
    suite = ROOT / "tests" / "families" / "suite" / f"{folder}.py"
    return sum(
        len(file.read_text("utf-8").splitlines()) for file in [*files, suite] if file.exists()
    )


@pytest.mark.parametrize("name", LINES)
def test_family_with_shared_parts_has_a_line_limit(name: str) -> None:
    """Code that others share belongs in a common package.

    A family that must grow needs a higher bound.
    """
    assert lines_of(name) <= LINES[name]


def test_no_folder_of_such_a_family_is_without_a_bound() -> None:
    models = ROOT / "models"
    families = {name.partition("/")[0] for name in LINES}
    files = (file for family in families for file in (models / family).rglob("*.py"))
    assert {file.parent.relative_to(models).as_posix() for file in files} == LINES.keys()

"""`make gpu`: time limits, results that survive a stopped stage, resumption, and what travels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from lab.bench.gpu import pack, pixels
from lab.bench.gpu.__main__ import before, chosen_stages, main, parsed
from lab.bench.gpu.run import Budget, next_stage, run, run_all
from lab.bench.gpu.stages import LONGEST_S, TINY, Stage, fits_here, install_wheels, stages
from lab.bench.gpu.table import line
from lab.bench.gpu.wheels import NEEDED, PYTHON, THERE, chosen
from tools import packages
from tools.packages import entries

FOREVER = Budget(time.monotonic() + 10_000)
ENTRY_POINTS = (
    "lab.bench.gpu.pixels", "lab.bench.against.__main__", "lab.bench.against.diffusers_turn",
    "deploy.cli.bench_engine", "deploy.bench.engine.table", "deploy.bench.engine.table", "atelier",
)  # fmt: skip


@dataclass(frozen=True)
class Script(Stage):
    """A stage made of lines of Python, which get the result's path as `out`."""

    def command(self, folder: Path) -> list[str]:
        lines = ["from pathlib import Path", f"out = Path({str(self.file(folder))!r})", *self.words]
        return [sys.executable, "-c", "\n".join(lines)]


def script(*lines: str, limit_s: float = 60, min_s: float = 0) -> Script:
    return Script("some", lines, limit_s, min_s)


def test_a_result_outlives_the_stage_that_is_stopped_and_its_children_do_not(
    tmp_path: Path,
) -> None:
    stage = script(
        "import subprocess, sys, time",
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
        "(out.parent / 'child').write_text(str(child.pid))",
        "out.write_text('{\"half\": 1}')",
        "time.sleep(600)",
        limit_s=3,
    )
    outcome = run(stage, tmp_path, FOREVER, os.environ)
    assert (outcome["state"], outcome["result"]) == ("stopped", {"half": 1})
    child = int((tmp_path / "child").read_text())
    assert is_gone(child), "the next stage needs the card"


def is_gone(pid: int) -> bool:
    """Wait some seconds for a process to end; a zombie counts as ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        os.sched_yield()
    return False


def test_failed_stage_reports_its_output_and_others_continue(tmp_path: Path) -> None:
    failing = script("raise SystemExit('no room on this card')")
    working = script("out.write_text('{}')")
    states: list[str] = []
    outcomes = run_all(
        [failing, working],
        tmp_path,
        FOREVER,
        os.environ,
        {},
        lambda outcome: states.append(outcome["state"]),
    )
    assert states == [outcome["state"] for outcome in outcomes] == ["failed", "done"]
    assert "no room on this card" in outcomes[0]["why"] and outcomes[0]["result"] is None


def test_what_is_left_of_the_budget_bounds_a_stage(tmp_path: Path) -> None:
    """A stage that needs more time than the budget is skipped; the budget's end stops a stage
    before its limit."""
    short = Budget(time.monotonic() + 2)
    outcome = run(script("out.write_text('{}')", min_s=60), tmp_path, short, os.environ)
    assert outcome["state"] == "left out" and "wants 60" in outcome["why"]
    outcome = run(script("import time", "time.sleep(600)"), tmp_path, short, os.environ)
    assert outcome["state"] == "cut"


@pytest.mark.parametrize(
    ("state", "again"),
    [("done", False), ("failed", False), ("stopped", False), ("cut", True), ("left out", True)],
)
def test_a_piece_continues_where_the_last_one_ended(
    state: str, again: bool, tmp_path: Path
) -> None:
    count = script("(out.parent / 'ran').touch()")
    earlier = {"stage": "some", "state": state, "why": "", "seconds": 1.0, "result": None}
    outcomes = run_all([count], tmp_path, FOREVER, os.environ, {"some": earlier}, lambda item: None)
    assert (tmp_path / "ran").exists() is again
    short = Budget(time.monotonic() - 1)
    both = run_all([count, script()], tmp_path, short, os.environ, {}, lambda item: None)
    assert [item["state"] for item in both] == ["left out"], "a piece ends there"
    assert next_stage([earlier]) == ("some" if again else None)
    assert next_stage(outcomes) is None


def test_from_begins_at_a_stage_and_refuses_unknown_ones() -> None:
    names = [stage.name for stage in chosen_stages(parsed([]), "H200")]
    later = [stage.name for stage in chosen_stages(parsed(["--from", "engine-sdxl"]), "H200")]
    assert later == names[names.index("engine-sdxl") :] != names
    with pytest.raises(SystemExit, match="no such stage, but pixels-flux-bfloat16, engine-flux"):
        chosen_stages(parsed(["--from", "engine"]), "H200")


@pytest.mark.parametrize(
    ("then", "now", "counts"),
    [("H200, 1 GiB, 35 C", "H200, 1 GiB, 60 C", True), ("H200, 1 GiB", None, False),
     ("H200, 1", "H100, 1", False), (None, None, True)],
)  # fmt: skip
def test_results_of_another_card_do_not_count(
    then: str | None, now: str | None, counts: bool, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"machine": {"gpu": then}, "stages": [{"stage": "a"}]}))
    assert (before(file, now) == {"a": {"stage": "a"}}) is counts


def test_stages_are_in_order_of_worth_and_fit_a_piece(tmp_path: Path) -> None:
    every = stages(tmp_path)
    names = [stage.name for stage in every]
    assert names[:5] == [
        "pixels-flux-bfloat16", "engine-flux-dev", "diffusers-flux-dev", "engine-sdxl",
        "diffusers-sdxl",
    ]  # fmt: skip
    assert len(set(names)) == len(names)
    assert all(stage.min_s < stage.limit_s <= LONGEST_S < 9 * 60 for stage in every)
    for place, stage in enumerate(every):
        assert not stage.reads or stage.reads in names[:place]
    assert [stage.name for stage in stages(tmp_path, TINY)] == names


def test_a_comparison_reuses_the_engines_result(tmp_path: Path) -> None:
    [stage] = [item for item in stages(tmp_path) if item.name == "diffusers-sdxl"]
    command = stage.command(tmp_path)
    assert command[command.index("--ours") + 1] == str(tmp_path / "engine-sdxl.json")
    assert "--ours" not in stages(tmp_path)[0].command(tmp_path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [({}, None), ({"psnr_db": [pixels.BFLOAT16_PSNR_DB - 1]}, "not diffusers' image"),
     ({"calls": {}}, "no attention is cuDNN's"), ({"together": ["b"]}, "beside others"),
     ({"calls": {}, "platform": "cpu"}, None)],
)  # fmt: skip
def test_a_bfloat16_image_is_bounded_and_attention_is_cudnns(
    change: dict[str, Any], fault: str | None
) -> None:
    result = {
        "dtype": "bfloat16", "platform": "gpu", "psnr_db": [99.0], "levels": [1], "alone": ["a"],
        "together": ["a"], "calls": {"__cudnn$fmhaSoftmax": 57},
    }  # fmt: skip
    faults = pixels.faults({**result, **change})
    assert [fault in text for text in faults] == [True] if fault else not faults


LOCK = """
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa
    # for cpu
obstore==0.7.3 \\
    --hash=sha256:bb \\
    --hash=sha256:cc
    # for core
redis==14.0.0 ; python_full_version >= '3.12' \\
    --hash=sha256:dd
    # for core
redis==13.0.0 ; python_full_version < '3.12' \\
    --hash=sha256:ee
    # for core
uvloop==0.22.1 ; sys_platform == 'win32' \\
    --hash=sha256:ff
    # for core
"""


def test_wheels_are_the_locks_for_that_python() -> None:
    """Packages of the machine, and of other systems, are excluded."""
    assert [(entry.pin, entry.hashes) for entry in chosen(entries(LOCK), "3.12")] == [
        ("obstore==0.7.3", ("sha256:bb", "sha256:cc")),
        ("redis==14.0.0", ("sha256:dd",)),
    ]


def test_the_lock_has_every_package_that_is_carried() -> None:
    """Only packages that others need on another Python may be missing."""
    names = {
        entry.pin.partition("==")[0] for entry in chosen(entries(packages.LOCK.read_text()), PYTHON)
    }
    assert names >= {"diffusers", "obstore", "pydantic-core", "redis"}
    assert {name for name in NEEDED if name not in names} <= {
        "importlib-metadata",
        "sniffio",
        "zipp",
    }
    assert not set(NEEDED) & set(THERE)


def test_what_travels_leaves_room_for_the_wheels_and_is_bounded() -> None:
    """The wheels took 20 MiB in December 2026."""
    files = pack.sizes(pack.tracked())
    assert Path("models/demo/flux/transformer/diffusion_pytorch_model.safetensors") in files
    assert not any(path.parts[0] in ("docs", "tests") for path in files)
    pack.check(files, pack.LIMIT_BYTES - 24 * 2**20)
    with pytest.raises(pack.TooLarge, match=r"MiB would travel and 1 may.*sdxl/unet"):
        pack.check(files, 2**20)
    assert pack.table(files)[-1].endswith("all of it")


def test_missing_packages_are_unpacked_and_no_others(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", f"NAME = {name!r}")
    site = tmp_path / "site"
    assert install_wheels(tmp_path, site, installed=lambda name: name == "two") == ["one"]
    assert [path.name for path in site.iterdir()] == ["one.py"]


@pytest.mark.parametrize(
    ("tag", "fits"),
    [(f"cp3{sys.version_info.minor}-cp3{sys.version_info.minor}", True), ("py3-none", True),
     ("cp399-cp399", False), ("cp39-abi3", True)],
)  # fmt: skip
def test_wheels_for_another_python_are_reported(tag: str, fits: bool, tmp_path: Path) -> None:
    (tmp_path / f"some-1.0-{tag}-manylinux_2_28_x86_64.whl").touch()
    assert fits_here(tmp_path) is fits


def test_the_stages_import_nothing_that_is_neither_there_nor_carried(tmp_path: Path) -> None:
    """Imports in a process that hides all other packages, from a folder with only what travels.
    After a failure, add the package to NEEDED, or to THERE if the machine has it; or take a path
    out of EXCLUDED."""
    for path in pack.tracked():
        if path.suffix != ".safetensors":
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).symlink_to(path.resolve())
    available = {*NEEDED, *THERE, "atelier"}
    hidden = {
        name
        for name, owners in packages_distributions().items()
        if not available & {owner.lower().replace("_", "-") for owner in owners}
    }
    lines = [
        "import importlib, sys",
        f"sys.path[:] = [path for path in sys.path if path not in ('', {str(Path.cwd())!r})]",
        f"sys.path.insert(0, {str(tmp_path)!r})",
        "class Hiding:",
        "    def __init__(self, finder): self.finder = finder",
        "    def __getattr__(self, name): return getattr(self.finder, name)",
        "    def find_spec(self, name, *where):",
        f"        return None if name in {hidden!r} else self.finder.find_spec(name, *where)",
        "sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]",
        f"for name in {ENTRY_POINTS!r}: importlib.import_module(name)",
        f"assert sys.modules['models'].__file__.startswith({str(tmp_path)!r})",
    ]
    process = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=tmp_path
    )
    assert process.returncode == 0, process.stderr[-2000:]


def test_the_rehearsal_proves_a_demo_models_pixels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The complete command, except for speed, which takes minutes on a CPU."""
    words = ["--only", "pixels-flux-float32", "--out", str(tmp_path), "--wheels", str(tmp_path)]
    assert main(words) == 0
    results: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    (outcome,) = results["stages"]
    assert outcome["state"] == "done" and outcome["result"]["faults"] == []
    assert outcome["result"]["alone"] == outcome["result"]["together"]
    assert "same bytes in company" in line(outcome)
    assert "rehearsal" in capsys.readouterr().out

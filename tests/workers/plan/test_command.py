"""Tests of `atelier plan`, from its arguments to its output."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import atelier
from workers.plan.trace import SECOND

ROOT = Path(atelier.__file__).parent
PROGRAM = {"name", "runs", "seconds", "compute_s", "exchange_s", "flops", "collectives"}
P720 = ["--width", "1280", "--height", "720", "--num-frames", "81"]
COLLECTIVE = {"kind", "count", "ici_bytes", "dcn_bytes", "seconds"}
COMPILER = {"compile_s", "argument_bytes", "output_bytes", "temporary_bytes", "code_bytes"}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run `atelier plan`, and return its exit code, standard output and standard error."""
    try:
        code = atelier.main(["plan", *map(str, arguments)])
    except SystemExit as ended:  # argparse
        code = int(ended.code or 0)
    return code, *capsys.readouterr()


def check_plan(plan: dict[str, Any]) -> None:
    """Check the fields and sums that clients may rely on."""
    assert plan["estimate"] is True and "not measurements" in plan["how"]
    assert plan["fits"] == (plan["spare_bytes"] >= 0)
    assert plan["spare_bytes"] == plan["limit_bytes"] - sum(plan["memory_bytes"].values())
    assert plan["mesh"].keys() == {"ici", "dcn", "ring"} and plan["versions"]["jax"]
    for program in plan["programs"]:
        assert program.keys() >= PROGRAM
        assert program["seconds"] == pytest.approx(program["compute_s"] + program["exchange_s"])
        assert all(collective.keys() == COLLECTIVE for collective in program["collectives"])
    by_name = {program["name"]: program for program in plan["programs"]}
    assert by_name.keys() > {"encode", "decode"}
    total = sum(program["runs"] * program["seconds"] for program in plan["programs"])
    assert plan["request_s"] == pytest.approx(total)  # with one slot
    assert plan["steps"] == sum(
        program["runs"]
        for name, program in by_name.items()
        if name.removeprefix(SECOND) not in ("encode", "decode")
        and not name.removeprefix(SECOND).startswith("conditions")
    )


def test_gpus_are_planned(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    code, out, _ = run(capsys, "--model", tiny, "--topology", "h100:4", "--json", "--search")
    assert code == 0
    search = json.loads(out)["search"]
    times = [candidate["request_s"] for candidate in search["latency"]]
    # Estimates within two per cent of each other tie: the simpler layout goes first.
    assert all(a <= 1.02 * b for a, b in itertools.pairwise(times))
    assert search["throughput"] and search["do_not_fit"] == []


def test_a_plan_as_text_and_as_json(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    arguments = ["--model", tiny, "--topology", "v6e:2x4", "--mesh", "context=4,tensor=-1"]
    arguments += ["--width", 64, "--height", 128, "--reckon"]
    _, out, _ = run(capsys, *arguments, "--json")
    plan = json.loads(out)
    check_plan(plan)
    assert plan["mesh"]["ici"]["tensor"] == 2 and plan["request"] == {"width": 64, "height": 128}
    assert plan["compiled"] is False
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    for text in ("estimate", "fits 31.24 GiB", "context 4 · tensor 2", "over ICI", "over DCN"):
        assert text in out


def test_a_second_pass_is_planned_too(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    arguments = ["--model", tiny, "--topology", "v6e:1x1", "--reckon", "--json"]
    small, large = ["--width", 64, "--height", 64], ["--width", 128, "--height", 128]
    once, twice, direct = (
        json.loads(run(capsys, *arguments, *item)[1])
        for item in (small, [*small, "--hires", "scale=2,strength=0.5"], large)
    )
    check_plan(twice)
    names = [item["name"] for item in twice["programs"]]
    assert names == [
        *names[: len(names) // 2],
        *(SECOND + item for item in names[: len(names) // 2]),
    ]
    assert twice["steps"] == once["steps"] * 3 // 2
    assert twice["memory_bytes"]["rows"] == direct["memory_bytes"]["rows"]
    assert twice["memory_bytes"]["temporaries"] >= direct["memory_bytes"]["temporaries"]
    assert twice["memory_bytes"]["rows"] > once["memory_bytes"]["rows"]
    assert twice["request_s"] > once["request_s"]
    text = run(capsys, *arguments[:-1], "--hires", "scale=2,upscaler=lanczos")[1]
    assert "; hires scale 2 upscaler lanczos) on v6e:1x1" in text


def test_programs_are_really_compiled_for_tpus(tiny: Path) -> None:
    """The command runs in its own process: libtpu reads its flags only once."""
    arguments = ["--model", tiny, "--topology", "v6e:2x4", "--mesh", "context=4,data=2"]
    arguments += ["--width", 64, "--height", 64, "--json", "--batch", 1]
    arguments += ["--encoders-on-host", "--activation-dtype", "float32", "--hires", "scale=2"]
    result = subprocess.run(
        [sys.executable, ROOT / "atelier.py", "plan", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("JAX")},
    )
    plan = json.loads(result.stdout)
    check_plan(plan)
    assert plan["fits"] and plan["compiled"] and plan["memory_bytes"]["code"] > 0
    assert all(program["compiler"].keys() >= COMPILER for program in plan["programs"])
    step, second = (entry for entry in plan["programs"] if entry["runs"] > 1)
    assert second["name"] == SECOND + step["name"]
    assert step["runs"] + second["runs"] == plan["steps"]
    assert plan["residency"] == {"on_host": ["clip", "t5"], "by_turns": []}
    kinds = {entry["kind"] for entry in step["collectives"]}
    assert "all-to-all" in kinds and step["compiler"]["cycles_s"] > 0
    assert "compiled" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "v9:2x4"], "topology 'v9:2x4' is not known; there are v4"),
        (["--mesh", "context=3"], "does not match v6e:2x4: ici context 3 makes 3 devices, but"),
        (["--mesh", "tensor=8"], "tensor 8 does not divide 4 attention heads"),
        (["--mesh", "planes=8"], "ici axis 'planes' does not exist: data, fsdp, cfg"),
        (["--mesh", "eight"], "must be AXIS=N"),
        (["--width", "101"], "width: must be a positive multiple of"),
        (["--width", "4096"], "width: must be 4 to"),
        (["--hires", "scale=9"], r"hires\.scale: must be at most 8"),
        (["--hires", "upscaler=photo"], r"hires\.upscaler: must be latent or lanczos"),
        (["--hires", "width=4096"], r"hires\.width: must be 4 to"),
        (["--num-frames", "5"], "num_frames: .* has no such field"),
        (["--model", "no-such-model"], "no-such-model: no such folder"),
    ],
)
def test_unsupported_plan_is_refused_with_its_reason(
    capsys: pytest.CaptureFixture[str], tiny: Path, arguments: list[str], message: str
) -> None:
    defaults = ["--model", tiny, "--topology", "v6e:2x4", "--mesh", "cfg=1,context=8", "--reckon"]
    code, _, err = run(capsys, *defaults, *arguments)
    assert code in (atelier.EXIT_USAGE, atelier.EXIT_CONFIG)
    assert re.search(message, err)


def test_missing_libtpu_names_the_package(
    capsys: pytest.CaptureFixture[str], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    code, _, err = run(capsys, "--model", tiny, "--topology", "v6e:2x4")
    assert code == atelier.EXIT_USAGE
    assert "pip install -e '.[plan]'" in err


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("flux-dev", [], "clip and t5 in host memory"),
        ("flux-dev", ["--no-encoders-on-host", "--mesh", "context=1"], "does not fit 31.24 GiB"),
        ("wan2.1-1.3b", ["--topology", "v5e:1x1", *P720], "t5 in host memory, decoded in tiles"),
    ],
)
def test_plan_offloads_like_a_pool(
    capsys: pytest.CaptureFixture[str], model: str, arguments: list[str], message: str
) -> None:
    options = ["--model", model, "--topology", "v6e:1x1", "--reckon", *arguments]
    code, out, _ = run(capsys, *options)
    assert message in out and ("too much" in out) == ("does not fit" in out)
    assert code == (atelier.EXIT_FAILED if "does not fit" in out else 0)

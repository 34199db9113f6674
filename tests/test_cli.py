"""The command line by itself: what it takes, what it refuses, what it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import atelier

HEAVY = ("jax", "fastapi", "httpx", "pydantic", "rich", "redis")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and what stood on standard error."""
    try:
        code = atelier.main(arguments)
    except SystemExit as ended:  # argparse
        code = int(ended.code or 0)
    return code, capsys.readouterr().err


def test_help_loads_nothing_that_a_command_needs() -> None:
    look = (
        "import sys, atelier\n"
        "try: atelier.main(['--help'])\n"
        f"finally: print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert all(command in done.stdout for command in ("up", "serve", "worker", "generate", "plan"))
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--model", "flux"], "NAME=SOURCE"),
        (["up", "--model", "=folder"], "NAME=SOURCE"),
        (["up", "--pools", "0"], "1 or more"),
        (["generate", "a star", "-o", "nowhere/at/all.png"], "nowhere"),
        (["generate", "a star", "-o", "star.tiff"], ".webp"),
        (["generate", "a star", "-o", "nowhere/frames"], "nowhere"),
        (["generate", "a star", "--mask", "nowhere.png"], "nowhere.png"),
        (["generate", "a star", "--num-frames", "many"], "--num-frames"),
        (["generate", "a star", "--scheduler", "unipc,shift"], "OPTION=VALUE"),
        (["generate", "a star", "--image", "nowhere.png"], "nowhere.png"),
        (["generate", "a star", "--seed", "red"], "--seed"),
        (["generate", "a star", "--key", "atl_1_\u00fc"], "ATELIER_API_KEY"),
        (["worker"], "--pool"),
    ],
)
def test_a_wrong_use_is_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, err = run(capsys, *arguments)
    assert code == atelier.EXIT_USAGE
    assert said in err


@pytest.mark.parametrize("command", ["up", "serve"])
def test_wrong_settings_are_told_by_name(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "atelier.toml"
    file.write_text('[limits]\nmax_steps = "many"\n[pools.a]\nmodell = "b"\n')
    monkeypatch.setenv("ATELIER_CONFIG", "")  # so that it is taken away again
    code, err = run(capsys, command, "--config", str(file))
    assert code == atelier.EXIT_CONFIG
    assert all(key in err for key in ("limits.max_steps", "pools.a.modell"))


def test_a_front_end_needs_a_redis(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, err = run(capsys, "serve", "--state", str(tmp_path))
    assert code == atelier.EXIT_CONFIG
    assert "redis.url" in err


def test_a_pool_that_is_not_in_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = run(capsys, "worker", "--pool", "absent", "--redis", "redis://127.0.0.1:1")
    assert code == atelier.EXIT_CONFIG
    assert "pools.absent" in err


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = run(capsys, "generate", "a star", "--server", "http://127.0.0.1:1")
    assert code == atelier.EXIT_UNREACHABLE
    assert "http://127.0.0.1:1" in err

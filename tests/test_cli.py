"""The command line itself: accepted and rejected arguments, and loaded modules."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import atelier
from deploy.cli.late_parser import LateParser

HEAVY = ("jax", "fastapi", "httpx", "pydantic", "rich", "redis")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return the exit code and the standard error."""
    try:
        code = atelier.main(arguments)
    except SystemExit as exit_:  # raised by argparse
        code = int(exit_.code or 0)
    return code, capsys.readouterr().err


OPTIONS = {
    "--config": Path("a.toml"),
    "--state": Path("a"),
    "--redis": "redis://b",
    "--log-level": "debug",
    "--reason": "why",
}


@pytest.mark.parametrize("act", [["list"], ["restore", "NAME"]], ids=["list", "restore"])
def test_backup_options_work_before_or_after_the_action(act: list[str]) -> None:
    for option, value in OPTIONS.items():
        dest, option_words = option[2:].replace("-", "_"), [option, str(value)]
        lines = [["backup", *option_words, *act]]
        if option != "--reason" or act != ["list"]:
            lines.append(["backup", *act, *option_words])
        for line in lines:
            args = atelier.parser().parse_args(line)
            assert getattr(args, dest) == value, line
        args = atelier.parser().parse_args(["backup", *act])
        assert not getattr(args, dest)


def ways(parser: argparse.ArgumentParser) -> Iterator[list[argparse.ArgumentParser]]:
    """Yield the path from a parser to each of its subparsers."""
    if isinstance(parser, LateParser):
        parser.complete()
    yield [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from ([parser, *way] for way in ways(inner))


def test_defaults_do_not_replace_options_before_a_subcommand() -> None:
    for *above, last in ways(atelier.parser()):
        options = {action.dest for parser in above for action in parser._actions}
        replaced = [
            action.dest
            for action in last._actions
            if action.option_strings
            and action.dest in options
            and action.default != argparse.SUPPRESS
        ]
        assert replaced == [], last.prog


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
        (["generate", "a star", "--deadline", "0"], "more than 0"),
        (["generate", "a star", "--metadata", "shop"], "NAME=TEXT"),
        (["jobs", "list", "--state", "done"], "--state"),
        (["jobs", "wait", "job_1", "-o", "star.tiff"], ".webp"),
        (["jobs"], "act"),
        (["generate", "a star", "--key", "atl_1_\u00fc"], "ATELIER_API_KEY"),
        (["worker"], "--pool"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, err = run(capsys, *arguments)
    assert code == atelier.EXIT_USAGE
    assert said in err


@pytest.mark.parametrize("command", ["up", "serve"])
def test_invalid_settings_are_named(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "atelier.toml"
    file.write_text('[limits]\nmax_steps = "many"\n[pools.a]\nmodell = "b"\n')
    monkeypatch.setenv("ATELIER_CONFIG", "")  # makes monkeypatch restore it
    code, err = run(capsys, command, "--config", str(file))
    assert code == atelier.EXIT_CONFIG
    assert all(key in err for key in ("limits.max_steps", "pools.a.modell"))


@pytest.mark.parametrize("place", ["file/state", "file"])
def test_a_state_folder_that_cannot_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    code, err = run(capsys, "up", "--state", str(tmp_path / place))
    assert code == atelier.EXIT_CONFIG
    assert "state_dir" in err and "--state" in err


def test_a_front_end_needs_a_redis(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, err = run(capsys, "serve", "--state", str(tmp_path))
    assert code == atelier.EXIT_CONFIG
    assert "redis.url" in err


def test_a_pool_that_is_not_in_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = run(capsys, "worker", "--pool", "absent", "--redis", "redis://127.0.0.1:1")
    assert code == atelier.EXIT_CONFIG
    assert "pools.absent" in err


def parsers(parser: argparse.ArgumentParser, name: str = "atelier") -> Iterator[tuple[str, Any]]:
    """Yield every option and argument of every command, with the command's name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, child in action.choices.items():
                yield from parsers(child, f"{name} {word}")
        else:
            yield name, action


def test_every_option_of_every_command_has_help() -> None:
    options = list(parsers(atelier.parser()))
    assert len({name for name, _ in options}) > 12
    undocumented = [f"{name} {action.option_strings or action.dest}" for name, action in options
              if not action.help]  # fmt: skip
    assert undocumented == []


def test_the_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        atelier.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"atelier {version('atelier')}\n"


@pytest.mark.parametrize(
    ("server", "code", "said"),
    [
        ("127.0.0.1:8000", atelier.EXIT_USAGE, "--server"),
        ("http://a:b", atelier.EXIT_USAGE, "--server"),
        ("ftp://127.0.0.1", atelier.EXIT_USAGE, "--server"),
        ("http://127.0.0.1:1", atelier.EXIT_UNREACHABLE, "no server answers"),
    ],
)
@pytest.mark.parametrize("command", [["generate", "a star"], ["jobs", "list"]], ids=" ".join)
def test_unreachable_server_is_reported_once(
    capsys: pytest.CaptureFixture[str], command: list[str], server: str, code: int, said: str
) -> None:
    exit_code, err = run(capsys, *command, "--server", server)
    assert exit_code == code
    assert said in err and len(err.splitlines()) == 1


def test_other_kind_of_server_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.handle_request, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        code, err = run(capsys, "jobs", "list", "--server", address)
    assert (code, err.strip()) == (
        atelier.EXIT_UNREACHABLE,
        f"atelier: the server at {address} is not Atelier",
    )


def test_cli_reports_an_unreachable_server(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = run(capsys, "generate", "a star", "--server", "http://127.0.0.1:1")
    assert code == atelier.EXIT_UNREACHABLE
    assert "http://127.0.0.1:1" in err

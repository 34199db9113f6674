"""`atelier tenants`: set, list, remove, export and import."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import atelier
from service.settings.tenants import TenantSettings

FIELDS = list(TenantSettings.model_fields)
FILE = """
[limits]
max_images = 4
[tenants.acme]
weight = 2.5
max_queued = 100
[tenants."x.y"]
metrics_class = "gold"
[tenants."*"]
max_queued = 3
"""


@pytest.fixture
def at(redis_url: str, empty_redis: object) -> tuple[str, ...]:
    return ("--redis", redis_url)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = atelier.main(["tenants", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def rows(capsys: pytest.CaptureFixture[str], at: tuple[str, ...]) -> list[list[str]]:
    code, table, _ = run(capsys, "list", *at)
    assert code == 0
    return [line.split() for line in table.splitlines()[1:]]


def test_tenant_lifecycle(capsys: pytest.CaptureFixture[str], at: tuple[str, ...]) -> None:
    assert rows(capsys, at) == []
    code, out, _ = run(capsys, "set", "acme", "weight=2", "max_queued=100", *at)
    assert code == 0 and "weight=2.0 max_queued=100" in out and "password" not in out
    assert run(capsys, "set", "acme", "max_queued=none", "metrics_class=gold", *at)[0] == 0
    assert rows(capsys, at) == [["acme", "redis", "weight=2.0", "metrics_class=gold"]]
    assert run(capsys, "set", "*", "max_queued=3", *at)[0] == 0
    assert [row[0] for row in rows(capsys, at)] == ["*", "acme"]
    assert run(capsys, "remove", "acme", *at)[0] == 0
    code, _, out = run(capsys, "remove", "acme", *at)
    assert code == atelier.EXIT_FAILED and "'acme'" in out
    assert [row[0] for row in rows(capsys, at)] == ["*"]


def test_a_change_begins_with_the_settings_file(
    capsys: pytest.CaptureFixture[str], at: tuple[str, ...], tmp_path: Path
) -> None:
    config = tmp_path / "mine.toml"
    config.write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATELIER_CONFIG", str(config))
        assert rows(capsys, at)[1] == ["acme", "settings", "weight=2.5", "max_queued=100"]
        assert run(capsys, "set", "acme", "max_queued=7", *at)[0] == 0
        assert rows(capsys, at)[1] == ["acme", "redis", "weight=2.5", "max_queued=7"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["acme", "max_queud=1"], ["acme.max_queud", *FIELDS]),
        (["acme", "nope=none"], ["acme.nope", *FIELDS]),
        (["acme", "max_queued=0"], ["acme.max_queued", "greater than 0"]),
        (["acme", "max_queued=many"], ["acme.max_queued", "integer"]),
        (["acme", "weight=inf"], ["acme.weight", "finite"]),
        (["a b", "weight=2"], ["'a b' is not a valid tenant name"]),
        (["acme", "weight"], ["KEY=VALUE"]),
    ],
)
def test_invalid_arguments_fail_without_changes(
    capsys: pytest.CaptureFixture[str], at: tuple[str, ...], arguments: list[str], said: list[str]
) -> None:
    try:
        code, _, err = run(capsys, "set", *arguments, *at)
    except SystemExit as exit_:
        code, err = int(str(exit_.code)), capsys.readouterr().err
    assert code == atelier.EXIT_USAGE and all(text in err for text in said), err
    assert rows(capsys, at) == []


def test_export_and_import(
    capsys: pytest.CaptureFixture[str],
    at: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full settings file can be imported, and an export can be imported again."""
    file = tmp_path / "old.toml"
    file.write_text(FILE)
    assert run(capsys, "set", "gone", "weight=9", *at)[0] == 0
    code, _, out = run(capsys, "import", str(file), *at)
    assert code == 0 and "3 tenants" in out
    assert [row[0] for row in rows(capsys, at)] == ["*", "acme", "gone", "x.y"]
    assert run(capsys, "import", str(file), "--replace", *at)[0] == 0
    before = rows(capsys, at)
    assert [row[0] for row in before] == ["*", "acme", "x.y"]
    exported = run(capsys, "export", *at)[1]
    for name in ("*", "acme", "x.y"):
        assert run(capsys, "remove", name, *at)[0] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(exported))
    assert run(capsys, "import", "-", *at)[0] == 0
    assert rows(capsys, at) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tenants", "not TOML"),
        ("a = 1", "no [tenants.NAME]"),
        ("[tenants]\nacme = 3", "acme"),
        ("[tenants.acme]\nweight = 1\n[tenants.b]\nweight = -1", "b.weight"),
        ('[tenants."a b"]\nweight = 1', "'a b'"),
    ],
)
def test_invalid_file_changes_nothing(
    capsys: pytest.CaptureFixture[str], at: tuple[str, ...], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    code, _, err = run(capsys, "import", str(file), *at)
    assert code == atelier.EXIT_USAGE and said in err
    assert rows(capsys, at) == []

"""`atelier aliases`: set, list, remove, export and import."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path

import pytest

import atelier
from service.jobs.aliases import AliasJobs, AliasRecords
from service.jobs.queue import Queue
from service.settings.queue import QueueSettings
from tests.service.versions import ALIAS, R1, R2, version


@pytest.fixture
def at(redis_url: str, empty_redis: object) -> tuple[str, ...]:
    return ("--redis", redis_url)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = atelier.main(["aliases", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def rows(capsys: pytest.CaptureFixture[str], at: tuple[str, ...]) -> list[list[str]]:
    code, table, _ = run(capsys, "list", *at)
    assert code == 0
    return [line.split(maxsplit=7) for line in table.splitlines()[1:]]


def in_redis(redis_url: str, act: object) -> None:
    async def go() -> None:
        queue = await Queue.connect(redis_url, QueueSettings())
        try:
            await act(queue)
        finally:
            await queue.close()

    asyncio.run(go())


def test_alias_lifecycle(
    capsys: pytest.CaptureFixture[str], at: tuple[str, ...], redis_url: str
) -> None:
    in_redis(redis_url, lambda queue: queue.register("pool", version(R1), ready=True))
    assert rows(capsys, at) == []
    code, out, _ = run(capsys, "set", ALIAS, "@r1=90", f"{R2}=10", *at)
    assert code == 0 and f"{R1}=90 {R2}=10" in out
    first, second = rows(capsys, at)
    assert first == [ALIAS, R1, "90", "1", "ready", "0", "0", "-"]
    assert second[:5] == [ALIAS, R2, "10", "not", "registered"]
    assert run(capsys, "set", ALIAS, "--baseline", "@r1", "--shadow", "@r3", *at)[0] == 0
    notes = [row[-1] for row in rows(capsys, at)]
    assert "baseline" in notes[0] and "shadow of 1.00%" in notes[2]
    assert [row[2] for row in rows(capsys, at)] == ["90", "10", "0"], "weights stay"
    assert run(capsys, "set", ALIAS, "--shadow", "none", "--min-jobs", "7", *at)[0] == 0
    assert len(rows(capsys, at)) == 2
    assert run(capsys, "remove", ALIAS, *at)[0] == 0
    code, _, out = run(capsys, "remove", ALIAS, *at)
    assert code == atelier.EXIT_FAILED and repr(ALIAS) in out


def test_stepped_back_version_shows_its_reason(
    capsys: pytest.CaptureFixture[str], at: tuple[str, ...], redis_url: str
) -> None:
    """The note stays through other changes until the version gets a weight again."""
    run(capsys, "set", ALIAS, "@r1=90", "@r2=10", "--baseline", "@r1", *at)

    def step_back(queue: Queue) -> object:
        records = AliasRecords(queue.redis)
        return records.change(lambda aliases: {ALIAS: aliases[ALIAS].without(R2, 7.0, "too slow")})

    in_redis(redis_url, step_back)
    note = "stepped back at 1970-01-01T00:00:07+00:00: too slow"
    assert note in rows(capsys, at)[1][-1]
    run(capsys, "set", ALIAS, "--min-jobs", "9", *at)
    run(capsys, "set", ALIAS, "@r1=80", "@r2=0", *at)
    assert note in rows(capsys, at)[1][-1]
    run(capsys, "set", ALIAS, "@r1=80", "@r2=5", *at)
    assert note not in rows(capsys, at)[1][-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([ALIAS], "versions with weights"),
        ([ALIAS, "@r1"], "VERSION=WEIGHT"),
        ([ALIAS, "@r1=0"], "above 0"),
        ([ALIAS, "@r1=-1"], "0 or more"),
        ([ALIAS, "@r1=much"], f"{ALIAS}.weights.{R1}"),
        ([ALIAS, "@r1=1", "--baseline", "@r2"], f"{R2!r} is not one of its versions"),
        ([ALIAS, "@r1=1", "--shadow-share", "2"], f"{ALIAS}.shadow_share"),
        ([ALIAS, "--min-jobs", "9"], "no alias 'flux-dev' yet"),
        (["a/b", "@r1=1"], "can't be an alias"),
    ],
)
def test_invalid_arguments_fail_without_changes(
    capsys: pytest.CaptureFixture[str], at: tuple[str, ...], arguments: list[str], said: str
) -> None:
    try:
        code, _, err = run(capsys, "set", *arguments, *at)
    except SystemExit as exit_:
        code, err = int(str(exit_.code)), capsys.readouterr().err
    assert code == atelier.EXIT_USAGE and said in err, err
    assert "Value error" not in err
    assert rows(capsys, at) == []


@pytest.mark.parametrize("options", [(f"{ALIAS}=1",), ("@r1=1", "--shadow", ALIAS)])
def test_alias_cannot_be_a_version_of_another(
    capsys: pytest.CaptureFixture[str], at: tuple[str, ...], options: tuple[str, ...]
) -> None:
    """Either order of creation is refused, unless a served model has the alias's name."""
    run(capsys, "set", ALIAS, "@r1=1", *at)
    for _ in range(2):
        code, _, err = run(capsys, "set", "best", *options, *at)
        assert code == atelier.EXIT_USAGE, err
        assert f"{ALIAS!r} is an alias" in err and f"its versions are {R1}" in err
        assert [row[0] for row in rows(capsys, at)] == [ALIAS]
    assert run(capsys, "set", ALIAS, "@r1=1", f"{ALIAS}=1", *at)[0] == 0
    assert run(capsys, "set", "best", *options, *at)[0] == 0
    code, _, err = run(capsys, "set", ALIAS, "@r1=1", *at)
    assert code == atelier.EXIT_USAGE and f"best: {ALIAS!r} is an alias" in err


def test_weights_change_at_a_time_by_rediss_clock(
    capsys: pytest.CaptureFixture[str],
    at: tuple[str, ...],
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Job times use Redis's clock, so the alias counts no job from before its change."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    assert run(capsys, "set", ALIAS, "@r1=1", *at)[0] == 0

    async def check(queue: Queue) -> None:
        alias = (await AliasRecords(queue.redis).all())[ALIAS]
        assert alias.since <= await AliasJobs(queue.redis).now()

    in_redis(redis_url, check)


def test_export_and_import(
    capsys: pytest.CaptureFixture[str],
    at: tuple[str, ...],
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Export and import keep whole records, including stepped-back versions; other aliases stay."""
    run(capsys, "set", ALIAS, "@r1=90", "@r2=10", "--baseline", "@r1", "--shadow", "@r3", *at)

    def step_back(queue: Queue) -> object:
        records = AliasRecords(queue.redis)
        return records.change(lambda aliases: {ALIAS: aliases[ALIAS].without(R2, 7.0, "too slow")})

    in_redis(redis_url, step_back)
    run(capsys, "set", "other", "@r1=1", *at)
    before = rows(capsys, at)
    exported = run(capsys, "export", *at)[1]
    assert len(exported.splitlines()) == 2
    assert run(capsys, "set", ALIAS, "@r9=1", "--baseline", "none", *at)[0] == 0
    run(capsys, "set", "third", "@r1=1", *at)
    third = rows(capsys, at)[-1]
    file = tmp_path / "aliases.jsonl"
    file.write_text(exported)
    code, _, out = run(capsys, "import", str(file), *at)
    assert code == 0 and "2 aliases" in out
    assert rows(capsys, at) == [*before, third]
    assert run(capsys, "remove", "other", *at)[0] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(exported))
    assert run(capsys, "import", "-", *at)[0] == 0
    assert rows(capsys, at) == [*before, third]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("no json", "line 2"),
        ("[]", "line 2"),
        ('{"weights": {"a": 1}}', "line 2"),
        ('{"name": "a", "weights": {"a": 0}}', "line 2"),
        ('{"name": "a/b", "weights": {"a": 1}}', "can't be an alias"),
        ('{"name": "good", "weights": {"b": 1}}', "line 2 is the second one of 'good'"),
        ('{"name": "b", "weights": {"good": 1}}', "'good' is an alias"),
    ],
)
def test_invalid_file_changes_nothing(
    capsys: pytest.CaptureFixture[str], at: tuple[str, ...], tmp_path: Path, wrong: str, said: str
) -> None:
    file = tmp_path / "wrong.jsonl"
    file.write_text('{"name": "good", "weights": {"a": 1}}\n' + wrong)
    code, _, err = run(capsys, "import", str(file), *at)
    assert code == atelier.EXIT_USAGE and said in err
    assert rows(capsys, at) == []

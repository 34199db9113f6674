"""`atelier keys`: create, list, revoke, export and import, with and without a running server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from redis.asyncio import Redis

import atelier
from deploy.local.embedded_redis import embedded
from service.auth.api_keys import ApiKey, ApiKeys
from service.jobs.redis import connection
from service.settings.redis import RedisSettings


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = atelier.main(["keys", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("is_running", [True, False])
def test_api_key_lifecycle(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, is_running: bool
) -> None:
    """Create, list and revoke a key, next to a running server or with an embedded Redis per
    command."""

    def life() -> None:
        code, text, err = run(capsys, "create", "--tenant", "acme", "--name", "shop", *at)
        key_id = text.split("_")[1]
        assert code == 0 and text.count("\n") == 1 and text.strip() not in err
        assert "acme" in err and str(tmp_path) in err, "of which tenant, and for which servers"
        code, table, _ = run(capsys, "list", *at)
        assert code == 0 and [key_id, "acme", "shop"] == [*table.split()[4:6], table.split()[-1]]
        assert text.strip() not in table and text.split("_", 2)[2].strip() not in table
        assert run(capsys, "revoke", key_id, *at)[0] == 0
        code, _, err = run(capsys, "revoke", key_id, *at)
        assert code == atelier.EXIT_FAILED and key_id in err
        assert len(run(capsys, "list", *at)[1].splitlines()) == 1

    at = ("--state", str(tmp_path))
    if is_running:
        with embedded(tmp_path):
            life()
    else:
        life()


def test_a_server_at_an_address(
    capsys: pytest.CaptureFixture[str], redis_url: str, empty_redis: object
) -> None:
    at = ("--redis", redis_url)
    assert run(capsys, "create", "--tenant", "acme", *at)[0] == 0
    assert "acme" in run(capsys, "list", *at)[1]


def test_invalid_tenant_is_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text, err = run(capsys, "create", "--tenant", "a b", "--state", str(tmp_path))
    assert (code, text) == (atelier.EXIT_USAGE, "") and "--tenant" in err


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "\udcff", "x" * 81])
def test_a_name_that_would_spoil_the_list(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(capsys, "create", "--tenant", "acme", "--name", name, "--state", str(tmp_path))
    assert ended.value.code == atelier.EXIT_USAGE and "--name" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_revoke_accepts_the_full_key_without_printing_it(
    capsys: pytest.CaptureFixture[str], redis_url: str, empty_redis: object
) -> None:
    """Revoking accepts the full text of a key, as found in a leak, and does not print its
    secret."""
    at = ("--redis", redis_url)
    text = run(capsys, "create", "--tenant", "acme", *at)[1].strip()
    secret = text.rpartition("_")[2]
    for expected in (0, atelier.EXIT_FAILED):
        code, _, err = run(capsys, "revoke", text, *at)
        assert code == expected and text.split("_")[1] in err and secret not in err


def test_keys_are_exported_and_imported(
    capsys: pytest.CaptureFixture[str], redis_url: str, empty_redis: Redis, tmp_path: Path
) -> None:
    """Exports hold no key texts; importing restores missing keys and leaves existing keys
    unchanged."""
    at = ("--redis", redis_url)
    texts = [run(capsys, "create", "--tenant", name, *at)[1].strip() for name in ("acme", "b")]
    exported = run(capsys, "export", *at)[1]
    assert not any(text.rpartition("_")[2] in exported for text in texts)
    file = tmp_path / "keys.jsonl"
    file.write_text(exported)
    table = run(capsys, "list", *at)[1]
    assert run(capsys, "revoke", texts[0], *at)[0] == 0
    code, _, err = run(capsys, "import", str(file), *at)
    assert code == 0 and "1 keys added, 1 existed already" in err
    assert run(capsys, "list", *at)[1] == table
    key = asyncio.run(_found(redis_url, texts[0]))
    assert key is not None and key.tenant == "acme"


@pytest.mark.parametrize("wrong", ["{}", "no json", '{"id": "a"}'])
def test_invalid_export_imports_nothing(
    capsys: pytest.CaptureFixture[str], redis_url: str, empty_redis: Redis, tmp_path: Path,
    wrong: str,
) -> None:  # fmt: skip
    at = ("--redis", redis_url)
    text = run(capsys, "create", "--tenant", "acme", *at)[1].strip()
    exported = run(capsys, "export", *at)[1]
    assert run(capsys, "revoke", text, *at)[0] == 0
    file = tmp_path / "keys.jsonl"
    file.write_text(exported + wrong)
    code, _, err = run(capsys, "import", str(file), *at)
    assert code == atelier.EXIT_USAGE and "line 2" in err
    assert len(run(capsys, "list", *at)[1].splitlines()) == 1


def test_import_rejects_a_key_with_an_existing_id(
    capsys: pytest.CaptureFixture[str], redis_url: str, empty_redis: Redis, tmp_path: Path
) -> None:
    at = ("--redis", redis_url)
    assert run(capsys, "create", "--tenant", "acme", *at)[0] == 0
    key = json.loads(run(capsys, "export", *at)[1])
    file = tmp_path / "keys.jsonl"
    changed = [key | {"digest": "0" * 64}, key | {"id": "new"}]
    file.write_text("\n".join(map(json.dumps, changed)))
    code, _, err = run(capsys, "import", str(file), *at)
    assert code == atelier.EXIT_USAGE and key["id"] in err
    assert len(run(capsys, "list", *at)[1].splitlines()) == 2, "none was added"


def test_import_rejects_a_duplicate_id(
    capsys: pytest.CaptureFixture[str], redis_url: str, empty_redis: Redis, tmp_path: Path
) -> None:
    """Two keys with one id are refused; the same line twice counts as one key."""
    at = ("--redis", redis_url)
    text = run(capsys, "create", "--tenant", "acme", *at)[1].strip()
    line = run(capsys, "export", *at)[1].strip()
    assert run(capsys, "revoke", text, *at)[0] == 0
    other, file = json.dumps(json.loads(line) | {"digest": "0" * 64}), tmp_path / "keys.jsonl"
    file.write_text(f"{line}\n{other}\n")
    code, _, err = run(capsys, "import", str(file), *at)
    assert code == atelier.EXIT_USAGE and text.split("_")[1] in err
    assert len(run(capsys, "list", *at)[1].splitlines()) == 1, "none was added"
    file.write_text(f"{line}\n{line}\n")
    code, _, err = run(capsys, "import", str(file), *at)
    assert code == 0 and "1 keys added, 0 existed already" in err


async def _found(redis_url: str, text: str) -> ApiKey | None:
    keys = ApiKeys(await connection.connect(RedisSettings(url=redis_url)))
    try:
        return await keys.find(text)
    finally:
        await keys.close()


def test_an_operators_key(
    capsys: pytest.CaptureFixture[str], redis_url: str, empty_redis: Redis
) -> None:
    """An operator's key has a person's name and no tenant; exports include it."""
    at = ("--redis", redis_url)
    code, _, err = run(capsys, "create", "--operator", *at)
    assert code == atelier.EXIT_USAGE and "--name" in err
    code, text, err = run(capsys, "create", "--operator", "--name", "alice", *at)
    assert code == 0 and "the operator alice" in err
    assert run(capsys, "list", *at)[1].splitlines()[1].split()[1] == "(operator)"
    key = asyncio.run(_found(redis_url, text.strip()))
    assert key is not None and (key.role, key.tenant) == ("operator", "")
    with pytest.raises(SystemExit):
        run(capsys, "create", "--operator", "--tenant", "acme", "--name", "x", *at)

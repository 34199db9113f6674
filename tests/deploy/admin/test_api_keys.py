"""`atelier keys` as its user has it, against a running server and without one."""

from __future__ import annotations

from pathlib import Path

import pytest

import atelier
from deploy.local.embedded_redis import embedded


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = atelier.main(["keys", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("is_running", [True, False])
def test_a_keys_life(capsys: pytest.CaptureFixture[str], tmp_path: Path, is_running: bool) -> None:
    """Beside a server on that folder, and each time with one of its own."""

    def life() -> None:
        code, text, said = run(capsys, "create", "--tenant", "acme", "--name", "shop", *at)
        key_id = text.split("_")[1]
        assert code == 0 and text.count("\n") == 1 and text.strip() not in said
        assert "acme" in said and str(tmp_path) in said, "of which tenant, and for which servers"
        code, table, _ = run(capsys, "list", *at)
        assert code == 0 and [key_id, "acme", "shop"] == [*table.split()[4:6], table.split()[-1]]
        assert text.strip() not in table and text.split("_", 2)[2].strip() not in table
        assert run(capsys, "revoke", key_id, *at)[0] == 0
        code, _, said = run(capsys, "revoke", key_id, *at)
        assert code == atelier.EXIT_FAILED and key_id in said
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


def test_a_wrong_tenant_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text, said = run(capsys, "create", "--tenant", "a b", "--state", str(tmp_path))
    assert (code, text) == (atelier.EXIT_USAGE, "") and "--tenant" in said


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "\udcff", "x" * 81])
def test_a_name_that_would_spoil_the_list(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(capsys, "create", "--tenant", "acme", "--name", name, "--state", str(tmp_path))
    assert ended.value.code == atelier.EXIT_USAGE and "--name" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_whole_key_can_be_revoked_and_is_not_told(
    capsys: pytest.CaptureFixture[str], redis_url: str, empty_redis: object
) -> None:
    """As whoever found it in the wrong place has it."""
    at = ("--redis", redis_url)
    text = run(capsys, "create", "--tenant", "acme", *at)[1].strip()
    secret = text.rpartition("_")[2]
    for expected in (0, atelier.EXIT_FAILED):
        code, _, said = run(capsys, "revoke", text, *at)
        assert code == expected and text.split("_")[1] in said and secret not in said

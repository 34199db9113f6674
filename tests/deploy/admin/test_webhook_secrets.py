"""`atelier webhooks`: create, list and revoke secrets."""

from __future__ import annotations

import pytest

import atelier


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = atelier.main(["webhooks", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_webhook_secret_lifecycle(
    capsys: pytest.CaptureFixture[str], redis_url: str, empty_redis: object
) -> None:
    at = ("--redis", redis_url)
    code, text, err = run(capsys, "create", "--tenant", "acme", *at)
    assert code == 0 and text.startswith("whsec_") and text.count("\n") == 1
    assert "acme" in err and text.strip() not in err
    assert run(capsys, "create", "--tenant", "acme", *at)[0] == 0
    code, table, _ = run(capsys, "list", *at)
    rows = [line.split() for line in table.splitlines()]
    assert code == 0 and [row[1] for row in rows] == ["TENANT", "acme", "acme"]
    assert "whsec_" not in table
    code, third, err = run(capsys, "create", "--tenant", "acme", *at)
    assert (code, third) == (atelier.EXIT_USAGE, "") and rows[1][0] in err
    assert run(capsys, "revoke", rows[1][0], *at)[0] == 0
    code, _, err = run(capsys, "revoke", rows[1][0], *at)
    assert code == atelier.EXIT_FAILED and rows[1][0] in err
    assert len(run(capsys, "list", *at)[1].splitlines()) == 2


def test_invalid_tenant_is_rejected(
    capsys: pytest.CaptureFixture[str], redis_url: str, empty_redis: object
) -> None:
    code, text, err = run(capsys, "create", "--tenant", "a b", "--redis", redis_url)
    assert (code, text) == (atelier.EXIT_USAGE, "") and "--tenant" in err

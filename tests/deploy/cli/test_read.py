"""`atelier read` of files in the formats that workers write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import atelier
from service.recipes.files import embed
from service.recipes.parameters import parameters_of
from tests.service.recipes.examples import FILES, bare, recipe


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A PNG with an embedded recipe."""
    file = tmp_path / "a.png"
    file.write_bytes(embed(bare("image/png"), "image/png", recipe()))
    return file


def test_recipe_and_parameters_are_printed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert atelier.main(["read", str(made)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# {made}\n## recipe\n{{\n") and '"seed": 6' in out
    assert f"\n## parameters\n{parameters_of(recipe())}\n" in out


def test_json_is_one_file_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for content_type, ending in FILES.items():
        paths.append(tmp_path / f"a.{ending}")
        paths[-1].write_bytes(embed(bare(content_type), content_type, recipe(prompt="a fox")))
    assert atelier.main(["read", "--json", *map(str, paths)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["file"] for line in lines] == [*map(str, paths)]
    for line in lines:
        assert line["recipe"]["request"] == recipe(prompt="a fox").request
        assert line["parameters"] == parameters_of(recipe(prompt="a fox"))


def test_read_reports_a_file_without_recipe_and_reads_the_others(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = tmp_path / "b.png"
    silent.write_bytes(bare("image/png"))
    assert atelier.main(["read", str(silent), str(made)]) == atelier.EXIT_FAILED
    out, err = capsys.readouterr()
    assert f"{silent}: it has no recipe: it was made without metadata" in err
    assert str(made) in out, "the others are read all the same"


def test_a_damaged_recipe(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.write_bytes(made.read_bytes().replace(b'{"fingerprint', b"-" * 13))
    assert atelier.main(["read", str(made)]) == atelier.EXIT_FAILED
    assert "recipe cannot be read" in capsys.readouterr().err


def test_read_reports_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert atelier.main(["read", str(tmp_path / "c.png")]) == atelier.EXIT_USAGE
    assert "can't read" in capsys.readouterr().err

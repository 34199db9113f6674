"""`atelier bench engine`: rejected options, and options passed to child processes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from atelier import EXIT_CONFIG, EXIT_USAGE, main
from deploy.cli import bench_engine
from models import published


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_engine.add_arguments(parser)
    return parser.parse_args(words)


def test_unknown_model_lists_known_models(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "engine", "--model", "flux-2"]) == EXIT_CONFIG
    err = capsys.readouterr().err
    assert all(name in err for name in published.CHECKPOINTS)


def test_unknown_model_fails_before_any_measurement(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "engine", "--tiny", "--model", "sdxl", "flux-2"]) == EXIT_CONFIG
    err = capsys.readouterr().err
    assert "flux-2" in err and "making weights" not in err


def test_process_without_a_result_is_reported(tmp_path: Path) -> None:
    """A process without a result is reported, and the results of the other models are kept."""
    result = bench_engine._in_own_process(parsed("--model", "a", "b"), "b", tmp_path / "b.json")
    assert result == {
        "model": "b",
        "tiny": False,
        "refused": f"its process ended with exit code {EXIT_CONFIG}",
    }


def test_a_report_that_cannot_be_written_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (tmp_path, tmp_path / "none" / "report.json"):
        words = ["bench", "engine", "--model", "flux-dev", "--json", str(file)]
        assert main(words) == EXIT_USAGE
        assert f"can't write {str(file)!r}: " in capsys.readouterr().err


@pytest.mark.parametrize("word", ["nan", "inf", "much"])
def test_invalid_number_is_named(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--model", "a", "--guidance", word)
    assert f"number, not {word!r}" in capsys.readouterr().err


def test_a_process_for_each_model_gets_the_same_options() -> None:
    words = (
        *("--width", "64", "--num-frames", "5", "--batch", "2", "--mesh", "cfg=2,context=4"),
        *("--devices", "0-7", "--dtype", "float32", "--repeats", "3", "--tiny", "--no-vae-tiling"),
        *("--exact-rows", "1", "--batching", "fast"),
    )
    first = parsed("--model", "a", "b", *words)
    again = parsed("--model", "a", "b", *bench_engine._others(first))
    assert again == first

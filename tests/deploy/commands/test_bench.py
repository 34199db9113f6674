"""`atelier bench engine`: what it refuses, and how it hands its options on."""

from __future__ import annotations

import argparse

import pytest

from atelier import EXIT_CONFIG, main
from deploy.commands import bench_engine
from models import known


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_engine.add_arguments(parser)
    return parser.parse_args(words)


def test_an_unknown_model_is_answered_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "engine", "--model", "flux-2"]) == EXIT_CONFIG
    told = capsys.readouterr().err
    assert all(name in told for name in known.CHECKPOINTS)


def test_a_process_for_each_model_gets_the_same_options() -> None:
    words = (
        *("--width", "64", "--num-frames", "5", "--batch", "2", "--mesh", "cfg=2,context=4"),
        *("--devices", "0-7", "--dtype", "float32", "--repeats", "3", "--tiny", "--no-vae-tiling"),
    )
    first = parsed("--model", "a", "b", *words)
    again = parsed("--model", "a", "b", *bench_engine._others(first))
    assert again == first

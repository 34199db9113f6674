"""The example safety hook as a process, with a tiny classifier with random weights."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from prometheus_client import CollectorRegistry

from service.jobs.model.metrics import SafetyMetrics
from service.safety.checker import SafetyChecker
from service.safety.safety_check import SafetyCheck, ShownImage
from service.safety.verdict import SafetyRefused
from service.settings.safety import SafetySettings
from tests.test_arrows import ROOT

LIMIT_S = 120.0
"""Time-out of a check in seconds; the first check imports torch on a busy machine."""


def png(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision transformer whose head classifies every image as `odd`."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    folder = tmp_path_factory.mktemp("classifier")
    labels = {0: "plain", 1: "odd"}
    config = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        image_size=16, patch_size=8, id2label=labels, label2id={v: k for k, v in labels.items()},
    )  # fmt: skip
    model = ViTForImageClassification(config)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 2.0]))  # probability of odd: 0.88
    model.save_pretrained(folder)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


@contextmanager
def example(*options: str) -> Iterator[str]:
    command = [sys.executable, "examples/safety/hook.py", "--port", "0", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def refusal(url: str, question: SafetyCheck) -> str | None:
    metrics = SafetyMetrics(CollectorRegistry(), question.when)
    checker = SafetyChecker(SafetySettings(url=url, timeout_s=LIMIT_S), metrics)
    try:
        await checker.check(question, "default")
    except SafetyRefused as refused:
        return str(refused)
    finally:
        await checker.close()
    return None


def before(prompt: str) -> SafetyCheck:
    return SafetyCheck("before", "default", "flux", {"prompt": prompt})


def after() -> SafetyCheck:
    images = (ShownImage("output", "image/png", png("red")),)
    return SafetyCheck("after", "default", "flux", {"prompt": "a hat"}, images, "job_1", 0)


async def test_words_are_refused_without_any_classifier(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("forbidden\n")
    with example("--words", str(words)) as url:
        assert await refusal(url, before("a Forbidden hat")) == (
            "the prompt has the word 'forbidden'"
        )
        assert await refusal(url, before("an unforbidden hat")) is None
        assert await refusal(url, after()) is None


@pytest.mark.parametrize(("label", "threshold"), [("odd", 0.8), ("odd", 0.9), ("plain", 0.8)])
async def test_images_are_classified(classifier: Path, label: str, threshold: float) -> None:
    options = ("--classifier", str(classifier), "--refuse", label, "--threshold", str(threshold))
    with example(*options) as url:
        reason = await refusal(url, after())
        control = (ShownImage("control_video", "video/mp4", b"a video"),)
        sent = replace(after(), when="before", images=control)
        assert await refusal(url, sent) == "this check does not support videos"
    is_refused = (label, threshold) == ("odd", 0.8)
    assert reason == ("an image was classified as 'odd'" if is_refused else None)

"""OpenTelemetry's GenAI conventions: attributes and durations of a job."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes
from prometheus_client import CollectorRegistry

from models.spec.field_types import MAX_SEED
from service.jobs.job_spans import job_attributes
from service.jobs.model import gen_ai
from service.jobs.model.job import Job
from service.jobs.model.metrics import POISONOUS, JobEnd, JobMetrics
from service.jobs.model.state_machine import JobState
from service.settings.telemetry import TracingSettings
from service.tracing import spans
from tests.collector import collecting

SECRET = "a secret"
REQUEST = {"model": "style", "prompt": SECRET, "negative_prompt": SECRET, "seed": MAX_SEED}


def job(**fields: Any) -> Job:
    return Job(id="job_1", model="base", bucket="64x64", images=2, request=REQUEST | fields)


def known(module: object) -> set[str]:
    return {text for text in vars(module).values() if isinstance(text, str)}


def test_names_are_the_conventions() -> None:
    attributes = gen_ai.attributes(job())
    assert attributes.keys() <= known(gen_ai_attributes)
    assert gen_ai.DURATION == gen_ai_metrics.GEN_AI_SERVER_REQUEST_DURATION
    labels = set(gen_ai.NAMES.values()) - {gen_ai.DURATION, error_attributes.ERROR_TYPE}
    assert labels <= known(gen_ai_attributes)


def test_spans_of_a_job_have_them_and_no_prompt() -> None:
    with (
        collecting() as collector,
        spans.exporting(TracingSettings(endpoint=collector.url), "atelier-test"),
    ):
        with spans.span("attempt", job_attributes(job())):
            pass
        spans.flush()
        (span,) = collector.spans
    expected = {
        "gen_ai.operation.name": "generate_content",
        "gen_ai.provider.name": "atelier",
        "gen_ai.request.model": "style",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.seed": str(MAX_SEED),  # OTLP integers are signed
        "gen_ai.output.type": "image",
        "gen_ai.response.model": "base",
        "gen_ai.response.id": "job_1",
    }
    assert expected.items() <= span.attributes.items()
    assert SECRET.encode() not in collector.raw


@pytest.mark.parametrize(("frames", "kind"), [(1, "image"), (17, "video")])
def test_output_type_is_video_for_several_frames(frames: int, kind: str) -> None:
    assert gen_ai.attributes(job(num_frames=frames))["gen_ai.output.type"] == kind


def test_job_duration_is_recorded_with_its_error_type() -> None:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry)
    metrics.expect(["base"], ["default"])
    ends = [(JobState.SUCCEEDED, None), (JobState.CANCELED, None), (JobState.FAILED, "store")]
    for outcome, failure in ends:
        metrics.ended(JobEnd.of(job(), outcome, 3.0, failure))
    fields = {"model": "base", "served_as": "style", "created_at": "1", "finished_at": "3"}
    metrics.count_note({"event": "expired", **fields})
    metrics.count_note({"event": "failed", **fields})
    counts = {
        (sample.labels["gen_ai_request_model"], sample.labels["error_type"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "gen_ai_server_request_duration_seconds_count"
    }
    errors = ("", "canceled", "store", "expired", POISONOUS)
    assert counts == {("base", ""): 0} | {("style", error): 1 for error in errors}


def test_a_video_length_that_is_null_is_an_images() -> None:
    job = Job(id="job_1", model="m", bucket="b", request={"num_frames": None})
    assert gen_ai.attributes(job)["gen_ai.output.type"] == "image"

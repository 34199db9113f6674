"""Load plans: requests drawn from a mix, and traces."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from deploy.bench.serving.mix import Deadline, Mix, Shape, Tenant, mix_of, plan
from deploy.bench.serving.timed_request import TimedRequest, read_trace, shape_of, write_trace
from deploy.exit_codes import UsageError

MIX = Mix(
    rate_per_s=50,
    seconds=100,
    seed=7,
    shapes=(
        Shape(share=3, request={"model": "a"}, prompts=("one", "two")),
        Shape(share=1, request={"model": "b", "width": 64}),
    ),
    tenants=(Tenant(name="studio", share=2), Tenant(name="app")),
    deadlines=(Deadline(scale=2.0), Deadline()),
)


def test_seed_determines_the_load() -> None:
    entries = list(plan(MIX))
    assert entries == list(plan(MIX))
    assert entries != list(plan(MIX.model_copy(update={"seed": 8})))


def test_a_poisson_process_of_the_mix() -> None:
    """5,000 requests are expected, within five standard deviations (of √5,000); so are shares."""
    entries = list(plan(MIX))
    assert len(entries) == pytest.approx(5000, abs=5 * 5000**0.5)
    gaps = [after.at_s - before.at_s for before, after in pairwise(entries)]
    assert min(gaps) >= 0
    mean_s = sum(gaps) / len(gaps)
    variance = sum((gap - mean_s) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 == pytest.approx(mean_s, rel=0.1), "exponential: its deviation is its mean"
    for field, share in (("model", 0.75), ("tenant", 2 / 3), ("deadline_scale", 0.5)):
        count = Counter(getattr(entry, field) for entry in entries).most_common(1)[0][1]
        assert count / len(entries) == pytest.approx(share, abs=5 * 0.5 / len(entries) ** 0.5), (
            field
        )
    assert {entry.request["prompt"] for entry in entries if entry.model == "a"} == {"one", "two"}
    assert len({entry.request["seed"] for entry in entries}) > 4900, "each its own image"


def test_another_rate_sends_the_same_requests() -> None:
    slow, fast = (
        list(plan(MIX.model_copy(update={"rate_per_s": rate, "seconds": 1000 / rate})))
        for rate in (1.0, 100.0)
    )
    assert [entry.request for entry in slow] == [entry.request for entry in fast]
    assert [entry.at_s / 100 for entry in slow] == pytest.approx(
        [entry.at_s for entry in fast], abs=1e-5
    )


def test_repeats_are_earlier_requests() -> None:
    entries = list(plan(MIX.model_copy(update={"repeats": 0.3})))
    keys = [entry.model_copy(update={"at_s": 0}).model_dump_json() for entry in entries]
    repeated = sum(key in keys[:number] for number, key in enumerate(keys[:1000]))
    assert repeated / 1000 == pytest.approx(0.3, abs=5 * 0.5 / 1000**0.5)
    assert [entry.at_s for entry in entries] == sorted(entry.at_s for entry in entries)
    with pytest.raises(UsageError, match="repeats"):
        mix_of({"repeats": 1.5})


def test_a_trace_is_the_load_again(tmp_path: Path) -> None:
    entries, file = list(plan(MIX))[:50], tmp_path / "trace.jsonl"
    write_trace(file, reversed(entries))
    assert read_trace(file) == entries, "by their instants"


def test_trace_preserves_line_separators_in_prompts(tmp_path: Path) -> None:
    """Unicode line separators, which JSON does not escape, are preserved."""
    entry, file = (
        TimedRequest(at_s=0, request={"prompt": "a\nb\u2028c\x85d"}),
        tmp_path / "trace.jsonl",
    )
    write_trace(file, [entry])
    assert read_trace(file) == [entry]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"at_s": 1, "request": {}}\n{"at_s": -1, "request": {}}', "line 2: at_s"),
        ('{"at_s": 1, "request": {}, "tenent": "a"}', "line 1: tenent"),
        ('{"at_s": 1, "request": {"deadline_s": "soon"}}', "line 1: request: .*not 'soon'"),
        ("no json", "line 1"),
        ("\n", "no requests"),
    ],
)
def test_a_wrong_trace_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_trace(file)


def test_a_wrong_mix_is_named() -> None:
    with pytest.raises(UsageError, match=r"shapes\.0\.share: .*; rate: Extra"):
        mix_of({"rate": 3, "shapes": [{"share": 0, "request": {}}]})


def test_a_load_that_would_fill_memory_is_refused() -> None:
    with pytest.raises(UsageError, match=r"1e\+09 .* are 6e\+10, .* has at most 1,000,000"):
        mix_of({"rate_per_s": 1e9})


def test_equal_work_has_one_name() -> None:
    request = {"model": "flux-dev", "width": 64, "height": 32, "num_inference_steps": 4}
    same = {**request, "prompt": "a", "seed": 3, "deadline_s": 2.0, "priority": "low"}
    assert shape_of(same) == shape_of(request) == "flux-dev 64x32 num_inference_steps=4"
    assert shape_of(request | {"image": "eA=="}) == shape_of(request | {"image": "eQ=="})
    assert shape_of(request | {"image": "eA=="}) != shape_of(request)
    assert shape_of(request | {"true_cfg_scale": 2.0}) != shape_of(request), "twice the work"


def test_deadline_scales_with_unloaded_latency() -> None:
    assert TimedRequest(at_s=0, request={}, deadline_scale=2.0).deadline_s(1.5) == 3.0
    assert TimedRequest(at_s=0, request={"deadline_s": 7}).deadline_s(1.5) == 7.0
    assert TimedRequest(at_s=0, request={}, deadline_scale=2.0).deadline_s(None) is None, (
        "not known"
    )

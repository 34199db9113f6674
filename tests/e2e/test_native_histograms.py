"""Native histograms in a real Prometheus, beside one that reads text, of the same page."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import pytest

from service.jobs.model.native_buckets import MAX_BUCKETS, SCHEMA
from tests.deploy.watching.prometheus import Prometheus, running
from tests.e2e.system import until
from workers import metrics
from workers.health.http import shown
from workers.health.liveness import Liveness
from workers.pool import metrics as pool_metrics

NATIVE = "--enable-feature=native-histograms"
NAME = "atelier_job_stage_seconds"
STAGE = ("native", "decode")
"""Labels, model and stage, of a series that no other test of this process counts."""
X = f'{NAME}{{model="native",stage="decode"}}'
EMPTY = f'{NAME}{{model="native",stage="encode"}}'
TRACE = {"trace_id": "a" * 32, "span_id": "b" * 16}
WIDTH = 2 ** (2**-SCHEMA)
"""Quotient of a bucket's bounds."""
STEP = 1.12
LATER = [1e-6 * STEP**number for number in range(201)]
"""Over so many magnitudes that resolution is halved."""


@dataclass(frozen=True)
class Watched:
    """A pool's page that two have read."""

    native: Prometheus
    text: Prometheus
    first: list[float]
    """Observations that were there from the beginning."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    random.seed(0)
    first = [random.lognormvariate(-1, 0.5) for _ in range(500)]
    pool_metrics.expect("native", ["default"], objective_s=300)
    series = metrics.stages.labels(*STAGE)
    for value in first:
        series.observe(value, TRACE)
    folders = [tmp_path_factory.mktemp(name) for name in ("native", "text")]
    with shown("native", 0, Liveness()) as page:
        assert page
        targets = {"atelier-frontend": [], "atelier-pools": [f"127.0.0.1:{page.server_port}"]}
        with running(folders[0], targets, NATIVE) as native, running(folders[1], targets) as text:
            until(lambda: native.query(X), "the first scrape")
            until(lambda: text.query(series_of("count")), "the first scrape of text")
            yield Watched(native, text, first)


def series_of(suffix: str) -> str:
    return X.replace(NAME, f"{NAME}_{suffix}")


def value(prometheus: Prometheus, expr: str) -> float:
    (series,) = prometheus.query(expr)
    return float(series["value"][1])


def test_count_sum_and_quantiles_are_those_of_the_observations(watched: Watched) -> None:
    ask = watched.native
    assert value(ask, f"histogram_count({X})") == len(watched.first)
    assert value(ask, f"histogram_sum({X})") == pytest.approx(sum(watched.first))
    percentiles = quantiles(watched.first, n=100)
    for percent in (5, 50, 95):
        found = value(ask, f"histogram_quantile({percent / 100}, {X})")
        assert 1 / WIDTH < found / percentiles[percent - 1] < WIDTH
    assert value(ask, f"histogram_fraction(0, +Inf, {X})") == 1
    assert value(ask, f"histogram_count({EMPTY})") == 0, "a histogram of nothing is native, too"


def test_native_ones_stand_in_place_of_the_classic_ones(watched: Watched) -> None:
    """In Prometheus 2.42, which has no choice of both; rules and dashboards ask for these."""
    for suffix in ("bucket", "count", "sum"):
        assert watched.native.query(series_of(suffix)) == []


def test_without_the_feature_there_are_classic_ones(watched: Watched) -> None:
    ask = watched.text
    assert ask.query(X) == []
    assert value(ask, series_of("count")) == len(watched.first)
    assert value(ask, series_of("sum")) == pytest.approx(sum(watched.first))
    buckets = {
        float(one["metric"]["le"]): float(one["value"][1]) for one in ask.query(series_of("bucket"))
    }
    assert buckets == {
        bound: sum(value <= bound for value in watched.first)
        for bound in (*metrics.STAGE_BUCKETS_S, float("inf"))
    }
    found = value(ask, f"histogram_quantile(0.5, {series_of('bucket')})")
    assert 0.25 < found < 0.5


def test_all_else_is_the_same(watched: Watched) -> None:
    """Counters and gauges, by name, labels and kind."""
    others = f'{{__name__=~"atelier_.+",__name__!~"({"|".join(histograms(watched))})(_.+)?"}}'
    found = [told(ask.query(others)) for ask in (watched.native, watched.text)]
    assert found[0] == found[1] and len(found[0]) > 50
    assert [told(ask.query("up")) for ask in (watched.native, watched.text)] == [[(POOLS, "1")]] * 2


POOLS = (("__name__", "up"), ("job", "atelier-pools"))


def told(series: list[dict[str, Any]]) -> list[tuple[tuple[tuple[str, str], ...], str]]:
    """Labels but for the page's address, and values."""
    found = []
    for one in series:
        labels = {name: text for name, text in one["metric"].items() if name != "instance"}
        found.append((tuple(sorted(labels.items())), one["value"][1]))
    return sorted(found)


def histograms(watched: Watched) -> list[str]:
    named = watched.text.query('count by (__name__) ({__name__=~".+_bucket"})')
    return [one["metric"]["__name__"].removesuffix("_bucket") for one in named]


def test_exemplars_come_with_either(watched: Watched) -> None:
    for ask, expr in ((watched.native, X), (watched.text, series_of("bucket"))):
        until(lambda ask=ask, expr=expr: ask.exemplars(expr, 0, 2**33), f"exemplars of {expr}")
        assert {one["labels"]["trace_id"] for one in ask.exemplars(expr, 0, 2**33)} == {"a" * 32}


def test_rates_hold_through_a_loss_of_resolution(watched: Watched) -> None:
    """Last here: it observes further. What came later is all that the rate has."""
    series = metrics.stages.labels(*STAGE)
    for one in LATER:
        series.observe(one)
    (family,) = metrics.stages.collect()
    counts = family.natives[STAGE].counts()
    assert counts.schema < SCHEMA and len(counts.positive) <= MAX_BUCKETS
    total = len(watched.first) + len(LATER)
    until(lambda: value(watched.native, f"histogram_count({X})") == total, "all observations")
    until(lambda: value(watched.text, series_of("count")) == total, "all observations in text")
    found = value(watched.native, f"histogram_quantile(0.5, rate({X}[5m]))")
    median = LATER[len(LATER) // 2]
    width = STEP * 2 ** (2**-counts.schema)
    assert 1 / width < found / median < width
    assert value(watched.native, "up") == 1

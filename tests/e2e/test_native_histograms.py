"""Native histograms in a real Prometheus, compared with a Prometheus that scrapes the same page as
text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import pytest

from service.jobs.model.histogram import MAX_BUCKETS, SCHEMA
from tests.deploy.watching.prometheus import Prometheus, running
from tests.e2e.system import until
from workers import metrics
from workers.health.http import health_server
from workers.health.liveness import Liveness
from workers.pool import metrics as pool_metrics

NATIVE = "--enable-feature=native-histograms"
NAME = "atelier_job_stage_seconds"
STAGE = ("native", "decode")
"""Labels (model, stage) of a series that no other test of this process observes."""
X = f'{NAME}{{model="native",stage="decode"}}'
EMPTY = f'{NAME}{{model="native",stage="encode"}}'
TRACE = {"trace_id": "a" * 32, "span_id": "b" * 16}
WIDTH = 2 ** (2**-SCHEMA)
"""Ratio of a bucket's bounds."""
STEP = 1.12
LATER = [1e-6 * STEP**number for number in range(201)]
"""Observations that span enough magnitudes to halve the resolution."""


@dataclass(frozen=True)
class Watched:
    """Two Prometheus servers that scraped a pool's page."""

    native: Prometheus
    text: Prometheus
    first: list[float]
    """Observations present from the beginning."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    random.seed(0)
    first = [random.lognormvariate(-1, 0.5) for _ in range(500)]
    pool_metrics.expect("native", ["default"], objective_s=300)
    series = metrics.stages.labels(*STAGE)
    for value in first:
        series.observe(value, TRACE)
    folders = [tmp_path_factory.mktemp(name) for name in ("native", "text")]
    with health_server("native", 0, Liveness()) as page:
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
    prometheus = watched.native
    assert value(prometheus, f"histogram_count({X})") == len(watched.first)
    assert value(prometheus, f"histogram_sum({X})") == pytest.approx(sum(watched.first))
    percentiles = quantiles(watched.first, n=100)
    for percent in (5, 50, 95):
        quantile = value(prometheus, f"histogram_quantile({percent / 100}, {X})")
        assert 1 / WIDTH < quantile / percentiles[percent - 1] < WIDTH
    assert value(prometheus, f"histogram_fraction(0, +Inf, {X})") == 1
    assert value(prometheus, f"histogram_count({EMPTY})") == 0, (
        "a histogram of nothing is native, too"
    )


def test_native_histograms_replace_classic_ones(watched: Watched) -> None:
    """Prometheus 2.42 cannot keep both kinds; rules and dashboards query native ones."""
    for suffix in ("bucket", "count", "sum"):
        assert watched.native.query(series_of(suffix)) == []


def test_histograms_are_classic_without_the_feature(watched: Watched) -> None:
    prometheus = watched.text
    assert prometheus.query(X) == []
    assert value(prometheus, series_of("count")) == len(watched.first)
    assert value(prometheus, series_of("sum")) == pytest.approx(sum(watched.first))
    buckets = {
        float(sample["metric"]["le"]): float(sample["value"][1])
        for sample in prometheus.query(series_of("bucket"))
    }
    assert buckets == {
        bound: sum(value <= bound for value in watched.first)
        for bound in (*metrics.STAGE_BUCKETS_S, float("inf"))
    }
    quantile = value(prometheus, f"histogram_quantile(0.5, {series_of('bucket')})")
    assert 0.25 < quantile < 0.5


def test_counters_and_gauges_are_unchanged(watched: Watched) -> None:
    """Counters and gauges agree in name, labels and kind."""
    selector = f'{{__name__=~"atelier_.+",__name__!~"({"|".join(histograms(watched))})(_.+)?"}}'
    results = [samples(prometheus.query(selector)) for prometheus in (watched.native, watched.text)]
    assert results[0] == results[1] and len(results[0]) > 50
    assert [samples(prometheus.query("up")) for prometheus in (watched.native, watched.text)] == [
        [(POOLS, "1")]
    ] * 2


POOLS = (("__name__", "up"), ("job", "atelier-pools"))


def samples(series: list[dict[str, Any]]) -> list[tuple[tuple[tuple[str, str], ...], str]]:
    """Values with labels, without the page's address."""
    values = []
    for sample in series:
        labels = {name: text for name, text in sample["metric"].items() if name != "instance"}
        values.append((tuple(sorted(labels.items())), sample["value"][1]))
    return sorted(values)


def histograms(watched: Watched) -> list[str]:
    families = watched.text.query('count by (__name__) ({__name__=~".+_bucket"})')
    return [family["metric"]["__name__"].removesuffix("_bucket") for family in families]


def test_exemplars_come_with_either(watched: Watched) -> None:
    for prometheus, expr in ((watched.native, X), (watched.text, series_of("bucket"))):
        until(
            lambda prometheus=prometheus, expr=expr: prometheus.exemplars(expr, 0, 2**33),
            f"exemplars of {expr}",
        )
        assert {
            exemplar["labels"]["trace_id"] for exemplar in prometheus.exemplars(expr, 0, 2**33)
        } == {"a" * 32}


def test_rates_hold_through_a_loss_of_resolution(watched: Watched) -> None:
    """Must run last, because it adds observations; the rate covers only those."""
    series = metrics.stages.labels(*STAGE)
    for observation in LATER:
        series.observe(observation)
    (family,) = metrics.stages.collect()
    counts = family.natives[STAGE].counts()
    assert counts.schema < SCHEMA and len(counts.positive) <= MAX_BUCKETS
    total = len(watched.first) + len(LATER)
    until(lambda: value(watched.native, f"histogram_count({X})") == total, "all observations")
    until(lambda: value(watched.text, series_of("count")) == total, "all observations in text")
    quantile = value(watched.native, f"histogram_quantile(0.5, rate({X}[5m]))")
    median = LATER[len(LATER) // 2]
    width = STEP * 2 ** (2**-counts.schema)
    assert 1 / width < quantile / median < width
    assert value(watched.native, "up") == 1

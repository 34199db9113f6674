"""Alias: one name for several models, the versions, each of which serves a share of requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.spec.model_spec import VERSION_MARK

MAX_VERSIONS = 16


class StepBack(BaseModel):
    """Automatic change of a version's weight to 0."""

    model_config = ConfigDict(frozen=True)

    at: float
    """Time of the change: seconds since the epoch."""
    reason: str


class Alias(BaseModel):
    """Versions behind a name, and what is watched of them."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    weights: Mapping[str, float] = Field(min_length=1, max_length=MAX_VERSIONS)
    """Weights by version; one of 0 stands by: it serves where no other is ready."""
    shadow: str | None = None
    """Model that draws a share of the requests again, to compare pixels; None: there is none."""
    shadow_share: float = Field(0.01, gt=0, le=1)
    """Share of the requests that the shadow draws."""
    baseline: str | None = None
    """Version that the others are held against, and step back to; None: none steps back."""
    max_failures: float = Field(0.05, ge=0, le=1)
    """Share of failed jobs by which a version may exceed the baseline's before it steps back."""
    max_slowdown: float = Field(1.5, ge=1)
    """Times the baseline's median latency that a version's may be before it steps back."""
    min_jobs: int = Field(20, ge=5, le=500)
    """Jobs of a version that are needed to judge it."""
    since: float = 0.0
    """Time of the last change of weights by an operator: jobs before it are not looked at."""
    window_s: float = Field(600, gt=0, le=86_400)
    """Age of the oldest jobs that are looked at."""
    stepped_back: Mapping[str, StepBack] = Field(default_factory=dict)
    """Versions that stepped back, until an operator gives them a weight again."""

    @model_validator(mode="after")
    def _is_whole(self) -> Alias:
        if any(not 0 <= weight < float("inf") for weight in self.weights.values()):
            raise ValueError("weights are numbers from 0")
        if not any(self.weights.values()):
            raise ValueError("one version at least has a weight above 0")
        if self.baseline is not None and self.baseline not in self.weights:
            raise ValueError(f"baseline: {self.baseline!r} is none of its versions")
        return self

    def candidates(self, ready: Collection[str], known: Collection[str]) -> Sequence[str]:
        """Return the versions that may serve a request now, by name; empty: there is none.

        Those with a weight that are ready; else one that stands by and is ready; else those with a
        weight that were ever there; else any that was.
        """
        by_name = sorted(self.weights)
        weighted = [name for name in by_name if self.weights[name]]
        standing_by = [name for name in by_name if name not in {*weighted, *self.stepped_back}]
        for names, there in ((weighted, ready), (standing_by, ready), (weighted, known)):
            if found := [name for name in names if name in there]:
                return found
        return [name for name in standing_by if name in known]

    def draw(self, candidates: Sequence[str], point: float) -> str:
        """Return one of the candidates by weight.

        Args:
            point: from 0 to 1, evenly distributed over requests; 1 excluded.
        """
        weights = [self.weights[name] for name in candidates]
        if not any(weights):
            weights = [1.0] * len(candidates)
        left = point * sum(weights)
        for name, weight in zip(candidates, weights, strict=True):
            if left < weight:
                return name
            left -= weight
        return candidates[-1]  # of a sum that was rounded

    def leading(self, candidates: Sequence[str]) -> str:
        """Return the candidate with the greatest weight."""
        return max(candidates, key=lambda name: self.weights[name])

    def without(self, version: str, at: float, reason: str) -> Alias:
        """Return the alias after a version has stepped back to the baseline."""
        weights = {**self.weights, version: 0.0}
        if self.baseline and not any(weights.values()):
            weights[self.baseline] = self.weights[version]
        stepped_back = {**self.stepped_back, version: StepBack(at=at, reason=reason)}
        return self.model_copy(update={"weights": weights, "stepped_back": stepped_back})


def full_name(alias: str, version: str) -> str:
    """Return the model of a version as an operator writes it: `@r2` is short for `ALIAS@r2`."""
    return alias + version if version.startswith(VERSION_MARK) else version

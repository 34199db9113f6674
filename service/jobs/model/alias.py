"""Alias: a model name that stands for several versions, each serving a share of requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.spec.model_spec import VERSION_MARK

MAX_VERSIONS = 16


class StepBack(BaseModel):
    """Automatic change of a version's weight to 0, because it does worse than the baseline."""

    model_config = ConfigDict(frozen=True)

    at: float
    """Time of the change: seconds since the epoch."""
    reason: str


class Alias(BaseModel):
    """Versions that an alias stands for, with their weights and the rules for stepping back."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    weights: Mapping[str, float] = Field(min_length=1, max_length=MAX_VERSIONS)
    """Weights by version. A version of weight 0 is on standby: it serves if no other is ready."""
    shadow: str | None = None
    """Model that repeats a share of the requests, for a comparison of pixels; None: no shadow."""
    shadow_share: float = Field(0.01, gt=0, le=1)
    """Share of the requests that the shadow repeats."""
    baseline: str | None = None
    """Version to compare the others with, and to step back to; None: no version steps back."""
    max_failures: float = Field(0.05, ge=0, le=1)
    """Amount by which a version's share of failed jobs may exceed the baseline's."""
    max_slowdown: float = Field(1.5, ge=1)
    """Maximum ratio of a version's median latency to the baseline's."""
    min_jobs: int = Field(20, ge=5, le=500)
    """Minimum number of a version's jobs required to judge it."""
    since: float = 0.0
    """Time of an operator's last change of weights: earlier jobs are ignored."""
    window_s: float = Field(600, gt=0, le=86_400)
    """Maximum age of the jobs that are compared."""
    stepped_back: Mapping[str, StepBack] = Field(default_factory=dict)
    """Versions that stepped back, until an operator sets their weight again."""

    @model_validator(mode="after")
    def _is_whole(self) -> Alias:
        if any(not 0 <= weight < float("inf") for weight in self.weights.values()):
            raise ValueError("weights must be 0 or more")
        if not any(self.weights.values()):
            raise ValueError("at least one version needs a weight above 0")
        if self.baseline is not None and self.baseline not in self.weights:
            raise ValueError(f"baseline: {self.baseline!r} is not one of its versions")
        return self

    def candidates(self, ready: Collection[str], registered: Collection[str]) -> Sequence[str]:
        """Return the versions that may serve a request now, by name.

        Weighted versions that are ready come first, then ready standby versions, then registered
        weighted ones, then registered standby ones. The first of these groups that is not empty is
        returned. Versions that stepped back are never on standby.

        Args:
            ready: versions with a ready worker.
            registered: versions that workers have ever announced.
        """
        by_name = sorted(self.weights)
        weighted = [name for name in by_name if self.weights[name]]
        standing_by = [name for name in by_name if name not in {*weighted, *self.stepped_back}]
        for names, allowed in ((weighted, ready), (standing_by, ready), (weighted, registered)):
            if matches := [name for name in names if name in allowed]:
                return matches
        return [name for name in standing_by if name in registered]

    def draw(self, candidates: Sequence[str], point: float) -> str:
        """Select one of the candidates at random by weight.

        Args:
            point: random number from 0 to 1, evenly distributed; 1 excluded.
        """
        weights = [self.weights[name] for name in candidates]
        if not any(weights):
            weights = [1.0] * len(candidates)
        left = point * sum(weights)
        for name, weight in zip(candidates, weights, strict=True):
            if left < weight:
                return name
            left -= weight
        return candidates[-1]  # the sum was rounded

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
    """Expand an operator's short version name: `@r2` stands for `ALIAS@r2`."""
    return alias + version if version.startswith(VERSION_MARK) else version

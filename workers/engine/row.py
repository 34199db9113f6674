"""Row: the state of one image while the step loop denoises it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from models.interface.pipeline import PyTree, Step
from workers.engine.errors import GenerationFailed
from workers.programs.bucket_programs import BucketPrograms, Program, StepKind
from workers.programs.precomputed_modulations import Modulations, precompute


@dataclass(frozen=True)
class RowProgress:
    """Progress of a row as one immutable value, for other threads to read."""

    state: PyTree
    done: int
    device_seconds: float
    digests: tuple[int, ...] = ()
    """Digest of the latents after each of the image's steps, over all its passes."""


class ImageRow(Protocol):
    """Progress of one image, as every backend reports it after a step."""

    done: int
    """Finished steps of the row, which may be one pass of several."""
    canceled: bool
    """Set from any thread: no further step is begun."""

    @property
    def to_do(self) -> int:
        """Number of steps that the row runs in total."""

    @property
    def after_work(self) -> float:
        """Cost of a later pass's steps, as a multiple of one of this row's."""

    @property
    def image_done(self) -> int:
        """Finished steps of the image, over all its passes."""

    @property
    def image_steps(self) -> int:
        """Total steps of the image, over all its passes."""

    @property
    def all_sent(self) -> bool:
        """Return whether every step of the row has begun."""

    @property
    def claim_seconds(self) -> float:
        """Device-seconds of the image in this claim."""


@dataclass(eq=False)
class Row:
    """State of one image in the batch, held twice: as last verified finite, and as last sent.

    Step k+1 is sent before the result of step k is verified; a failure restores
    `verified_state`.
    """

    programs: BucketPrograms
    steps: tuple[Step, ...]
    verified_state: PyTree
    """State on the device after `done` steps, all verified finite."""
    on_step: Callable[[Row], None]
    """Callback after each verified step, in the loop's thread; it must return quickly."""
    on_end: Callable[[Row, GenerationFailed | None], None]
    """Callback at the end, once, in the loop's thread, with the failure if any. Not called for a
    canceled row."""

    state: PyTree = None
    """State on the device after `sent` steps, possibly still being computed."""
    done: int = 0
    sent: int = 0
    epoch: int = 0
    """Incremented with each return to `verified_state`; results of earlier steps are ignored."""
    slot_ticket: int = 0
    """Ticket number drawn when the row got its slot."""
    stop_at: int | None = None
    """Number of steps after which the row ends; None: after the last."""
    before: int = 0
    """Steps of the image before this row's, in an earlier pass."""
    after: int = 0
    """Steps of the image after this row's, in a later pass."""
    after_work: float = 0.0
    """Work of the later pass's steps, as a multiple of one of this row's."""
    earlier_s: float = 0.0
    """Device-seconds of the image in earlier claims."""
    ticket: int = 0
    """Ticket number drawn with each step that is sent; the lowest is served first."""
    retries_separately: bool = False
    """Whether it runs in a batch of its own, after a failed batch, until one step has succeeded."""
    canceled: bool = False
    """Set from any thread: no further step is sent."""
    paused: bool = False
    """Set from any thread: no further step is sent, but the row keeps its slot."""
    on_idle: Callable[[], Any] | None = None
    """Callback of a held row, once, in the loop's thread, when no step of it is in flight."""
    device_seconds: float = 0.0
    """Share of the time of the batches that contained it."""
    digests: tuple[int, ...] = ()
    """Digest of the latents after each of the image's steps, over all its passes."""
    modulations: Modulations | None = None
    """Precomputed modulations of the next steps, if any."""

    def __post_init__(self) -> None:
        self.state, self.sent = self.verified_state, self.done
        self._report()

    @property
    def claim_seconds(self) -> float:
        """Device-seconds of the image in this claim."""
        return self.device_seconds - self.earlier_s

    @property
    def image_done(self) -> int:
        """Finished steps of the image, over all its passes."""
        return self.before + self.done

    @property
    def image_steps(self) -> int:
        """Total steps of the image, over all its passes."""
        return self.before + self.to_do + self.after

    @property
    def to_do(self) -> int:
        """Number of steps that the row runs in total."""
        return len(self.steps) if self.stop_at is None else self.stop_at

    @property
    def is_done(self) -> bool:
        """Return whether all steps of the row have been verified."""
        return self.done >= self.to_do

    @property
    def all_sent(self) -> bool:
        """Return whether every step of the row has been sent to the device."""
        return self.sent >= self.to_do

    @property
    def sendable(self) -> bool:
        """Return whether the row's next step may be sent now."""
        unsure = self.retries_separately and self.sent > self.done
        return not (self.canceled or self.paused or self.all_sent or unsure)

    @property
    def waits_since(self) -> int:
        """Ticket number since which the row has waited for a step."""
        return max(self.slot_ticket, self.ticket)

    @property
    def next_step(self) -> Step:
        """Index of the first step that has not been sent."""
        return self.steps[self.sent]

    @property
    def step_kind(self) -> StepKind:
        """Step kind of the row's next step."""
        return self.programs.step_kinds[self.next_step.program]

    def send(self, state: PyTree, ticket: int) -> None:
        """Record that the next step was sent and will produce this state."""
        self.state, self.ticket = state, ticket
        self.sent += 1
        if self.all_sent:
            self.modulations = None

    def load_modulations(self, program: Program, weights: list[Any]) -> Modulations:
        """Return the modulations of the next step; compute them if missing."""
        step_program = self.next_step.program
        if self.modulations is None or not self.modulations.serve(step_program, self.sent):
            self.modulations = None  # freed first
            self.modulations = precompute(program, weights, self.state, self.steps, self.sent)
        return self.modulations

    def advance(self, state: PyTree, device_seconds: float, digest: int) -> None:
        """Record one finished step whose state is finite."""
        self.verified_state, self.retries_separately = state, False
        self.done += 1
        self.device_seconds += device_seconds
        self.digests += (digest,)
        self._report()

    def _report(self) -> None:
        self.progress = RowProgress(
            self.verified_state, self.done, self.device_seconds, self.digests
        )

    def rewind(self) -> None:
        """Discard the row's steps that were sent but not verified; run its next step alone."""
        self.state, self.sent, self.retries_separately = self.verified_state, self.done, True
        self.modulations = None  # their program may have caused the failure
        self.epoch += 1

    def notify_if_idle(self) -> None:
        """Call `on_idle`, if set, once no step is in flight."""
        if self.on_idle is not None and self.sent == self.done:
            on_idle, self.on_idle = self.on_idle, None
            on_idle()

    def end(self, failure: GenerationFailed | None) -> None:
        """Remove the row from the step loop; results of steps in flight are ignored."""
        self.epoch += 1
        self.modulations = None
        if not self.canceled:
            self.on_end(self, failure)

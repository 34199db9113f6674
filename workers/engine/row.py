"""A row: one image while it is denoised, as the step loop sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.interface.pipeline import PyTree, Step
from workers.engine.errors import GenerationFailed
from workers.programs.bucket_programs import BucketPrograms, Phase, Program
from workers.programs.conditioning import Conditions, computed


@dataclass(frozen=True)
class Checked:
    """Progress of a row, as one value for other threads to read."""

    state: PyTree
    done: int
    device_seconds: float


@dataclass(eq=False)
class Row:
    """State of one image in the batch, held twice: as last seen finite, and as last sent.

    The loop sends step k+1 before it knows how step k went; `known` is where it returns to when
    that was too bold.
    """

    programs: BucketPrograms
    steps: tuple[Step, ...]
    known: PyTree
    """State on the device after `done` steps, all of them checked."""
    on_step: Callable[[Row], None]
    """Callback of each checked step, in the loop's thread: hand over and return."""
    on_end: Callable[[Row, GenerationFailed | None], None]
    """Callback of the end, once, there too: done, or why not. Not called for a canceled row."""

    state: PyTree = None
    """State on the device after `sent` steps, perhaps still being computed."""
    done: int = 0
    sent: int = 0
    epoch: int = 0
    """Grows with each return to `known`: what was sent for before that no longer counts."""
    seated: int = 0
    """The ticket that was drawn when it got its slot."""
    stop_at: int | None = None
    """Number of steps after which it ends; None: after the last."""
    before: int = 0
    """Steps of the image before this row's, in an earlier pass."""
    after: int = 0
    """Steps of the image behind this row's, in a later pass."""
    after_work: float = 0.0
    """Those steps as a multiple of one of this row's."""
    earlier_s: float = 0.0
    """Device-seconds of the image in earlier claims."""
    ticket: int = 0
    """Drawn anew with each step that is sent; the lowest goes first."""
    alone: bool = False
    """Whether it runs without neighbours, after a failed batch, until one step has gone well."""
    canceled: bool = False
    """Set from any thread: no further step is sent."""
    held: bool = False
    """Set from any thread: no further step is sent, but the row keeps its slot."""
    on_still: Callable[[], Any] | None = None
    """Callback of a held row, once, in the loop's thread, when no step of it is under way."""
    device_seconds: float = 0.0
    """Share of the time of the batches that it was in."""
    conditions: Conditions | None = None
    """Conditions of the next steps, where they were computed."""

    def __post_init__(self) -> None:
        self.state, self.sent = self.known, self.done
        self.checked = Checked(self.known, self.done, self.device_seconds)

    @property
    def own_seconds(self) -> float:
        """Device-seconds without those of earlier claims."""
        return self.device_seconds - self.earlier_s

    @property
    def image_done(self) -> int:
        """Steps of the image that are done, over all its passes."""
        return self.before + self.done

    @property
    def image_steps(self) -> int:
        """Steps that the image is to do, over all its passes."""
        return self.before + self.to_do + self.after

    @property
    def to_do(self) -> int:
        """Steps of this row that are to be done."""
        return len(self.steps) if self.stop_at is None else self.stop_at

    @property
    def is_done(self) -> bool:
        """Return whether all steps that are to be done have been checked."""
        return self.done >= self.to_do

    @property
    def all_sent(self) -> bool:
        """Return whether every step that is to be done has been sent to the device."""
        return self.sent >= self.to_do

    @property
    def sendable(self) -> bool:
        """Return whether its next step may be sent now."""
        unsure = self.alone and self.sent > self.done
        return not (self.canceled or self.held or self.all_sent or unsure)

    @property
    def waits_since(self) -> int:
        """The ticket since which nothing has been done for it."""
        return max(self.seated, self.ticket)

    @property
    def next_step(self) -> Step:
        """The first step that has not been sent."""
        return self.steps[self.sent]

    @property
    def phase(self) -> Phase:
        """Phase of the next step."""
        return self.programs.phases[self.next_step.phase]

    def send(self, state: PyTree, ticket: int) -> None:
        """The next step is on its way and will give this state."""
        self.state, self.ticket = state, ticket
        self.sent += 1
        if self.all_sent:
            self.conditions = None

    def load_conditions(self, program: Program, weights: list[Any]) -> Conditions:
        """Return the conditions of the next step; compute them where they are missing."""
        phase = self.next_step.phase
        if self.conditions is None or not self.conditions.serve(phase, self.sent):
            self.conditions = None  # freed first
            self.conditions = computed(program, weights, self.state, self.steps, self.sent)
        return self.conditions

    def advance(self, state: PyTree, device_seconds: float) -> None:
        """Advance by one step whose state is finite."""
        self.known, self.alone = state, False
        self.done += 1
        self.device_seconds += device_seconds
        self.checked = Checked(state, self.done, self.device_seconds)

    def rewind(self) -> None:
        """Forget what was sent and is not known to have gone well; take the next step alone."""
        self.state, self.sent, self.alone = self.known, self.done, True
        self.conditions = None  # what went wrong may have been their program
        self.epoch += 1

    def notify_if_still(self) -> None:
        """Call back whoever waits for the row to stand still, if it does."""
        if self.on_still is not None and self.sent == self.done:
            on_still, self.on_still = self.on_still, None
            on_still()

    def end(self, failure: GenerationFailed | None) -> None:
        """Leave the loop; steps still on their way no longer count."""
        self.epoch += 1
        self.conditions = None
        if not self.canceled:
            self.on_end(self, failure)

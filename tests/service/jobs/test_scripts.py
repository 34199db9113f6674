"""Agreement of each script's header, its Lua text and its dataclass on arguments and texts; and
scripts that the server does not have cached."""

from __future__ import annotations

import re
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from redis.asyncio import Redis

from service.jobs.model.job import Job
from service.jobs.queue import Claim, Queue
from service.jobs.scripts import composition
from service.jobs.scripts.composition import composed
from service.jobs.scripts.script import TEXT, Common, Script, ScriptWithoutAnswer
from service.settings.queue import QueueSettings
from tests.service.jobs.examples import a_job

QUEUE_FOLDER = Path(composition.__file__).parents[1]
TEXTS = {path.stem: path.read_text() for path in Path(composition.__file__).parent.glob("*.lua")}
ENTRY = r"\w+(?: \([^()]+\))?"
LIST = re.compile(rf"{ENTRY}(?:, {ENTRY})*")


def leaves(base: type[Any]) -> set[type[Any]]:
    below = base.__subclasses__()
    return {leaf for subclass in below for leaf in leaves(subclass)} if below else {base}


CLASSES = {
    leaf.name(): leaf for leaf in leaves(Script) if leaf.__module__.startswith("service.jobs.")
}
"""Dataclass of each script, by name."""


def declared(text: str, label: str) -> dict[str, bool]:
    """Names that a header lists after a label, as `name (meaning; or absent)`, and whether each may
    be absent."""
    line = re.search(rf"^-- {label}: +(.*(?:\n--  +.*)*)", text, re.M)
    if not line:
        return {}
    names = re.sub(r"\n-- +", " ", line[1])
    assert LIST.fullmatch(names), f"not names with something in parentheses: {names}"
    entries = re.findall(r"(\w+)(?: \(([^()]+)\))?", names)
    return {name: prose.endswith("or absent") for name, prose in entries}


def typed(script: type[Any], is_text: bool) -> dict[str, bool]:
    """Fields of a dataclass, and whether each may be None."""
    hints = get_type_hints(script)
    selected = (item.name for item in fields(script) if bool(item.metadata) == is_text)
    return {name: type(None) in getattr(hints[name], "__args__", ()) for name in selected}


def functions(text: str) -> dict[str, str]:
    """Top-level functions of a Lua text."""
    return dict(re.findall(r"^local function (\w+)(.*?^end)", text, re.M | re.S))


def used(text: str, shared: dict[str, str]) -> set[str]:
    """Arguments that a Lua text uses, directly or in functions that it calls."""
    code, seen = re.sub(r"--.*", "", text), set[str]()
    while more := set(re.findall(r"(?<![.\w'])\w+", code)) & shared.keys() - seen:
        seen |= more
        code += "".join(re.sub(r"--.*", "", shared[name]) for name in sorted(more))
    return set(re.findall(r"\bargs\.(\w+)", code))


def texts_used(text: str) -> int:
    """Number of texts that a Lua text reads."""
    return max(map(int, re.findall(r"ARGV(?:\[|, )(\d+)", text)), default=1) - 1


def check(script: type[Any], text: str) -> None:
    """Assert that header, code and dataclass of a script agree."""
    name = script.name() if issubclass(script, Script) else "common"
    before = [TEXTS[part] for part in composition.parts(name)[:-1]]
    shared = {key: body for source in before for key, body in functions(source).items()}
    args, texts = declared(text, "args"), declared(text, "texts")
    assert args == typed(script, is_text=False)
    assert texts == typed(script, is_text=True)
    if issubclass(script, Script):
        assert used(text, shared) - typed(Common, is_text=False).keys() == args.keys()
        assert texts_used(text) == len(texts)


def test_every_script_has_a_dataclass_and_every_dataclass_a_script() -> None:
    assert CLASSES.keys() == TEXTS.keys() - composition.PREPENDED


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_header_code_and_dataclass_agree(name: str) -> None:
    check(CLASSES[name], TEXTS[name])


def test_every_script_has_the_common_arguments() -> None:
    check(Common, TEXTS["common"])
    assert used("\n".join(TEXTS.values()), {}) >= typed(Common, is_text=False).keys()


@dataclass(frozen=True)
class Example(ScriptWithoutAnswer):
    fence: int
    spent: float | None
    reason: str = field(metadata=TEXT)


EXAMPLE = """-- Does something.
-- args:  fence (of the claim), spent (device-seconds,
--        summed; or absent)
-- texts: reason (JSON)
-- Gives: what it gives

if args.spent then settle('id', 'fail', ARGV[2]) end -- by args.fence
"""


def test_an_example_agrees() -> None:
    check(Example, EXAMPLE)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("fence (of the claim), ", ""),
        ("fence (of the claim), ", "fence (of the claim), step, "),
        ("spent (", "spend ("),
        ("; or absent", ""),
        ("fence (of the claim), ", "fence and "),
        ("-- texts: reason (JSON)\n", ""),
        ("reason (JSON)", "reason (JSON), other"),
        ("reason (JSON)", "other (JSON)"),
        ("args.spent", "args.spend"),
        ("args.spent", "args.spent and args.step"),
        ("if args.spent then", "if true then"),
        ("settle('id'", "reserve('id'"),
        ("ARGV[2]", "ARGV[3]"),
        ("ARGV[2]", "'queued'"),
    ],
    ids=[
        "the header lacks an argument", "the dataclass lacks an argument", "another name",
        "not said to be optional", "irregular", "the header lacks a text",
        "the dataclass lacks a text", "another text", "the code has another name",
        "the code uses one more", "the code does not use it",
        "a function that is called uses another", "the code reads one more text",
        "the code does not read it",
    ],
)  # fmt: skip
def test_mismatch_is_detected(right: str, wrong: str) -> None:
    assert right in EXAMPLE
    with pytest.raises(AssertionError):
        check(Example, EXAMPLE.replace(right, wrong, 1))


SHARED = """-- Shared.
local ONE, TWO = 1, 2

local function reached() -- other() is not
  if ONE then
    return TWO
  end
end

local function other()
  return reached()
end

local table = {}
for i = 1, 2 do table[i] = i end
"""


@pytest.mark.parametrize(
    ("own", "has_reached", "has_other"),
    [
        ("return reached()\n", True, False),
        ("return other()\n", True, True),
        ("return 1\n", False, False),
    ],
)
def test_script_includes_only_the_shared_text_it_reaches(
    own: str, has_reached: bool, has_other: bool
) -> None:
    text = composed([SHARED], own)
    assert text.endswith("for i = 1, 2 do table[i] = i end\n" + own)
    assert (
        "local function reached() \n  if ONE then\n    return TWO\n  end\nend\n" in text
    ) == has_reached
    assert ("local ONE, TWO" in text) == has_reached
    assert ("local function other()" in text) == has_other


async def test_a_server_that_forgot_the_scripts(queue: Queue, empty_redis: Redis) -> None:
    await queue.put(a_job())
    await empty_redis.script_flush()
    job, new = await queue.put(a_job())
    assert new
    assert await queue.get(job.id) == job


class RecordedCalls(Redis):
    """Client that records the queue's functions on the stack of each command."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stacks: list[list[str]] = []

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        frames = traceback.extract_stack()
        ours = [frame.name for frame in frames if QUEUE_FOLDER in Path(frame.filename).parents]
        self.stacks.append(ours)
        return await super().execute_command(*args, **options)


@pytest.mark.parametrize(
    ("call", "functions"),
    [
        (lambda queue, job: queue.accept(job), ["accept", "run_confirmed", "run"]),
        (lambda queue, job: queue.get(job.id), ["get", "run"]),
        (lambda queue, job: queue.cancel(job.id), ["cancel", "run"]),
        (lambda queue, job: queue.claim("pool", job.model, 1), ["_claim_now", "run"]),
        (lambda queue, job: queue.release(Claim(job, 1)), ["release", "run"]),
    ],
    ids=["accept", "get", "cancel", "claim", "release"],
)
async def test_a_call_sends_its_script_without_layers_in_between(
    redis_url: str,
    empty_redis: Redis,
    call: Callable[[Queue, Job], Awaitable[object]],
    functions: list[str],
) -> None:
    redis = RecordedCalls.from_url(redis_url, decode_responses=True)
    assert isinstance(redis, RecordedCalls)
    queue = Queue(redis, QueueSettings())
    try:
        await call(queue, a_job())
    finally:
        await queue.close()
    assert redis.stacks[0] == functions

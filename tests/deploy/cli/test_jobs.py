"""`atelier jobs` and `atelier generate` against a real front end with a stand-in pool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import atelier
from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.deploy.cli.conftest import Run
from tests.service.jobs.examples import a_job
from tests.service.standin import MODEL, StandIn, picture

REQUEST = {"prompt": "a red star", "seed": 1, "output": {"format": "png"}}


@pytest.fixture
async def pool(settings: Settings, queue: Queue) -> AsyncIterator[StandIn]:
    async with StandIn(queue, Store(settings.store_url)) as pool:
        yield pool


async def test_generate_with_all_service_options(
    run: Run, pool: StandIn, queue: Queue, tmp_path: Path
) -> None:
    file = tmp_path / "a.png"
    options = [
        "--priority",
        "high",
        "--deadline",
        60,
        "--metadata",
        "shop=a=b",
        "--seed",
        2**32 + 7,
    ]
    code, out, err = await run("generate", "a star", "-o", file, *options)
    assert (code, out.split()) == (0, [str(file)])
    assert file.read_bytes() == picture()
    assert "warning: seed: only its lowest 32 bits count" in err
    (job,) = await queue.list(limit=2)
    assert (job.metadata, job.request["priority"]) == ({"shop": "a=b"}, "high")
    assert job.request["deadline_s"] == 60


async def test_jobs_are_listed_shown_canceled_and_waited_for(
    run: Run, pool: StandIn, queue: Queue, tmp_path: Path
) -> None:
    await run("generate", "a star", "-o", tmp_path / "a.png")
    pool.may_finish.clear()
    await queue.put(a_job(model=MODEL, bucket="another", request=REQUEST))
    while True:
        code, out, _ = await run("jobs", "list", "--json")
        jobs = [json.loads(line) for line in out.splitlines()]
        if [job["state"] for job in jobs] == ["running", "succeeded"]:
            break
    newest, oldest = (job["id"] for job in jobs)
    code, out, _ = await run("jobs", "list", "--state", "succeeded", "--limit", 5)
    assert code == 0 and out.startswith(f"{oldest}  succeeded") and newest not in out
    code, out, _ = await run("jobs", "show", oldest)
    assert code == 0 and json.loads(out)["request"]["prompt"] == "a star"
    code, out, err = await run("jobs", "wait", oldest, "-o", tmp_path / "again.png")
    assert (code, out.strip()) == (0, str(tmp_path / "again.png"))
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "a.png").read_bytes()
    code, out, err = await run("jobs", "cancel", oldest, newest)
    assert code == atelier.EXIT_FAILED, "one of them had ended"
    assert f"{newest} is canceled" in err and f"{oldest} had succeeded" in err
    code, _, err = await run("jobs", "wait", newest)
    assert code == atelier.EXIT_FAILED and "the job was canceled" in err


async def test_jobs_are_listed_by_filters(run: Run, queue: Queue) -> None:
    job_ids = [
        (await queue.put(a_job(model=MODEL, request=REQUEST, metadata=metadata)))[0].id
        for metadata in ({"shot": "1"}, {}, {"shot": "2"}, {"shot": "1=2"})
    ]

    async def listed(*arguments: str) -> list[int]:
        code, out, _ = await run("jobs", "list", *arguments)
        assert code == 0
        return [job_ids.index(line.split()[0]) for line in out.splitlines()]

    assert await listed("--metadata", "shot", "--limit", "2") == [3, 2]
    assert await listed("--metadata", "shot=1=2") == [3]
    assert await listed("--model", "other") == []
    assert await listed("--model", MODEL, "--created-after", "2020-01-01T00:00:00Z") == [3, 2, 1, 0]
    assert await listed("--created-before", "2020-01-01T00:00:00Z") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "show", "job_none"),
        ("jobs", "show", "../models"),
        ("jobs", "cancel", "job_none"),
        ("jobs", "wait", "job_none"),
        ("generate", "a star", "--model", "none"),
        ("generate", "a star", "--steps", 100_000),
        ("generate", "a star", "--width", 9, "--quality", "none"),
    ],
)
async def test_error_is_printed_once(
    run: Run, pool: StandIn, arguments: tuple[object, ...]
) -> None:
    code, out, err = await run(*arguments)
    assert (code, out) == (atelier.EXIT_FAILED, "")
    assert err.startswith("atelier: ") and err.count("atelier: ") == 1
    lines = [line.strip().removeprefix("atelier: ") for line in err.splitlines()]
    assert not any(a in b for a in lines for b in lines if a is not b), "each is said once"
    assert "Traceback" not in err


async def test_unwritable_output_file_keeps_the_job(
    run: Run, pool: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "0.png").mkdir()
    code, _, err = await run("generate", "a star", "-o", tmp_path / "frames")
    assert code == atelier.EXIT_USAGE
    assert "atelier jobs wait job_" in err and err.count("atelier: ") == 1


async def test_drafts_of_an_audition_are_chosen_and_finished(
    run: Run, pool: StandIn, queue: Queue, tmp_path: Path
) -> None:
    code, out, err = await run("generate", "a star", "--audition", 3, "--seed", 5, "-o", tmp_path)
    assert code == 0 and len(out.split()) == 3
    (job,) = await queue.list(limit=2)
    assert (job.state, job.images, job.stop_at_step) == (JobState.PAUSED, 3, 1)
    assert f"atelier jobs continue {job.id} --images N" in err
    options = ["--images", "2,0", "--prompt", "a moon", "--steps", 9, "-o", tmp_path / "chosen"]
    (tmp_path / "chosen").mkdir()
    code, out, err = await run("jobs", "continue", job.id, *options)
    assert code == 0 and len(out.split()) == 2
    assert "warning: prompt: the first 1 steps were generated with another value" in err
    newest = (await queue.list(limit=2))[0]
    assert (newest.continues, newest.seeds) == (job.id, [7, 5])
    assert newest.drafted and newest.drafted.fields.keys() == {"prompt", "num_inference_steps"}
    code, _, err = await run("jobs", "continue", newest.id)
    assert code == atelier.EXIT_FAILED and "can be continued once it is paused" in err


async def test_an_audition_of_an_unknown_model_has_to_say_its_step(
    run: Run, pool: StandIn, queue: Queue, tmp_path: Path
) -> None:
    code, _, err = await run("generate", "a star", "--audition", 3, "--model", "none")
    assert code == atelier.EXIT_USAGE and "--stop-at-step" in err
    options = ["--audition", 2, "--stop-at-step", 3, "-o", tmp_path]
    code, _, _ = await run("generate", "a star", *options)
    assert code == 0
    (job,) = await queue.list(limit=2)
    assert (job.images, job.stop_at_step) == (2, 3)

"""POST /v1/verify: files and outputs of jobs are generated again and compared."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from service.http.image_checks import ImageChecks
from service.jobs.model.job import JobError
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.recipes import xmp
from service.recipes.files import read_recipe
from service.recipes.recipe import PRIVATE, Recipe
from service.settings.settings import Settings
from service.verification.verdict import ROUNDING_DB
from tests.service.adapters import INK, OIL, TAKING
from tests.service.painter import CPU, TPU, Brush, Painter
from tests.service.routes.test_generate import CAT
from tests.service.standin import MODEL, SPEC, VIDEO, picture
from workers.media.outputs import Marking

IDENTICAL = "identical, bit for bit"
COUNTER = "atelier_verifications_total{"


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[Painter]:
    async with Painter(queue, store) as pool:
        yield pool


async def generate(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await http.post("/v1/generate", json=CAT | body, headers={"Prefer": "wait"})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def file_of(http: httpx.AsyncClient, job: dict[str, Any], index: int = 0) -> bytes:
    return (await http.get(job["outputs"][index]["url"])).content


async def generated_file(http: httpx.AsyncClient, index: int = 0, **body: Any) -> bytes:
    return await file_of(http, await generate(http, **body), index)


async def verify(
    http: httpx.AsyncClient, data: bytes, kind: str = "image/png", **headers: str
) -> dict[str, Any]:
    answer = await http.post("/v1/verify", content=data, headers={"Content-Type": kind, **headers})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def verify_job(http: httpx.AsyncClient, job: str, output: int = 0) -> dict[str, Any]:
    answer = await http.post("/v1/verify", json={"job": job, "output": output})
    assert answer.status_code == 200, answer.text
    return answer.json()


def edited(data: bytes, recipe: Recipe | None = None, off_by: int = 9) -> bytes:
    """The file with a changed first pixel, and a recipe."""
    pixels = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    pixels[0, 0, 1] += off_by
    return saved(Image.fromarray(pixels), recipe or read_recipe(data))


def saved(image: Image.Image, recipe: Recipe) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue() + xmp.packet(recipe)  # found at any position


def changed(original: Recipe, **fields: Any) -> Recipe:
    return original.model_copy(update=fields)


async def test_a_file_is_identical(http: httpx.AsyncClient, pool: Painter, queue: Queue) -> None:
    job = await generate(http, seed=5, num_images=3)
    for index in (0, 2):
        report = await verify(http, await file_of(http, job, index))
        assert report["verdict"] == "identical"
        assert report["message"] == f"{IDENTICAL}: the whole file"
        output = job["outputs"][index]
        for name in ("sha256", "pixels_sha256"):
            assert report[name] == {"file": output[name], "drawn": output[name]}
        assert (report["max_difference"], report["differing_share"]) == (0, 0)
        assert report["psnr_db"] is report["made_by"] is None
        assert report["drawn_by"] == CPU.model_dump()
        again = await queue.get(report["job"])
        assert (again.images, again.request["seed"]) == (1, 5 + index)
        assert again.metadata == {"verifies": output["sha256"]}
        assert again.priority == 1, "normal priority"


@pytest.mark.parametrize(
    ("kind", "format", "quality"),
    [
        ("image/webp", "webp", 100),
        ("image/webp", "webp", 60),
        ("image/jpeg", "jpeg", 75),
    ],
)
async def test_formats_and_qualities(
    http: httpx.AsyncClient, pool: Painter, kind: str, format: str, quality: int
) -> None:
    data = await generated_file(http, output={"format": format, "quality": quality})
    report = await verify(http, data, kind)
    assert (report["verdict"], report["message"]) == ("identical", f"{IDENTICAL}: the whole file")


async def test_reencoded_file_with_equal_pixels_is_identical(
    http: httpx.AsyncClient, pool: Painter
) -> None:
    """A file saved again with equal pixels is identical, whether in a lossless or a lossy
    format."""
    data = await generated_file(http)
    again = saved(Image.open(io.BytesIO(data)), read_recipe(data))
    assert again != data
    report = await verify(http, again)
    assert report["verdict"] == "identical"
    assert report["message"] == f"{IDENTICAL} in its pixels; the file has other bytes"
    jpeg = await generated_file(http, output={"format": "jpeg"})
    report = await verify(http, jpeg + b"\0", "image/jpeg")
    assert (
        report["verdict"] == "identical" and report["sha256"]["file"] != report["sha256"]["drawn"]
    )
    assert report["pixels_sha256"]["file"] == report["pixels_sha256"]["drawn"]


async def test_single_changed_pixel_is_detected(http: httpx.AsyncClient, pool: Painter) -> None:
    report = await verify(http, edited(await generated_file(http)))
    assert report["verdict"] == "different"
    assert report["max_difference"] == 9
    assert report["differing_share"] == pytest.approx(1 / (96 * 64))
    expected_db = 10 * np.log10(255**2 * 3 * 96 * 64 / 9**2)
    assert report["psnr_db"] == pytest.approx(expected_db)
    assert "1 of 6144 pixels differ (0.016 %), by at most 9 of 255 levels" in report["message"]
    assert report["message"].endswith("or version that rounds differently may cause as much")
    assert report["tolerance_db"] == ROUNDING_DB
    assert report["pixels_sha256"]["file"] != report["pixels_sha256"]["drawn"]


async def test_differing_step_is_named(http: httpx.AsyncClient, pool: Painter) -> None:
    """An edited file has equal steps; for a file of another computation, the verdict names the
    first step that differs."""
    pool.brush.digests = (1, 2, 3, 4)
    data = await generated_file(http)
    report = await verify(http, edited(data))
    assert (report["differs_at_step"], report["compared_steps"]) == (None, 4)
    assert "after each of the 4 steps, so the file was changed later" in report["message"]
    pool.brush = Brush(off_by=9, digests=(1, 2, 30, 40))
    report = await verify(http, data)
    assert (report["differs_at_step"], report["compared_steps"]) == (3, 4)
    assert (report["verdict"], report["max_difference"]) == ("different", 9)
    assert "; its latents differ from step 3 of 4 on" in report["message"]
    pool.brush = Brush(off_by=9, marking=Marking(metadata=False))
    report = await verify(http, data)
    assert report["differs_at_step"] is report["compared_steps"] is None


async def test_another_size_and_hidden_pixels_differ(
    http: httpx.AsyncClient, pool: Painter
) -> None:
    data = await generated_file(http)
    recipe, image = read_recipe(data), Image.open(io.BytesIO(data))
    report = await verify(http, saved(image.resize((48, 32)), recipe))
    assert report["verdict"] == "different" and report["max_difference"] is None
    assert "it has 48 x 32 pixels, and generated again 96 x 64 pixels" in report["message"]
    image.putalpha(Image.new("L", image.size, 254))
    report = await verify(http, saved(image, recipe))
    assert (report["verdict"], report["max_difference"]) == ("different", 1)


async def test_a_recipe_that_was_edited_differs(http: httpx.AsyncClient, pool: Painter) -> None:
    data = await generated_file(http)
    recipe = read_recipe(data)
    other = recipe.model_copy(update={"request": {**recipe.request, "prompt": "a dog"}})
    report = await verify(http, saved(Image.open(io.BytesIO(data)), other))
    assert report["verdict"] == "different" and report["differing_share"] > 0.9
    assert (
        "; more than another chip, layout or version explains, which keeps 40 dB"
        in report["message"]
    )
    for frame in (-5, 99):
        wrong = saved(Image.open(io.BytesIO(data)), changed(recipe, frame=frame))
        report = await verify(http, wrong)
        assert report["verdict"] == "unknown" and "1 were generated" in report["message"]


async def test_fields_that_no_recipe_has_are_ignored(
    http: httpx.AsyncClient, pool: Painter, queue: Queue
) -> None:
    """A stranger's file must not send the job of its verification to the stranger."""
    data = await generated_file(http)
    recipe, image = read_recipe(data), Image.open(io.BytesIO(data))
    foreign = {
        "webhook": {"url": "https://example.org/hook"}, "priority": "high", "deadline_s": 3600,
        "metadata": {"to": "example.org"}, "reuse": True, "num_images": 2, "draft_ttl_s": 60,
    }  # fmt: skip
    assert foreign.keys() == PRIVATE
    edited_file = saved(image, changed(recipe, request={**recipe.request, **foreign}))
    report = await verify(http, edited_file)
    assert report["verdict"] == "identical", report
    job = await queue.get(report["job"])
    assert (job.images, job.priority, job.deadline_at) == (1, 1, None)
    assert not {"webhook", "deadline_s", "draft_ttl_s"} & job.request.keys()
    assert job.metadata.keys() == {"verifies"}
    count = len(pool.received)
    with_image = {**recipe.request, "image": base64.b64encode(picture()).decode()}
    report = await verify(http, saved(image, changed(recipe, request=with_image)))
    assert report["verdict"] == "unknown" and "it was edited" in report["message"], report
    assert len(pool.received) == count, "no job was created"


async def test_drafts_of_a_verified_preview_are_deleted_at_once(
    http: httpx.AsyncClient, pool: Painter, queue: Queue
) -> None:
    report = await verify(http, await generated_file(http, stop_at_step=2))
    job = await queue.get(report["job"])
    assert report["verdict"] == "identical" and job.stop_at_step == 2
    assert job.draft_ttl_s == 1


async def test_a_jobs_output_with_its_input_images(http: httpx.AsyncClient, pool: Painter) -> None:
    """The file does not contain the input images; the job suffices, even without a recipe in the
    file."""
    image = base64.b64encode(picture()).decode()
    plain = {"metadata": False, "format": "png"}
    for output in ({"format": "png"}, plain):
        job = await generate(http, image=image, seed=3, num_images=2, output=output)
        report = await verify_job(http, job["id"], 1)
        assert report["verdict"] == "identical"
        assert report["made_by"] == report["drawn_by"] == CPU.model_dump()
        again = pool.received[-1]
        assert again.request["seed"] == 4 and again.request["strength"] == 0.6
        stored = await pool.store.get(again.request["image"])
        assert stored == picture(), "the new job has its own copy"
        report = await verify(http, await file_of(http, job))
        assert report["verdict"] == "unknown" and report["job"] is None
        reason = "contains no recipe" if output is plain else "input images that a file does not"
        assert reason in report["message"]


@pytest.mark.changes_files
async def test_deleted_input_images_make_the_verdict_unknown(
    http: httpx.AsyncClient, pool: Painter
) -> None:
    job = await generate(http, image=base64.b64encode(picture()).decode())
    await pool.store.delete([pool.received[-1].request["image"]])
    report = await verify_job(http, job["id"])
    assert report["verdict"] == "unknown" and "no longer stored (image)" in report["message"]


async def test_another_chip_may_round_otherwise(http: httpx.AsyncClient, pool: Painter) -> None:
    pool.brush.made_by = TPU
    job = await generate(http, seed=1)
    data = await file_of(http, job)
    pool.brush.made_by, pool.brush.off_by = CPU, 2
    report = await verify_job(http, job["id"])
    assert report["verdict"] == "unknown" and report["max_difference"] == 2
    assert report["tolerance_db"] == ROUNDING_DB <= report["psnr_db"]
    assert "generated on v6e (one device, JAX 0.8.0) and again on cpu (one dev" in report["message"]
    report = await verify(http, data)
    assert report["verdict"] == "different", "a file does not record the chip"
    pool.brush.off_by = 31
    report = await verify_job(http, job["id"])
    assert report["verdict"] == "different" and report["psnr_db"] < ROUNDING_DB
    pool.brush.made_by, pool.brush.off_by = TPU, 1
    report = await verify_job(http, job["id"])
    assert report["verdict"] == "different" and report["tolerance_db"] is None


class TestWorkers:
    """A worker that leaves a job to others does so for as long as the test takes."""

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        queue = settings.queue.model_copy(update={"affinity_s": 3600})
        return settings.model_copy(update={"queue": queue})

    async def test_another_worker_generates_it_again(
        self, http: httpx.AsyncClient, pool: Painter, queue: Queue, store: Store
    ) -> None:
        async with Painter(queue, store, pool="other"):
            for _ in range(4):
                job = await generate(http)
                report = await verify_job(http, job["id"])
                assert report["verdict"] == "identical"
                assert report["message"].endswith("; generated again by another worker")
                pools = [(await queue.get(name)).pool for name in (job["id"], report["job"])]
                assert {*pools} == {"stand-in", "other"}

    async def test_a_single_worker_does_not_wait(
        self, http: httpx.AsyncClient, pool: Painter
    ) -> None:
        report = await verify_job(http, (await generate(http))["id"])
        assert report["message"].endswith("; generated again by the same worker")


async def test_outputs_of_earlier_versions(http: httpx.AsyncClient, pool: Painter) -> None:
    pool.brush.made_by = None
    job = await generate(http)
    assert job["outputs"][0]["made_by"] is None
    assert (await verify_job(http, job["id"]))["verdict"] == "identical"


async def test_provenance_is_shown(http: httpx.AsyncClient, pool: Painter) -> None:
    job = await generate(http)
    assert job["outputs"][0]["made_by"] == CPU.model_dump()
    assert CPU.programs.encode() not in await file_of(http, job), (
        "files do not contain the programs' digest"
    )


async def test_other_weights(http: httpx.AsyncClient, pool: Painter, queue: Queue) -> None:
    job = await generate(http)
    data, count = await file_of(http, job), len(pool.received)
    pool.spec = SPEC.model_copy(update={"fingerprint": "other"})
    await queue.register("stand-in", pool.spec, ready=True)
    for report in (await verify(http, data), await verify_job(http, job["id"])):
        assert report["verdict"] == "unknown"
        assert "other weights here" in report["message"]
        assert "stand-in, and the current one is other" in report["message"]
    assert len(pool.received) == count, "no job was created"


async def test_unverifiable_files_are_inconclusive(http: httpx.AsyncClient, pool: Painter) -> None:
    data = await generated_file(http)
    recipe, image = read_recipe(data), Image.open(io.BytesIO(data))
    request, count = recipe.request, len(pool.received)
    cases = {
        "no prompts": recipe.without_prompts(),
        "has version 2": changed(recipe, recipe=2),
        "'gone' that generated it is not available": changed(
            recipe, request={**request, "model": "gone"}
        ),
        "its weights are not recorded": changed(recipe, fingerprint=""),
        "it is a branch": changed(recipe, drafted={"prompt": "a dog"}),
        "no seed": changed(recipe, request={k: v for k, v in request.items() if k != "seed"}),
        "not accepted here (num_inference_steps": changed(
            recipe, request={**request, "num_inference_steps": 10_000}
        ),
        "(wings": changed(recipe, request={**request, "wings": 2}),
        "(model": changed(recipe, request={**request, "model": ["flux-demo"]}),
        "adapter 'ink' that it was generated with is not": changed(
            recipe, loras={"ink": "ab" * 32}
        ),
    }
    for reason, other in cases.items():
        report = await verify(http, saved(image, other))
        assert report["verdict"] == "unknown" and reason in report["message"], report
    report = await verify(http, data.replace(b'{"fingerprint', b"-" * 13))
    assert "recipe cannot be read" in report["message"]
    report = await verify(http, picture())
    assert "contains no recipe" in report["message"]
    report = await verify(http, data[: len(data) - 900])
    assert "is broken and cannot be decoded" in report["message"]
    assert len(pool.received) == count, "no job was created"


async def test_other_adapters(http: httpx.AsyncClient, pool: Painter, queue: Queue) -> None:
    pool.spec = TAKING
    await queue.register("stand-in", pool.spec, ready=True)
    job = await generate(http, loras=[{"name": "ink", "scale": 0.5}])
    data = await file_of(http, job)
    assert (await verify(http, data))["verdict"] == "identical"
    other = INK.model_copy(update={"digest": "33" * 32})
    pool.spec = TAKING.model_copy(update={"loras": {"ink": other, "oil": OIL}})
    await queue.register("stand-in", pool.spec, ready=True)
    for report in (await verify(http, data), await verify_job(http, job["id"])):
        assert report["verdict"] == "unknown"
        assert "the adapter 'ink' is a different file here" in report["message"]
        assert "111111111111, and the current one is 333333333333" in report["message"]


async def test_a_job_that_fails(http: httpx.AsyncClient, pool: Painter) -> None:
    data = await generated_file(http)
    pool.failure = JobError(code="out_of_memory", message="too large for the chip")
    report = await verify(http, data)
    assert report["verdict"] == "unknown" and report["job"] == pool.received[-1].id
    assert "has failed: too large for the chip" in report["message"]


async def test_pending_verification_is_polled(http: httpx.AsyncClient, pool: Painter) -> None:
    """A repeated key returns the same job; keys of /v1/generate are separate."""
    data = await generated_file(http)
    pool.may_finish.clear()
    headers = {"Content-Type": "image/png", "Idempotency-Key": "mine", "Prefer": "wait=0"}
    answer = await http.post("/v1/verify", content=data, headers=headers)
    assert answer.status_code == 202
    report = answer.json()
    assert report["verdict"] == "pending" and report["sha256"] is None
    assert answer.headers["location"] == f"/v1/jobs/{report['job']}"
    pool.may_finish.set()
    later = await verify(http, data, **{"Idempotency-Key": "mine"})
    assert (later["verdict"], later["job"]) == ("identical", report["job"])
    other = await http.post("/v1/verify", content=edited(data), headers=headers)
    assert other.status_code == 409
    fresh = await http.post("/v1/generate", json=CAT, headers={"Idempotency-Key": "mine"})
    assert fresh.status_code == 202 and fresh.json()["id"] != report["job"]


async def test_verdicts_are_counted(http: httpx.AsyncClient, pool: Painter) -> None:
    async def counts() -> dict[str, float]:
        lines = (await http.get("/metrics")).text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line.startswith(COUNTER)]
        return {name.split('"')[1]: float(value) for name, value in pairs}

    assert await counts() == {"identical": 0, "different": 0, "unknown": 0}
    data = await generated_file(http)
    for file in (data, edited(data), picture(), data):
        await verify(http, file)
    pool.may_finish.clear()
    headers = {"Content-Type": "image/png", "Prefer": "wait=0"}
    assert (await http.post("/v1/verify", content=data, headers=headers)).status_code == 202
    assert await counts() == {"identical": 2, "different": 1, "unknown": 1}
    pool.may_finish.set()


async def test_bodies_that_are_refused(http: httpx.AsyncClient, pool: Painter) -> None:
    async def status(**options: Any) -> int:
        return (await http.post("/v1/verify", **options)).status_code

    assert await status(content=b"x", headers={"Content-Type": "text/plain"}) == 415
    png = {"Content-Type": "image/png"}
    assert await status(content=b"x", headers=png | {"Content-Encoding": "gzip"}) == 415
    assert await status(content=b"x" * 200_001, headers=png) == 413
    assert await status(json={"job": "job_0"}) == 404
    assert await status(json={"output": 0}) == 422
    job = await generate(http)
    assert await status(json={"job": job["id"], "output": 1}) == 404
    assert await status(json={"job": job["id"], "file": "x"}) == 422


@pytest.mark.changes_files
async def test_disconnected_client_cancels_its_verification_job(
    wire: httpx.AsyncClient, pool: Painter, queue: Queue
) -> None:
    data = await generated_file(wire)
    pool.may_finish.clear()
    pool.has_claimed.clear()
    verification = asyncio.create_task(verify(wire, data))
    await pool.has_claimed.wait()
    verification.cancel()
    job = pool.received[-1].id
    ended = await asyncio.wait_for(queue.ended(job), 20)
    assert ended.state == "canceled"
    pool.may_finish.set()


@pytest.mark.parametrize(
    ("format", "kind"), [("mp4", "video/mp4"), ("gif", "image/gif"), ("png", "image/png")]
)
async def test_videos(
    http: httpx.AsyncClient, queue: Queue, store: Store, format: str, kind: str
) -> None:
    """Videos can be verified, and single frames stored as files."""
    async with Painter(queue, store, VIDEO) as pool:
        video = {"model": VIDEO.name, "output": {"format": format}, "num_images": 2}
        job = await generate(http, **video)
        index = 7 if format == "png" else 1
        data = await file_of(http, job, index)
        for report in (await verify(http, data, kind), await verify_job(http, job["id"], index)):
            assert report["verdict"] == "identical", report
        pool.brush.off_by = 3
        report = await verify_job(http, job["id"], index)
        assert report["verdict"] == "different"
        if format == "png":  # other formats are lossy
            assert report["differing_share"] == pytest.approx(1 / 96), "one square of one frame"


async def test_webm_has_no_recipe_and_a_job_has(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    async with Painter(queue, store, VIDEO):
        job = await generate(http, model=VIDEO.name, output={"format": "webm"})
        report = await verify(http, await file_of(http, job), "video/webm")
        assert report["verdict"] == "unknown" and "such as WebM" in report["message"]
        assert (await verify_job(http, job["id"]))["verdict"] == "identical"


async def test_hostile_gifs_are_bounded(settings: Settings) -> None:
    checks = ImageChecks(settings, has_tenants=False)
    try:
        file = io.BytesIO()
        Image.new("P", (400, 300)).save(file, "GIF")
        with pytest.raises(ValueError, match="400 x 300 pixels; 100000 are allowed"):
            await checks.compare([file.getvalue()], "a")
    finally:
        await checks.close()


def test_standin_serves_the_tested_model() -> None:
    assert SPEC.name == MODEL

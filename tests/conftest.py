"""Fixtures that every room shares. No JAX in here: the front end's tests run without it."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import redis
from redis.asyncio import Redis

import models.demo
from deploy.local.embedded_redis import embedded
from service.jobs.queue import Queue
from service.settings.queue import QueueSettings
from tests import compile_cache, tiers

os.environ["JAX_NUM_CPU_DEVICES"] = "8"
"""For layouts; read when JAX is first used, in whichever test that is."""
redis.utils.get_lib_version = cache(redis.utils.get_lib_version)
"""It reads the package's metadata from the disk, and is called for each of many connections."""
os.environ["OMP_NUM_THREADS"] = "1"
"""Torch's and NumPy's: on networks this small threads only wait for each other."""
os.environ["GOGC"] = "400"
"""Of kubectl, Helm and promtool: a fifth of their time, at Go's own setting, is for garbage."""
PATIENCE_S = 60
"""With a Redis that shares two busy cores and their disk."""
COMPILED = "TESTS_COMPILED"
"""Variable with the folder of what systems have compiled, one for all of them and all processes of
the tests; set here, where the first of these starts, to one that further runs read too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its tier, and let those of properties try the same examples each time."""
    tiers.mark(items)
    if "hypothesis" in sys.modules:
        import hypothesis

        hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
        hypothesis.settings.load_profile("same")


def pytest_collection_finish() -> None:
    """Spare every garbage collection what imports have made, which stays to the end."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    if COMPILED not in os.environ:
        compile_cache.prune()
        os.environ[COMPILED] = str(compile_cache.folder_of_systems() or _passing(config))


def _passing(config: pytest.Config) -> str:
    """Make a folder for this run alone."""
    folder = TemporaryDirectory(prefix="compiled-")
    config.add_cleanup(folder.cleanup)
    return folder.name


OTHERS = {
    *("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "MOSAIC_GPU_CUDA_ROOT"),
    *("TF_CPP_MIN_LOG_LEVEL", "TPU_LIBRARY_PATH", "TPU_SKIP_MDS_QUERY"),
}
"""Variables that pytest, and torch and JAX when they are first used, set for themselves."""


@pytest.fixture(autouse=True, scope="module")
def forget_programs() -> Iterator[None]:
    """Drops what a module compiled: a test process would hold gigabytes of it to its end."""
    yield
    if "jax" in sys.modules:
        import jax

        jax.clear_caches()


KEEPING = ("families", "models", "parallel", "parity")
"""Folders whose modules compile many programs, and ask nothing about compiling."""


USUALLY, RARELY = gc.get_threshold(), (100_000, 20, 20)
"""Thresholds of the garbage collector."""
MAKING = (*KEEPING, "service/jobs/model/test_state_machine.py", "service/test_patterns.py")
"""Folders and files whose tests make millions of objects, few of them cyclic: by Python's own
thresholds a twelfth of their time and more goes into looking for those."""


@pytest.fixture(autouse=True, scope="module")
def garbage(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collects garbage rarely where much is made; elsewhere what is left open shows soon."""
    path = request.path.relative_to(Path(__file__).parent)
    is_making = any(path.is_relative_to(place) for place in MAKING)
    gc.set_threshold(*(RARELY if is_making else USUALLY))
    yield
    gc.set_threshold(*USUALLY)


@pytest.fixture(autouse=True, scope="module")
def kept_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Read what another process or run of the tests has compiled."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    with compile_cache.kept() if folder in KEEPING else nullcontext():
        yield


@pytest.fixture(autouse=True, scope="module")
def same_environment() -> Iterator[None]:
    """Fails a module that leaves the environment changed for those after it."""
    before = dict(os.environ)
    yield
    changed = {
        name
        for name in (before.keys() | os.environ.keys()) - OTHERS
        if before.get(name) != os.environ.get(name)
    }
    for name in changed & before.keys():
        os.environ[name] = before[name]
    for name in changed - before.keys():
        del os.environ[name]
    assert not changed, f"left changed in the environment: {', '.join(sorted(changed))}"


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One embedded server for the whole run; `queue` empties it, so take both or clean up.

    Its clients wait longer than users do: a machine that stood still for seconds fails no test.
    """
    with embedded(tmp_path_factory.mktemp("redis")) as url:
        with redis.Redis.from_url(url) as client:
            client.config_set("appendonly", "no")  # nobody kills it: no command waits for the disk
        yield f"{url}?socket_timeout={PATIENCE_S}"


@pytest.fixture
async def empty_redis(redis_url: str) -> AsyncIterator[Redis]:
    """A plain client of the server, with nothing in it."""
    async with Redis.from_url(redis_url, decode_responses=True) as redis:
        await redis.flushall()
        yield redis


@pytest.fixture
async def queue(redis_url: str, empty_redis: Redis) -> AsyncIterator[Queue]:
    """A queue with default settings and nothing in it."""
    queue = await Queue.connect(redis_url, QueueSettings())
    yield queue
    await queue.close()


@pytest.fixture(scope="module")
def coarse() -> Iterator[None]:
    """Compile in a third of the time, for modules that ask what is computed and not how fast.

    Tests of models, layouts and workers all are. The demo's scores, one request of text and one
    with an image a family of those held against diffusers compile as users do.
    """
    from tests.coarse import compiled

    with compiled():
        yield


SMALLER = {
    "transformer": {"num_layers": 1, "num_single_layers": 1},
    "text_encoder": {"num_hidden_layers": 2},
    "text_encoder_2": {"num_layers": 2},
    "vae": {
        "down_block_types": ["DownEncoderBlock2D"] * 2,
        "up_block_types": ["UpDecoderBlock2D"] * 2,
        "block_out_channels": [8, 16],
        "mid_block_add_attention": False,
    },
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's Flux, smaller still: configs alone, that any compiler is soon done with."""
    folder = tmp_path_factory.mktemp("configs") / "tiny"
    configs = shutil.ignore_patterns("*.safetensors", "tokenizer*")
    shutil.copytree(Path(models.demo.__file__).parent / "flux", folder, ignore=configs)
    for part, changes in SMALLER.items():
        file = folder / part / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder

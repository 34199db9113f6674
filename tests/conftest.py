"""Fixtures shared by all tests. Imports no JAX, because the front end's tests run without it."""

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
"""Number of devices for layouts; read when JAX is first used."""
redis.utils.get_lib_version = cache(redis.utils.get_lib_version)
"""Reads the package's metadata from disk and is called for each of many connections."""
os.environ["OMP_NUM_THREADS"] = "1"
"""Threads of torch and NumPy; on small networks they only wait for each other."""
os.environ["GOGC"] = "400"
"""Garbage collection of kubectl, Helm and promtool, which takes a fifth of their time by
default."""
PATIENCE_S = 60
"""Socket time-out of a Redis that shares two busy cores and their disk."""
COMPILED = "TESTS_COMPILED"
"""Variable with the folder of programs that systems compiled, shared by all test processes. The
first process sets it, to a folder that later runs also use."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its tier, and make hypothesis try the same examples in each run."""
    tiers.mark(items)
    if "hypothesis" in sys.modules:
        import hypothesis

        hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
        hypothesis.settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    if COMPILED not in os.environ:
        compile_cache.prune()
        os.environ[COMPILED] = str(compile_cache.folder_of_systems() or _passing(config))


def _passing(config: pytest.Config) -> str:
    """Make a temporary folder for this run."""
    folder = TemporaryDirectory(prefix="compiled-")
    config.add_cleanup(folder.cleanup)
    return folder.name


OTHERS = {
    *("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "MOSAIC_GPU_CUDA_ROOT"),
    *("TF_CPP_MIN_LOG_LEVEL", "TPU_LIBRARY_PATH", "TPU_SKIP_MDS_QUERY"),
}
"""Variables that pytest, torch and JAX set themselves."""


@pytest.fixture(autouse=True, scope="module")
def forget_programs() -> Iterator[None]:
    """Drop a module's compiled programs, which would otherwise occupy gigabytes."""
    yield
    if "jax" in sys.modules:
        import jax

        jax.clear_caches()


KEEPING = ("families", "models", "parallel", "parity")
"""Folders whose modules compile many programs and do not test compilation."""


USUALLY, RARELY = gc.get_threshold(), (100_000, 20, 20)
"""Thresholds of the garbage collector."""
MAKING = (
    *KEEPING,
    *("service/jobs/model/test_state_machine.py", "service/test_patterns.py", "test_words.py"),
)
"""Folders and files whose tests make millions of objects, few of them cyclic. With Python's default
thresholds, garbage collection takes a twelfth of their time or more."""


gc.set_threshold(*RARELY)
"""Between modules, while imports make objects that live to the end."""


@pytest.fixture(autouse=True, scope="module")
def garbage(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect garbage rarely in MAKING; elsewhere promptly, so that unclosed resources show soon.

    Objects that exist before the module's tests, most of them imported, are not collected again.
    """
    gc.collect()
    gc.freeze()
    path = request.path.relative_to(Path(__file__).parent)
    is_making = any(path.is_relative_to(place) for place in MAKING)
    gc.set_threshold(*(RARELY if is_making else USUALLY))
    yield
    gc.set_threshold(*RARELY)


@pytest.fixture(autouse=True, scope="module")
def kept_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use programs that other processes or runs compiled."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    with compile_cache.kept() if folder in KEEPING else nullcontext():
        yield


@pytest.fixture(autouse=True, scope="module")
def same_environment() -> Iterator[None]:
    """Fail a module that leaves changed environment variables for later modules."""
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
    """Embedded server for the whole run; request `queue`, which empties it, or clean up.

    The long socket time-out prevents failures on a machine that stalls for seconds.
    """
    with embedded(tmp_path_factory.mktemp("redis")) as url:
        with redis.Redis.from_url(url) as client:
            client.config_set(
                "appendonly", "no"
            )  # no test kills it, so commands need not wait for the disk
        yield f"{url}?socket_timeout={PATIENCE_S}"


@pytest.fixture
async def empty_redis(redis_url: str) -> AsyncIterator[Redis]:
    """Client of an emptied server."""
    async with Redis.from_url(redis_url, decode_responses=True) as redis:
        await redis.flushall()
        yield redis


@pytest.fixture
async def queue(redis_url: str, empty_redis: Redis) -> AsyncIterator[Queue]:
    """Empty queue with default settings."""
    queue = await Queue.connect(redis_url, QueueSettings())
    yield queue
    await queue.close()


@pytest.fixture(scope="module")
def coarse() -> Iterator[None]:
    """Compile in a third of the time, for modules that test results, not speed.

    Tests of models, layouts and workers use it. The demo's scores, and per family one text request
    and one request with an image compared with diffusers, compile as in production.
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
    """Configs of a Flux smaller than the demo's, without weights, quick to compile."""
    folder = tmp_path_factory.mktemp("configs") / "tiny"
    configs = shutil.ignore_patterns("*.safetensors", "tokenizer*")
    shutil.copytree(Path(models.demo.__file__).parent / "flux", folder, ignore=configs)
    for part, changes in SMALLER.items():
        file = folder / part / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder

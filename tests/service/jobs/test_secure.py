"""Redis over TLS, as a user with only the rights in docs/operations/redis.md."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, NoPermissionError

from deploy.local.environment import settings_environment
from models.spec.model_spec import ModelSpec
from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from service.jobs.redis import connection
from service.jobs.scripts.client import Unconfirmed
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from service.webhooks.secrets import WebhookSecrets
from tests.service.eventually import eventually
from tests.service.jobs.examples import MODEL, a_job
from tests.service.jobs.test_lost_responses import life
from tests.service.jobs.tls import Certificates, behind_tls

ROOT = Path(__file__).resolve().parents[3]
PASSWORD = "correct horse/battery?staple"


def rules() -> list[str]:
    """ACL rules from the documentation."""
    line = re.search(
        r"^user atelier on >PASSWORD (.*)$", (ROOT / "docs/operations/redis.md").read_text(), re.M
    )
    assert line
    return line[1].split()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def user(empty_redis: Redis) -> AsyncIterator[str]:
    name = "atelier"
    await empty_redis.execute_command(
        "ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *rules()
    )
    yield name
    await empty_redis.execute_command("ACL", "DELUSER", name)


@pytest.fixture
async def port(redis_url: str, certificates: Certificates) -> AsyncIterator[int]:
    async with behind_tls(redis_url, certificates.context()) as port:
        yield port


@pytest.fixture
def secure(port: int, user: str, certificates: Certificates) -> RedisSettings:
    return RedisSettings(
        url=f"rediss://127.0.0.1:{port}",
        username=user,
        password=PASSWORD,
        ca_file=certificates.file("ca"),
    )


def changed(settings: RedisSettings, **fields: Any) -> RedisSettings:
    return RedisSettings(**settings.model_dump() | fields)


async def opened(redis: RedisSettings, **queue: Any) -> Queue:
    return await Queue.open(Settings(redis=redis, queue=QueueSettings(**queue)))


async def test_tls_with_least_privileges(
    secure: RedisSettings, queue: Queue, hasty: Queue, empty_redis: Redis, a_spec: ModelSpec
) -> None:
    expected = await life(queue, hasty, a_spec)
    await empty_redis.flushall()
    secure_queue = await opened(secure)
    brief = await opened(secure, lease_s=1e-6, retention_s=1e-6)
    assert await life(secure_queue, brief, a_spec) == expected
    waiting = asyncio.create_task(secure_queue.claim("pool", MODEL, 1, wait_s=20))
    await eventually(lambda: has_subscriber(empty_redis))
    await queue.put(a_job())
    assert len(await waiting) == 1
    keys = ApiKeys(connection.client(secure))
    key, text = await keys.create("acme")
    assert await keys.any() and await keys.find(text) == key and await keys.revoke(key.id)
    assert await secure_queue.announced(lease_s=1, most=1, each=1, busy={}) == []
    secrets = WebhookSecrets(secure_queue.redis)
    secret = await secrets.create("acme")
    assert await secrets.all() == await secrets.of("acme") == [secret]
    assert await secrets.revoke(secret.id)
    for owner in (secure_queue, brief, keys):
        await owner.close()


async def has_subscriber(redis: Redis) -> bool:
    return bool(await redis.client_list(_type="pubsub"))


FORBIDDEN = [
    ("FLUSHALL",),
    ("KEYS", "*"),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
    ("ACL", "LIST"),
    ("SCRIPT", "FLUSH"),
    ("CLIENT", "LIST"),
    ("SHUTDOWN",),
    ("GET", "other"),
    ("SET", "other", "1"),
    ("PUBLISH", "other", "1"),
    ("SUBSCRIBE", "other"),
]


@pytest.mark.parametrize("command", FORBIDDEN, ids=" ".join)
async def test_redis_user_is_denied_other_commands(
    secure: RedisSettings, command: tuple[str, ...]
) -> None:
    async with connection.client(secure) as redis:
        with pytest.raises(NoPermissionError):
            await redis.execute_command(*command)


async def test_changed_password_file_is_reread(
    secure: RedisSettings, empty_redis: Redis, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    queue = await opened(changed(secure, password=None, password_file=file))
    await queue.put(a_job())
    await empty_redis.execute_command("ACL", "SETUSER", "atelier", "resetpass", ">new")
    file.write_text("new\n")
    await empty_redis.client_kill_filter(_type="normal", skipme=True)
    assert len(await queue.list(limit=9)) == 1
    await queue.close()


async def acl(redis: Redis, *rules: str) -> None:
    await redis.execute_command("ACL", "SETUSER", "atelier", *rules)


async def test_a_password_is_rotated_while_clients_work(
    secure: RedisSettings, empty_redis: Redis, tmp_path: Path
) -> None:
    """Both passwords in the file, both at the server, the old one removed there, then here."""
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    settings = changed(secure, password=None, password_file=file)
    queues = [await opened(settings) for _ in range(3)]
    accepted: list[str] = []
    is_over = asyncio.Event()

    async def put(queue: Queue) -> None:
        while not is_over.is_set():
            accepted.append((await queue.put(a_job()))[0].id)

    putting = [asyncio.create_task(put(queue)) for queue in queues]

    async def goes_on(number: int) -> bool:
        assert not any(task.done() for task in putting), [task for task in putting if task.done()]
        return len(accepted) >= number

    async def step() -> None:
        """Make all clients log in again several times, and wait for their progress."""
        for _ in range(5):
            await empty_redis.client_kill_filter(_type="normal", skipme=True)
            target = len(accepted) + 10
            await eventually(lambda: goes_on(target))  # noqa: B023 - awaited here

    file.write_text(f"{PASSWORD}\n\nnew\n")
    await step()
    await acl(empty_redis, ">new")
    await step()
    await acl(empty_redis, f"<{PASSWORD}")
    await step()
    file.write_text("new\n")
    await step()
    is_over.set()
    await asyncio.gather(*putting)
    assert len(await queues[0].list(limit=10_000)) == len(set(accepted))
    for queue in queues:
        await queue.close()


async def test_second_password_is_tried_if_the_first_is_rejected(
    secure: RedisSettings, empty_redis: Redis
) -> None:
    both = changed(secure, next_password="new")
    for rules in ((">new",), (f"<{PASSWORD}",)):
        await (await opened(both)).close()
        await acl(empty_redis, *rules)
    await (await opened(both)).close()
    with pytest.raises(ConfigError, match="denies access"):
        await opened(secure)
    await acl(empty_redis, "<new", ">other")
    with pytest.raises(ConfigError, match="denies access"):
        await opened(both)


async def test_acceptance_waits_for_replicas_with_the_least_rights(secure: RedisSettings) -> None:
    queue = await opened(secure, wait_replicas=1, wait_replicas_s=0.1)
    with pytest.raises(Unconfirmed, match="0 of 1 replicas confirmed put"):
        await queue.put(a_job())
    await queue.close()


async def test_missing_password_file_is_retried_like_a_lost_redis(
    secure: RedisSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    settings = changed(secure, password=None, password_file=file)
    async with connection.client(settings) as redis:
        file.rename(tmp_path / "away")
        with pytest.raises(ConnectionError, match=r"cannot read .*No such file"):
            await redis.ping()
        with pytest.raises(ConfigError, match=r"redis\.password.*cannot read .*No such file"):
            await connection.connect(settings)
        (tmp_path / "away").rename(file)
        assert await redis.ping()
    assert not caplog.records


async def test_a_server_that_wants_a_certificate(
    redis_url: str, secure: RedisSettings, certificates: Certificates
) -> None:
    client_cert = {"cert_file": certificates.file("client"), "key_file": certificates.key("client")}
    context = certificates.context()
    context.verify_mode = ssl.CERT_REQUIRED
    async with behind_tls(redis_url, context) as port:
        settings = changed(secure, url=f"rediss://localhost:{port}")
        authenticated = await opened(changed(settings, **client_cert))
        await authenticated.close()
        with pytest.raises(ConfigError, match=r"redis\.url: (TLS with|no Redis answers)"):
            await opened(settings)


async def test_untrusted_server_certificate_is_rejected(
    secure: RedisSettings, tmp_path: Path
) -> None:
    other = Certificates(tmp_path)
    for ca_file in (other.file("ca"), None):
        with pytest.raises(ConfigError, match="certificate verify failed") as error:
            await opened(changed(secure, ca_file=ca_file))
        assert "redis.url" in str(error.value) and PASSWORD not in str(error.value)


async def test_a_server_of_another_name(
    secure: RedisSettings, certificates: Certificates, redis_url: str
) -> None:
    async with behind_tls(redis_url, certificates.context("elsewhere")) as port:
        with pytest.raises(ConfigError, match="IP address mismatch"):
            await opened(changed(secure, url=f"rediss://127.0.0.1:{port}"))


async def test_a_server_whose_certificate_has_expired(
    secure: RedisSettings, redis_url: str, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    certificates.expire("server")
    async with behind_tls(redis_url, certificates.context()) as port:
        settings = changed(
            secure, url=f"rediss://127.0.0.1:{port}", ca_file=certificates.file("ca")
        )
        with pytest.raises(ConfigError, match=r"TLS with .* certificate has expired"):
            await opened(settings)


async def test_plaintext_to_a_tls_server_is_reported(port: int) -> None:
    plain = RedisSettings(url=f"redis://127.0.0.1:{port}")
    async with connection.client(plain) as redis:
        with pytest.raises(connection.RedisUnreachable, match="rediss:// if it requires TLS"):
            await connection.check(redis, plain)


async def test_tls_to_a_plaintext_server_is_reported(redis_url: str) -> None:
    async with behind_tls(redis_url, None) as port:
        settings = RedisSettings(url=f"rediss://127.0.0.1:{port}")
        async with connection.client(settings) as redis:
            with pytest.raises(ConfigError, match=r"redis:// if (it|the server) uses no TLS"):
                await connection.check(redis, settings)


async def test_single_server_ca_needs_no_host_name(
    secure: RedisSettings, certificates: Certificates, redis_url: str, tmp_path: Path
) -> None:
    """Example: Memorystore, whose certificate does not contain the IP that clients connect to."""
    async with behind_tls(redis_url, certificates.context("client")) as port:
        settings = changed(secure, url=f"rediss://127.0.0.1:{port}")
        with pytest.raises(ConfigError, match="certificate verify failed"):
            await opened(settings)
        nameless = changed(settings, check_name=False)
        await (await opened(nameless)).close()
        with pytest.raises(ConfigError, match="certificate verify failed"):
            await opened(changed(nameless, ca_file=Certificates(tmp_path).file("ca")))


@pytest.mark.parametrize("fields", [{"password": "wrong"}, {"username": "nobody"}])
async def test_rejected_login_names_the_setting(
    secure: RedisSettings, fields: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=r"redis\.username, redis\.password") as error:
        await opened(changed(secure, **fields))
    assert PASSWORD not in str(error.value) and "wrong" not in str(error.value)


async def test_missing_acl_rights_are_reported(secure: RedisSettings, empty_redis: Redis) -> None:
    await empty_redis.execute_command("ACL", "SETUSER", "atelier", "-info")
    with pytest.raises(ConfigError, match="the rights in its ACL"):
        await opened(secure)


async def test_supervisor_passes_credentials_without_leaking_them(
    secure: RedisSettings, queue: Queue, a_spec: ModelSpec, tmp_path: Path
) -> None:
    """Start a front end with API keys and webhooks, so that every Redis client is in use."""
    await queue.register("cold", a_spec, ready=False)
    settings = Settings(
        redis=secure,
        state_dir=tmp_path,
        log_level="debug",
        server={"port": 0, "keys": True},
        webhooks={"secret": "whsec_" + "c2VjcmV0" * 4},
    )
    inherited = {name: v for name, v in os.environ.items() if not name.startswith("ATELIER_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "atelier", "serve"),
        env=settings_environment(settings, inherited),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    log = ""
    while not (match := re.search(r"running on (http://\S+)", log)):
        line = (await process.stderr.readline()).decode()
        assert line, log
        log += line
    keys = ApiKeys(connection.client(secure))
    _, key = await keys.create("acme")
    await keys.close()
    async with httpx.AsyncClient(base_url=match[1], trust_env=False) as http:
        assert (await http.get("/v1/models")).status_code == 401
        answer = await http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 200 and answer.json()["data"]
    process.terminate()
    log += (await process.communicate())[1].decode()
    assert process.returncode == 0
    assert "Traceback" not in log
    assert PASSWORD not in log and key not in log

"""The Dockerfiles match the project: sources, locks, users, ports, commands. Nothing is built here;
test_images.py builds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import atelier
from deploy.cli import serve
from service.settings.server import ServerSettings
from tests.deploy.docker.context import Context
from tests.deploy.docker.dockerfile import FOLDER, ROOT, Dockerfile, Instruction, filled
from tests.deploy.docker.tools import run
from tools.image_locks import LOCKS, PYTHON, lock_file

IMAGES = ("frontend", "worker-cpu", "worker-cuda", "worker-tpu")
PORTS = {"frontend": ServerSettings().port, "worker": 9100}
USER = "10001:10001"


def of_image(image: str) -> tuple[Dockerfile, dict[str, str]]:
    file, _, accelerator = image.partition("-")
    dockerfile = Dockerfile.read(FOLDER / f"{file}.Dockerfile")
    return dockerfile, {
        **dockerfile.arguments,
        **({"ACCELERATOR": accelerator} if accelerator else {}),
    }


def instructions(image: str, name: str) -> list[Instruction]:
    """All instructions of that name in the image's stages, in order."""
    dockerfile, arguments = of_image(image)
    return [each for stage in dockerfile.chain(arguments) for each in stage.named(name)]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.Dockerfile")), ids=lambda path: path.stem)
def test_hadolint_finds_nothing(path: Path) -> None:
    assert run("hadolint", str(path)) == ""


def test_hadolint_rejects_a_bad_dockerfile(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN cd /tmp && curl x | sh\n")
    assert "DL3006" in run("hadolint", str(bad))


@pytest.mark.parametrize("image", IMAGES)
def test_base_image_has_the_python_of_the_lock(image: str) -> None:
    dockerfile, arguments = of_image(image)
    base = filled(dockerfile.chain(arguments)[0].base, arguments)
    assert re.fullmatch(rf"python:{re.escape(PYTHON)}-slim-\w+", base)


@pytest.mark.parametrize("image", IMAGES)
def test_images_run_as_an_unprivileged_user(image: str) -> None:
    assert instructions(image, "USER")[-1].text == USER
    commands = " ".join(each.text for each in instructions(image, "RUN"))
    user, group = USER.split(":")
    assert f"--gid {group}" in commands and f"--uid {user}" in commands
    assert f"--owner {user} --group {group} /var/lib/atelier /var/cache/atelier" in commands


@pytest.mark.parametrize("image", IMAGES)
def test_images_have_health_checks(image: str) -> None:
    (health,) = instructions(image, "HEALTHCHECK")
    port, file = PORTS[image.partition("-")[0]], "deploy/docker/health_check.py"
    assert f'"-m", "deploy.docker.health_check", "http://127.0.0.1:{port}/healthz"' in health.text
    assert [each.text for each in instructions(image, "EXPOSE")] == [str(port)]
    assert (ROOT / file).is_file()
    every = (FOLDER / f"{image.partition('-')[0]}.Dockerfile").read_text("utf-8")
    assert not re.search(r"\b(curl|wget|apt-get)\b", every)


@pytest.mark.parametrize("image", IMAGES)
def test_image_command_is_valid(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert instructions(image, "ENTRYPOINT")[-1].words == ["atelier"]
    words = instructions(image, "CMD")[-1].words
    if "--help" in words:
        with pytest.raises(SystemExit, match="0"):
            atelier.main(words)
        assert "--pool" in capsys.readouterr().out
        return
    parsed = atelier.parser().parse_args(words)
    assert (parsed.run, parsed.host) == (serve.run, "0.0.0.0")


@pytest.mark.parametrize("image", IMAGES)
def test_copied_files_are_in_the_build_context(image: str) -> None:
    dockerfile, arguments = of_image(image)
    context = Context(ROOT)
    stages = {stage.name for stage in dockerfile.stages}
    for stage in dockerfile.stages:
        for copy in stage.named("COPY"):
            *sources, _ = filled(copy.text, arguments).split()
            if "from" in copy.flags:
                assert copy.flags["from"] in stages
                continue
            for source in sources:
                assert context.matching(source)


@pytest.mark.parametrize("image", IMAGES)
def test_all_that_is_installed_is_locked(image: str) -> None:
    dockerfile, arguments = of_image(image)
    (build,) = [stage for stage in dockerfile.stages if stage.name == "build"]
    runs = " && ".join(each.text for each in build.named("RUN"))
    for command in re.findall(r"pip (?:--\S+ \S+ )?(?:install|wheel) [^&]*", runs):
        assert "--require-hashes" in command or "--no-index" in command
        assert "--no-deps" in command
    copied = filled(" ".join(each.text for each in build.named("COPY")), arguments)
    locks = {lock_file(name).relative_to(ROOT).as_posix() for name in (image, "build")}
    assert locks <= set(copied.split())


def test_every_accelerator_with_a_lock_has_an_image() -> None:
    workers = {name for name in LOCKS if name.startswith("worker-")}
    stages = {stage.name for stage in Dockerfile.read(FOLDER / "worker.Dockerfile").stages}
    assert workers == {stage for stage in stages if stage.startswith("worker-")}
    assert workers | {"frontend"} == set(IMAGES)


def test_only_the_cpu_image_has_the_demo() -> None:
    demo = [
        image
        for image in IMAGES
        if any("demo" in each.text for each in instructions(image, "COPY"))
    ]
    assert demo == ["worker-cpu"]
    dockerfile, _ = of_image("worker-cpu")
    (build,) = [stage for stage in dockerfile.stages if stage.name == "build"]
    assert build.named("RUN")[-1].text.startswith("rm -r models/demo")


@pytest.mark.parametrize(
    "name", ["tests/conftest.py", ".git/HEAD", "docs/operations/redis.md", "openapi.yaml"]
)
def test_unneeded_files_are_not_in_the_build_context(name: str) -> None:
    assert not Context(ROOT).has(ROOT / name)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("service/app.py", True),
        ("deploy/docker/frontend.lock", True),
        ("models/demo/flux/atelier.json", True),
        ("lab/demo/__main__.py", False),
        ("service/__pycache__/app.pyc", False),
        ("__pycache__/atelier.pyc", False),
        ("secrets.env", False),
    ],
)
def test_dockerignore_is_read_as_docker_does(name: str, sent: bool) -> None:
    assert Context(ROOT).has(ROOT / name) == sent

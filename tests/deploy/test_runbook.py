"""The runbook's links, panels, commands and settings exist."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator

import yaml
from pydantic import BaseModel

from service.settings.settings import Settings
from tests.deploy.watching.files import DEPLOY, PANEL_LINK, RUNBOOK, titles

TEXT = RUNBOOK.read_text()
LINK = re.compile(r"\[[^]]+\]\(([^)]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
NAMED = re.compile(r"\b(deploy|statefulset|service)/(atelier-\w+)")
SHORT = {"deploy": "deployment"}
"""Full names of resource kinds that kubectl abbreviates."""
SETTING = re.compile(
    r"`((?:redis|server|limits|queue|safety|store|tenants|models|pools)\.[\w.*]+)`"
)


def anchors(text: str) -> set[str]:
    """Return the anchors that Markdown viewers make of the headings."""
    return {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(text)
    }


def test_links_resolve() -> None:
    links = LINK.findall(TEXT)
    assert len(links) > 60
    for link in links:
        target, _, anchor = link.partition("#")
        if target.startswith("http://localhost:3000"):
            continue  # panels have their own test
        file = RUNBOOK.parent / target if target else RUNBOOK
        assert file.is_file(), link
        assert not anchor or anchor in anchors(file.read_text()), link


def test_panels_are_called_by_their_names() -> None:
    links = PANEL_LINK.findall(TEXT)
    assert len(links) == TEXT.count("(http://localhost:3000")
    names = titles()
    for title, address in links:
        assert names[address] == title


def test_documented_commands_name_cluster_objects() -> None:
    named = {(kind.lower(), name) for kind, name in NAMED.findall(TEXT)}
    assert {name for _, name in named} == {"atelier-frontend", "atelier-redis"}
    base = (DEPLOY / "k8s" / "base").glob("*.yaml")
    manifests = [manifest for file in base for manifest in yaml.safe_load_all(file.read_text())]
    kinds = {
        (manifest["kind"].lower(), manifest["metadata"]["name"])
        for manifest in manifests
        if "metadata" in manifest
    }
    assert {(SHORT.get(kind, kind), name) for kind, name in named} <= kinds


def test_settings_exist() -> None:
    named = set(SETTING.findall(TEXT))
    assert len(named) > 10
    assert named <= set(settings(Settings, ""))


def settings(section: type[BaseModel], before: str) -> Iterator[str]:
    """Yield setting names as the documents write them: `pools.*.slots`."""
    for name, field in section.model_fields.items():
        yield before + name
        for inner in [field.annotation, *typing.get_args(field.annotation)]:
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                is_table = typing.get_origin(field.annotation) is dict
                yield from settings(inner, f"{before}{name}." + ("*." if is_table else ""))

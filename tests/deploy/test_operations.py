"""Commands and settings that the pages of operations name exist."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

import atelier
from deploy.cli.late_parser import LateParser
from service.settings.settings import Settings
from tests.deploy.test_runbook import settings
from tests.deploy.watching.files import RUNBOOK, dashboards, panels, rules

PAGES = {page.name: page.read_text() for page in sorted(RUNBOOK.parent.glob("*.md"))}
COMMAND = re.compile(r"`(atelier [^`\n]+)`|^(?:.* -- )?(atelier [^`\n]+)$", re.MULTILINE)
SETTING = re.compile(rf"`((?:{'|'.join(Settings.model_fields)})\.[\w.*]+)`")
EXPECTED = {"day-2.md", "gke.md", "operators.md", "redis.md", "runbook.md", "usage.md"}
"""Pages that must be among those that name commands."""
FILES = {"site.env", "tracing.env"}
METRICS = (RUNBOOK.parents[1] / "reference" / "metrics.md").read_text()
PLACE = re.compile(r"\*(Service|Pools|Cost)\*((?:(?:, | and )\"[^\"]+\"[^;|,*]*)+)")
"""Pattern of a dashboard's name followed by titles of its panels."""


def commands(page: str) -> list[str]:
    return [inline or line for inline, line in COMMAND.findall(PAGES[page])]


def unknown(command: str) -> list[str]:
    """Subcommands and options of a command that its parser lacks; values are not checked."""
    parser, wrong = atelier.parser(), []
    for word in shlex.split(command.replace("…", ""), comments=True)[1:]:
        if isinstance(parser, LateParser):
            parser.complete()
        acts = subcommands(parser)
        if word.startswith("--"):
            if word.partition("=")[0] not in parser._option_string_actions:
                wrong.append(word)
        elif acts:
            if word not in acts:
                return [*wrong, word]
            parser = acts[word]
    return wrong


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [item for item in parser._actions if isinstance(item, argparse._SubParsersAction)]
    return {name: act for action in actions for name, act in action.choices.items()}


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    named = commands(page)
    assert named or page not in EXPECTED
    assert [(command, wrong) for command in named if (wrong := unknown(command))] == []


@pytest.mark.parametrize("page", PAGES)
def test_settings_exist(page: str) -> None:
    named = {re.sub(r"\bNAME\b", "*", name) for name in SETTING.findall(PAGES[page])}
    assert named - FILES <= {*settings(Settings, "")}


def test_answers_to_operators_questions_exist() -> None:
    """Dashboards with the named panels, metrics and alerts."""
    table = PAGES["day-2.md"].partition("## Where to look")[2].partition("\n## ")[0]
    titles = {
        dashboard["title"].removeprefix("Atelier: "): {
            panel["title"] for panel in panels(dashboard)
        }
        for dashboard in dashboards().values()
    }
    placed = [
        (place.lower(), panel)
        for place, list_ in PLACE.findall(table)
        for panel in re.findall(r'"([^"]+)"', list_)
    ]
    assert len(placed) == table.count('"') // 2 > 20, "a panel without its dashboard"
    assert [(place, panel) for place, panel in placed if panel not in titles[place]] == []
    assert set(re.findall(r"\bAtelier[A-Z]\w+", table)) <= rules("alert").keys()
    assert [
        name for name in re.findall(r"`(atelier_\w+)`", table) if f"`{name}`" not in METRICS
    ] == []


@pytest.mark.parametrize("command", ["atelier backups", "atelier keys create --tenent me"])
def test_a_wrong_command_is_found(command: str) -> None:
    assert unknown(command)

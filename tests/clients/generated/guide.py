"""Programs of docs/guides/generated-clients.md, as its readers copy them."""

from __future__ import annotations

import re
import shlex

from tests.test_arrows import ROOT

GUIDE = (ROOT / "docs" / "guides" / "generated-clients.md").read_text("utf-8")


def block(language: str) -> str:
    """Return the document's only code block in a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return str(text)


def command(name: str) -> list[str]:
    """Arguments of the command that generates a client."""
    (line,) = re.findall(rf"^(?:npx )?{name} (.*)$", GUIDE, re.MULTILINE)
    return shlex.split(line)

"""Reference page of `atelier.toml`: every section and key, from the settings' schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from service.settings.settings import Settings
from tools.reference.markdown import Schema, table, type_of

HEAD = """# Configuration

Written by `make reference` from `service/settings/`. Values come from the command line, then from the environment, then from `atelier.toml` (`--config FILE` or `ATELIER_CONFIG`). An unknown key or a wrong value stops the start with its name. Durations end in `_s`, sizes in `_px` or `_bytes`.

The variable of a key is `ATELIER_` and its path in capitals, joined by two underscores: `ATELIER_SERVER__PORT=80` sets `[server] port`, `ATELIER_POOLS__FLUX__SLOTS=2` sets `[pools.flux] slots`. Lists and tables are JSON there; `null` leaves a key out. `ATELIER_API_KEY` is no setting: `atelier generate` and `atelier jobs` send it.
"""  # noqa: E501 - a paragraph is a line there
COLUMNS = ("key", "type", "default", "meaning")


def as_markdown() -> str:
    """Return the reference page of the settings."""
    document = Settings.model_json_schema()
    sections = [f"## {title}\n\n{text}" for title, text in _sections(document)]
    return f"{HEAD}\n" + "\n\n".join(sections) + "\n"


def _sections(document: Schema) -> Iterator[tuple[str, str]]:
    """Yield titles and tables of settings sections, top-level keys first."""
    definitions, below = document["$defs"], {}
    plain = {}
    for name, schema in document["properties"].items():
        section = _section(schema, definitions)
        if section is None:
            plain[name] = schema
        else:
            title = f"{name}.NAME" if "additionalProperties" in schema else name
            below[title] = (schema.get("description", ""), section)
    yield "Top level", _table(plain, (), definitions)
    for title, (text, section) in below.items():
        yield from _nested(title, text, section, definitions)


def _nested(
    title: str, text: str, section: Schema, definitions: Schema
) -> Iterator[tuple[str, str]]:
    inner = {
        name: subsection
        for name, schema in section["properties"].items()
        if (subsection := _section(schema, definitions)) is not None
    }
    intro = " ".join(filter(None, (text, section.get("description", ""))))
    head = f"{' '.join(intro.split())}\n\n" if intro else ""
    yield (
        f"`[{title}]`",
        head + _table(section["properties"], section.get("required", ()), definitions),
    )
    for name, subsection in inner.items():
        yield from _nested(f"{title}.{name}", "", subsection, definitions)


def _section(schema: Schema, definitions: Schema) -> Schema | None:
    """Return the schema of a key's section, or None."""
    for kind in schema.get("anyOf", [schema]):
        inside = kind.get("additionalProperties") or kind.get("items") or kind
        if isinstance(inside, dict) and "$ref" in inside:
            target: Schema = definitions[inside["$ref"].rpartition("/")[2]]
            if "properties" in target:
                return target
    return None


def _table(properties: Schema, required: Any, definitions: Schema) -> str:
    rows = (
        (
            f"`{name}`",
            type_of(schema, definitions),
            "required" if name in required else _default(schema),
            schema.get("description", ""),
        )
        for name, schema in properties.items()
    )
    return table(COLUMNS, rows)


def _default(schema: Schema) -> str:
    value = schema.get("default")
    return "" if value in (None, {}, []) else f"`{json.dumps(value)}`"

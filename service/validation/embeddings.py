"""Embeddings (textual inversion) that a request's prompts name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.spec.embeddings import INTRODUCTION, PROMPTS, mentions
from models.spec.lora import Lora, RequestedLora, always, without_ending
from models.spec.model_spec import ModelSpec
from service.jobs.model.job import FieldWarning

MAX_NAMED = 8
"""Maximum number of unknown embeddings of a field that warnings name."""


def requested_embeddings(
    fields: Mapping[str, Any], spec: ModelSpec, offered: Sequence[Lora]
) -> tuple[RequestedLora, ...]:
    """List the embeddings that the prompts of a request name, by name.

    Args:
        offered: adapters and embeddings that the tenant may name, for any model.
    """
    usable = usable_embeddings(fields, spec, offered)
    named = {
        mention.name
        for field in PROMPTS
        for mention in mentions(str(fields.get(field) or ""), usable)
        if mention.is_known
    }
    return tuple(usable[name] for name in sorted(named))


def usable_embeddings(
    fields: Mapping[str, Any], spec: ModelSpec, offered: Sequence[Lora]
) -> dict[str, RequestedLora]:
    """Return the embeddings that a request's prompts may name, by name.

    They are the model's, and those in the files of the request's adapters, which come second.
    """
    if not spec.embedding_sizes:
        return {}
    usable = [entry for entry in offered if spec.accepts_adapter(entry) and entry.error is None]
    chosen = {without_ending(entry["name"]) for entry in fields.get("loras") or ()}
    bundled = {
        name: _requested(name, lora, count)
        for lora in usable
        if chosen & {lora.name, without_ending(lora.name)}
        for name, count in lora.embeddings.items()
    }
    single = {
        item.name: _requested(item.name, item, item.vectors) for item in usable if item.vectors
    }
    return bundled | single


def _requested(name: str, source: Lora, vectors: int) -> RequestedLora:
    """Return a prompt's embedding in the form of the queue's adapters. Args: source: its file."""
    return RequestedLora(
        name=name,
        digest=source.digest,
        pages=0,
        networks=source.networks,
        scales=always(1.0),
        vectors=vectors,
    )


def unknown_embeddings(
    fields: Mapping[str, Any], spec: ModelSpec, offered: Sequence[Lora]
) -> Iterator[FieldWarning]:
    """Warn about `embedding:NAME` in a prompt without an embedding of that name."""
    usable = usable_embeddings(fields, spec, offered)
    for field in PROMPTS:
        unknown = [
            mention.name
            for mention in mentions(str(fields.get(field) or ""), usable)
            if not mention.is_known
        ]
        for name in [*dict.fromkeys(unknown)][:MAX_NAMED]:
            yield FieldWarning(field=field, message=_message(name, spec, [*usable]))


def _message(name: str, spec: ModelSpec, usable: Sequence[str]) -> str:
    word = f"{INTRODUCTION}{name[:80]}"
    if not spec.embedding_sizes:
        return f"{word} is read as text: the model {spec.name!r} reads no embeddings"
    available = f"; available: {', '.join(sorted(usable)[:8])}" if usable else ""
    return f"{word} is left out: there is no embedding {name[:80]!r} for this model{available}"

"""Embeddings that prompts name: the job's entries, warnings and errors."""

from __future__ import annotations

import pytest

from models.spec.model_spec import ModelSpec
from service.admission.parse import parse_body
from service.errors.problems import Invalid
from service.settings.limits import LimitSettings
from service.validation.resolved_fields import ResolvedFields, resolve
from tests.service.adapters import INK, TAKING

SIZES = {"clip": 8, "clip_2": 12}
READING = TAKING.model_copy(update={"embedding_sizes": SIZES})
EMBEDDING = INK.model_copy(
    update={"name": "mood", "rank": 0, "vectors": 4, "networks": ("clip", "clip_2")}
)
OTHERS = EMBEDDING.model_copy(update={"name": "hue", "model": "other"})
UNUSABLE = EMBEDDING.model_copy(update={"name": "bad", "error": "NaN"})
OFFERED = [INK, EMBEDDING, OTHERS, UNUSABLE]


def resolved(spec: ModelSpec = READING, **fields: object) -> ResolvedFields:
    return resolve(parse_body({"prompt": "a cat", **fields}), spec, LimitSettings(), loras=OFFERED)


def warnings(result: ResolvedFields) -> dict[str, str]:
    return {warning.field: warning.message for warning in result.warnings}


@pytest.mark.parametrize("prompt", ["a cat, mood", "Mood", "embedding:mood.safetensors, a cat"])
def test_a_prompt_selects_an_embedding(prompt: str) -> None:
    result = resolved(prompt=prompt)
    (entry,) = result.loras
    assert (entry.name, entry.digest, entry.pages, entry.vectors) == ("mood", INK.digest, 0, 4)
    assert result.fields["prompt"] == prompt and not warnings(result)


def test_adapters_and_embeddings_are_used_together() -> None:
    result = resolved(negative_prompt="mood", loras=[{"name": "ink"}])
    assert [entry.name for entry in result.loras] == ["ink", "mood"]
    assert TAKING.bucket({}, result.loras) == TAKING.bucket({}, result.loras[:1])


def test_prompts_without_exact_names_select_no_embedding() -> None:
    for prompt in ("moody", "a cat", "hue", "bad"):
        assert resolved(prompt=prompt).loras == ()
    assert resolved(TAKING, prompt="mood").loras == ()


def test_adapter_includes_its_embeddings() -> None:
    ink = INK.model_copy(update={"embeddings": {"ink-style": 2}})
    body = {"prompt": "a cat, ink-style", "loras": [{"name": "ink.safetensors"}]}
    result = resolve(parse_body(body), READING, LimitSettings(), loras=[ink])
    assert [(entry.name, entry.digest, entry.vectors) for entry in result.loras] == [
        ("ink", INK.digest, 0),
        ("ink-style", INK.digest, 2),
    ]
    body = {"prompt": "a cat, ink-style"}
    assert resolve(parse_body(body), READING, LimitSettings(), loras=[ink]).loras == ()


def test_unknown_names_are_warnings() -> None:
    result = resolved(prompt="embedding:hue, embedding:hue", negative_prompt="embedding:bad")
    message = "embedding:{0} is left out: there is no embedding '{0}' for this model"
    assert warnings(result) == {
        "prompt": f"{message.format('hue')}; available: mood",
        "negative_prompt": f"{message.format('bad')}; available: mood",
    }
    others = warnings(resolved(TAKING, prompt="embedding:mood"))
    assert "is read as text: the model" in others["prompt"]


def test_embedding_is_not_an_adapter() -> None:
    with pytest.raises(Invalid) as error:
        resolved(loras=[{"name": "mood"}])
    (problem,) = error.value.errors
    assert problem.field == "loras.0.name"
    assert problem.message == "'mood' is an embedding: write its name into the prompt instead"

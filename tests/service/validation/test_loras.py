"""Validation of a request's LoRA adapters: errors, and the adapters of the job."""

from __future__ import annotations

import time
from typing import Any

import pytest

from models.spec.lora import Lora, ScaleInterval
from models.spec.model_spec import ModelSpec
from service.admission.parse import parse_body
from service.errors.problems import Invalid
from service.settings.limits import LimitSettings
from service.validation.resolved_fields import ResolvedFields, resolve
from tests.service.adapters import BROKEN, INK, OIL, OTHER, SPECS_LORAS, TAKING
from tests.service.standin import SPEC

OFFERED = [lora for lora in (*SPECS_LORAS.values(), *OTHER.loras.values()) if not lora.tenants]
"""Adapters offered to a tenant without access to `secret`."""


COMPARED_S = 0.5
"""Limit of the processor time for comparing hostile names, which take 0.05 s."""


def resolved(
    *loras: dict[str, Any], spec: ModelSpec = TAKING, offered: list[Lora] = OFFERED, **limits: int
) -> ResolvedFields:
    body = parse_body({"prompt": "a cat", "loras": [*loras]})
    return resolve(body, spec, LimitSettings(**limits), loras=offered)


def refused(*loras: Any, **rest: Any) -> dict[str, str]:
    with pytest.raises(Invalid) as error:
        resolved(*loras, **rest)
    return {problem.field: problem.message for problem in error.value.errors}


def test_a_number_is_one_interval() -> None:
    (lora,) = resolved({"name": "ink", "scale": -0.8}).loras
    assert (lora.name, lora.digest, lora.pages, lora.networks) == (
        "ink",
        INK.digest,
        1,
        ("transformer",),
    )
    assert lora.scales == (ScaleInterval(start=0, stop=1, scale=-0.8),)


def test_omitted_adapter_scale_is_one() -> None:
    result = resolved({"name": "ink"})
    assert result.loras[0].scales[0].scale == 1
    assert result.fields["loras"] == [{"name": "ink", "scale": 1.0}]


def test_intervals_are_sorted_and_empty_ones_left_out() -> None:
    intervals = [
        {"from": 0.5, "to": 1, "scale": 2},
        {"from": 0.2, "to": 0.5, "scale": 0},
        {"from": 0, "to": 0.2, "scale": 1},
    ]
    result = resolved({"name": "ink", "scale": intervals})
    assert result.loras[0].scales == (
        ScaleInterval(start=0, stop=0.2, scale=1),
        ScaleInterval(start=0.5, stop=1, scale=2),
    )
    assert result.fields["loras"] == [{"name": "ink", "scale": intervals}], (
        "the request keeps the client's order"
    )
    again = resolved(*result.fields["loras"])
    assert again.loras == result.loras


@pytest.mark.parametrize(
    ("lora", "field", "said"),
    [
        ({"scale": 1}, "loras.0.name", "is required"),
        ({"name": "ink", "weight": 1}, "loras.0.weight", "there is no such field"),
        ({"name": "ink", "scale": 101}, "loras.0.scale", "at most 100"),
        ({"name": "ink", "scale": -101}, "loras.0.scale", "at least -100"),
        ({"name": "ink", "scale": "1"}, "loras.0.scale", "must be a number"),
        ({"name": "ink", "scale": True}, "loras.0.scale", "must be a number"),
        ({"name": "ink", "scale": None}, "loras.0.scale", "must be a number"),
        ({"name": "ink", "scale": []}, "loras.0.scale", "at least 1 entry"),
        ({"name": "ink", "scale": [{"from": 0, "to": 1}]}, "loras.0.scale.0.scale", "required"),
        (
            {"name": "ink", "scale": [{"from": 0.4, "to": 0.4, "scale": 1}]},
            "loras.0.scale.0",
            "from 0.4 must be less than to 0.4",
        ),
        (
            {"name": "ink", "scale": [{"from": 0, "to": 1.1, "scale": 1}]},
            "loras.0.scale.0.to",
            "at most 1",
        ),
        (
            {"name": "ink", "scale": [{"start": 0, "to": 1, "scale": 1}]},
            "loras.0.scale.0.start",
            "there is no such field",
        ),
        (
            {
                "name": "ink",
                "scale": [
                    {"from": 0.3, "to": 1, "scale": 1},
                    {"from": 0, "to": 0.4, "scale": 1},
                ],
            },
            "loras.0.scale",
            "the intervals 0 to 0.4 and 0.3 to 1 overlap",
        ),
        (
            {"name": "ink", "scale": [{"from": 0, "to": 1, "scale": 1}] * 17},
            "loras.0.scale",
            "at most 16 entries",
        ),
    ],
)
def test_a_malformed_entry_is_refused_at_its_field(
    lora: dict[str, Any], field: str, said: str
) -> None:
    errors = refused(lora)
    assert said in errors[field], errors


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_is_finite(scale: float) -> None:
    assert refused({"name": "ink", "scale": scale}).keys() == {"loras.0.scale"}


def test_unknown_name_lists_adapters_by_similarity() -> None:
    assert refused({"name": "onk"}) == {
        "loras.0.name": "the model 'flux-demo' has no adapter 'onk'; available: ink, oil"
    }
    assert refused({"name": "oyl"}, {"name": "nik"}) == {
        "loras.0.name": "the model 'flux-demo' has no adapter 'oyl'; available: oil, ink",
        "loras.1.name": "the model 'flux-demo' has no adapter 'nik'; available: ink, oil",
    }


def test_hostile_names_are_compared_quickly() -> None:
    """All at full length would take three seconds in the event loop."""
    names = ["a" * 98 + f"{number:02}" for number in range(100)]
    many = [INK.model_copy(update={"name": name}) for name in names]
    began = time.thread_time()
    refused(*({"name": "a" * 199 + str(number)} for number in range(8)), offered=many)
    assert time.thread_time() - began < COMPARED_S


def test_long_list_of_names_is_truncated() -> None:
    many = [INK.model_copy(update={"name": f"ink-{number:02}"}) for number in range(20)]
    message = refused({"name": "ink-07b"}, offered=many)["loras.0.name"]
    assert "; available: ink-07, " in message and message.endswith(" and 12 more")


def test_private_adapter_of_another_tenant_looks_unknown() -> None:
    secret, unknown = refused({"name": "secret"}), refused({"name": "never"})
    assert (
        secret["loras.0.name"].replace("secret", "never").partition(";")[0]
        == (unknown["loras.0.name"].partition(";")[0])
    )
    assert resolved({"name": "secret"}, offered=[*SPECS_LORAS.values()]).loras


def test_model_without_adapters_suggests_an_upload() -> None:
    message = refused({"name": "ink"}, offered=[])["loras.0.name"]
    assert message == (
        "there is no adapter 'ink': the model 'flux-demo' has none yet; upload one by POST"
        " /v1/loras"
    )


def test_adapter_of_another_model_is_reported() -> None:
    assert refused({"name": "chalk"}) == {
        "loras.0.name": "the adapter 'chalk' is for the model 'other', not for 'flux-demo'"
    }


def test_models_may_share_a_name() -> None:
    foreign = INK.model_copy(update={"model": "other", "digest": "33" * 32})
    (lora,) = resolved({"name": "ink"}, offered=[foreign, INK]).loras
    assert lora.digest == INK.digest


def test_unusable_adapter_error_states_the_reason() -> None:
    assert refused({"name": "broken"}) == {
        "loras.0.name": f"the adapter 'broken' cannot be used: {BROKEN.error}"
    }


def test_ranks_together_are_bounded() -> None:
    twice = OIL.model_copy(update={"name": "wax", "rank": 17})
    assert refused({"name": "oil"}, {"name": "wax"}, offered=[OIL, twice]) == {
        "loras": "takes rank 144 (oil 112, wax 32; each counts in multiples of 16), and the model"
        " 'flux-demo' allows 128 at once; leave one out"
    }
    assert resolved({"name": "oil"}, {"name": "wax", "scale": 0}, offered=[OIL, twice]).loras


def test_their_number_is_bounded() -> None:
    assert refused({"name": "ink"}, {"name": "oil"}, max_loras=1) == {
        "loras": "has 2 adapters; a request may have 1"
    }


def test_a_name_twice_is_refused() -> None:
    assert refused({"name": "ink"}, {"name": "ink"}) == {
        "loras.1.name": "'ink' occurs twice; name it once, with the sum of its scales"
    }


def test_model_without_adapters_names_the_setting() -> None:
    assert refused({"name": "ink"}, spec=SPEC) == {
        "loras": "the model 'flux-demo' accepts no adapters; its operator can enable them in"
        " models.flux-demo.lora_pages"
    }


@pytest.mark.parametrize("spec", [SPEC, TAKING])
def test_empty_list_counts_as_absent(spec: ModelSpec) -> None:
    result = resolved(spec=spec)
    assert result.loras == () and "loras" not in result.fields


@pytest.mark.parametrize("scale", [0, -0.0, [{"from": 0, "to": 1, "scale": 0}]])
def test_an_adapter_without_effect_is_dropped_with_a_warning(scale: Any) -> None:
    result = resolved({"name": "oil"}, {"name": "ink", "scale": scale})
    assert [lora.name for lora in result.loras] == ["oil"]
    (warned,) = result.warnings
    assert (warned.field, warned.message) == (
        "loras.1",
        "ink has no effect: its scale is 0 in every step",
    )


def test_the_rank_is_part_of_the_bucket() -> None:
    plain, low, high = (
        TAKING.bucket({}, resolved(*loras).loras)
        for loras in ((), ({"name": "ink"},), ({"name": "oil"}, {"name": "ink"}))
    )
    assert low == f"{plain},lora_pages=1" and high == f"{plain},lora_pages=8"

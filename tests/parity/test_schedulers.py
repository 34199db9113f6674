"""Every scheduler compared with diffusers' step by step, over its options.

Each option is varied alone on SDXL's schedule, then several are drawn together. If diffusers raises
or produces NaN, Atelier's scheduler must refuse the options or stay finite.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from models.sampling.beta_schedule import NoiseSchedule
from models.sampling.registry import CLASSES, EVALUATIONS, for_request, from_config, served_config
from models.spec.evaluations import ONE_A_STEP
from models.spec.notices import collected_notices
from tests.parity.distances import largest, relative
from tests.parity.fake_denoising import (
    CLEAN,
    SHAPE,
    Case,
    distance,
    reference_class,
    run_atelier,
    run_diffusers,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.algorithm_types dpmsolver:FutureWarning"),
    pytest.mark.filterwarnings("ignore:__array_.*:DeprecationWarning"),
]

SDXL = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
STEPS = (1, 2, 3, 4, 7, 20, 50)
TABLES: dict[str, Sequence[Any]] = {
    "beta_schedule": ("linear", "squaredcos_cap_v2"),
    "trained_betas": (np.linspace(0.001, 0.015, 1000).tolist(),),
    "num_train_timesteps": (100, 731),
    "prediction_type": ("epsilon", "sample", "v_prediction"),
    "timestep_spacing": ("leading", "linspace", "trailing"),
    "steps_offset": (0, 1),
    "rescale_betas_zero_snr": (True,),
}
CLIPPING: dict[str, Sequence[Any]] = {
    "clip_sample": (False, True),
    "clip_sample_range": (0.7, 2.0),
    "set_alpha_to_one": (False, True),
    "thresholding": (True,),
    "dynamic_thresholding_ratio": (0.9,),
    "sample_max_value": (1.5,),
}
SPACINGS: dict[str, Sequence[Any]] = {
    "use_karras_sigmas": (True,),
    "use_exponential_sigmas": (True,),
    "use_beta_sigmas": (True,),
}
ENDS = {"sigma_min": (0.05,), "sigma_max": (9.0,)}
MULTISTEP: dict[str, Sequence[Any]] = {
    **TABLES,
    **SPACINGS,
    "prediction_type": ("epsilon", "flow_prediction", "sample", "v_prediction"),
    "solver_order": (1, 2, 3),
    "lower_order_final": (False,),
    "final_sigmas_type": ("sigma_min",),
    "thresholding": (True,),
    "dynamic_thresholding_ratio": (0.9,),
    "sample_max_value": (1.5,),
    "use_flow_sigmas": (True,),
    "flow_shift": (3.0, 5.0, 12.0),
}
OPTIONS: Mapping[str, dict[str, Sequence[Any]]] = {
    "EulerDiscreteScheduler": {
        **TABLES,
        **SPACINGS,
        **ENDS,
        "interpolation_type": ("linear", "log_linear"),
        "timestep_type": ("continuous", "discrete"),
        "final_sigmas_type": ("sigma_min", "zero"),
    },
    "EulerAncestralDiscreteScheduler": {
        **TABLES,
        "prediction_type": ("epsilon", "v_prediction"),
    },
    "DDIMScheduler": {**TABLES, **CLIPPING},
    "LCMScheduler": {
        **TABLES,
        **CLIPPING,
        "original_inference_steps": (20, 100),
        "timestep_scaling": (3.0,),
    },
    "DPMSolverMultistepScheduler": {
        **MULTISTEP,
        "algorithm_type": ("dpmsolver", "sde-dpmsolver", "sde-dpmsolver++"),
        "solver_type": ("heun",),
        "euler_at_final": (True,),
        "use_lu_lambdas": (True,),
        "lambda_min_clipped": (-2.0,),
    },
    "UniPCMultistepScheduler": {
        **MULTISTEP,
        **ENDS,
        "predict_x0": (False,),
        "solver_type": ("bh1",),
        "disable_corrector": ([0], [1, 2]),
        "shift_terminal": (0.1,),
    },
    "FlowMatchEulerDiscreteScheduler": {
        **SPACINGS,
        "shift": (3.0, 5.0, 12.0),
        "num_train_timesteps": (500,),
        "shift_terminal": (0.1,),
    },
}
BETAS = {key: values for key, values in TABLES.items() if key != "rescale_betas_zero_snr"}
NOISY: dict[str, Sequence[Any]] = {
    **BETAS,
    **SPACINGS,
    "prediction_type": ("epsilon", "v_prediction"),
}
FIRST = frozenset(OPTIONS)
"""Schedulers whose options the gate varies; those of the others are varied every night."""
OPTIONS = {
    **OPTIONS,
    "HeunDiscreteScheduler": {
        **NOISY,
        "prediction_type": ("epsilon", "sample", "v_prediction"),
        "clip_sample": (True,),
        "clip_sample_range": (0.7,),
    },
    "KDPM2DiscreteScheduler": NOISY,
    "KDPM2AncestralDiscreteScheduler": NOISY,
    "DPMSolverSDEScheduler": NOISY,
    "LMSDiscreteScheduler": {**NOISY, "prediction_type": ("epsilon", "sample", "v_prediction")},
    "DEISMultistepScheduler": {
        **BETAS,
        **SPACINGS,
        "prediction_type": ("epsilon", "sample", "v_prediction"),
        "solver_order": (1, 2, 3),
        "lower_order_final": (False,),
        "thresholding": (True,),
        "dynamic_thresholding_ratio": (0.9,),
        "sample_max_value": (1.5,),
    },
    "DPMSolverSinglestepScheduler": {
        **{
            key: of for key, of in MULTISTEP.items() if key not in ("use_flow_sigmas", "flow_shift")
        },
        **{key: BETAS[key] for key in ("beta_schedule", "trained_betas")},
        "prediction_type": ("epsilon", "sample", "v_prediction"),
        "algorithm_type": ("sde-dpmsolver++",),
        "solver_type": ("heun",),
        "lower_order_final": (False, True),
    },
    "PNDMScheduler": {
        **BETAS,
        "prediction_type": ("epsilon", "v_prediction"),
        "set_alpha_to_one": (False, True),
    },
    "DDPMScheduler": {
        **TABLES,
        **{key: of for key, of in CLIPPING.items() if key != "set_alpha_to_one"},
        "variance_type": ("fixed_large", "fixed_small", "fixed_small_log"),
    },
    "TCDScheduler": {
        **TABLES,
        "original_inference_steps": (20, 100),
    },
    "FlowMatchHeunDiscreteScheduler": {
        "shift": (3.0, 5.0, 12.0),
        "num_train_timesteps": (500,),
    },
}
for _unspaced in ("timestep_spacing", "steps_offset", "rescale_betas_zero_snr"):
    OPTIONS["DPMSolverSinglestepScheduler"].pop(_unspaced)
WITH_ETA = ("DDIMScheduler", "TCDScheduler")
MATRIX = [
    pytest.param(name, marks=() if name in FIRST else pytest.mark.nightly) for name in OPTIONS
]
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
LOWEST = {"final_sigmas_type": "sigma_min"}
PAIRS: Mapping[str, Sequence[dict[str, Any]]] = {
    "EulerDiscreteScheduler": (
        {"timestep_type": "continuous", "prediction_type": "v_prediction"},
        {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction"},
        {
            "rescale_betas_zero_snr": True,
            "prediction_type": "v_prediction",
            "timestep_spacing": "trailing",
        },
    ),
    "DPMSolverMultistepScheduler": (
        FLOW,
        {**FLOW, "flow_shift": 5.0, "algorithm_type": "sde-dpmsolver++"},
        {"algorithm_type": "dpmsolver", **LOWEST},
        {"algorithm_type": "dpmsolver", "solver_order": 3, "prediction_type": "sample", **LOWEST},
        {"algorithm_type": "dpmsolver", "thresholding": True, "solver_type": "heun", **LOWEST},
        {"algorithm_type": "sde-dpmsolver", **LOWEST},
        {"algorithm_type": "sde-dpmsolver", "solver_type": "heun", **LOWEST},
        {"algorithm_type": "sde-dpmsolver++", "solver_type": "heun", "solver_order": 3},
        {"algorithm_type": "sde-dpmsolver++", "use_karras_sigmas": True},
        {"beta_schedule": "squaredcos_cap_v2", "lambda_min_clipped": -5.1},
        {"variance_type": "fixed_small"},
    ),
    "UniPCMultistepScheduler": (
        FLOW,
        {**FLOW, "flow_shift": 3.0},
        {**FLOW, "flow_shift": 5.0, "solver_order": 3, "lower_order_final": False, **LOWEST},
        {**FLOW, "flow_shift": 12.0},
        {**FLOW, "flow_shift": 3.0, "shift_terminal": 0.1},
        {**FLOW, "use_karras_sigmas": True},
        {"predict_x0": False, **LOWEST},
        {"predict_x0": False, "prediction_type": "v_prediction", **LOWEST},
        {"predict_x0": False, "prediction_type": "sample", "solver_order": 3, **LOWEST},
        {"solver_type": "bh1", **LOWEST},
        {"solver_type": "bh1", "solver_order": 3, **LOWEST},
    ),
}
"""Options that have an effect only in combination."""
CUSTOM: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "EulerDiscreteScheduler": (
        {"timesteps": [999, 845, 730, 587, 443, 310, 193, 116, 53, 13]},
        {"timesteps": [700.5, 20.25]},
        {"sigmas": [14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.0]},
        {"sigmas": [5.0, 1.5, 0.3]},
    ),
    "DPMSolverMultistepScheduler": ({"timesteps": [999, 845, 587, 310, 53, 13]},),
    "DDPMScheduler": ({"timesteps": [999, 845, 587, 310, 53, 13]}, {"timesteps": [700, 20, 0]}),
    "TCDScheduler": ({"timesteps": [999, 599, 199]}, {"timesteps": [739, 19]}),
    "LCMScheduler": ({"timesteps": [999, 599, 199]}, {"timesteps": [739, 19]}),
    "FlowMatchEulerDiscreteScheduler": (
        {"sigmas": [1.0, 0.7, 0.2]},
        {"timesteps": [1000, 600, 300]},
    ),
}
"""Explicit timesteps and sigmas; the long lists are diffusers' own examples for SDXL."""


def base(name: str) -> dict[str, Any]:
    if name.startswith("FlowMatch"):
        return {}
    return SDXL | ({"skip_prk_steps": True} if name == "PNDMScheduler" else {})


def strengths(steps: int) -> list[float | None]:
    return [None, *(strength for strength in (0.3, 0.6, 1.0) if int(steps * strength))]


def one_by_one(name: str) -> Iterator[Case]:
    """Each value of each option alone, with few and many steps, from noise and from an image."""
    singles = [{key: value} for key, values in OPTIONS[name].items() for value in values]
    for options, steps in itertools.product([{}, *singles, *PAIRS.get(name, ())], (4, 20)):
        for strength in (None, 0.6):
            eta = 0.6 if name in WITH_ETA and steps == 4 else None
            yield Case(name, base(name) | options, steps, strength, eta=eta)


def together(name: str, count: int) -> Iterator[Case]:
    """Random combinations of options, the same in every run."""
    draw = random.Random(name)
    while count:
        options = base(name)
        for key, values in OPTIONS[name].items():
            if draw.random() < 0.25:
                options[key] = draw.choice(values)
        if sum(key in options for key in SPACINGS) > 1 or not sensible(options):
            continue
        if "bh1" in options.values() or needs_lowest(options):  # NaN in the reference otherwise
            options |= LOWEST
        steps = draw.choice(STEPS[name == "PNDMScheduler" :])  # which needs 2
        eta = draw.choice((0.0, 0.5, 1.0)) if name in WITH_ETA else None
        yield Case(name, options, steps, draw.choice(strengths(steps)), eta=eta)
        count -= 1


def needs_lowest(options: Mapping[str, Any]) -> bool:
    """Methods that solve for the noise cannot end at sigma 0."""
    return not options.get("predict_x0", True) or options.get("algorithm_type", "").endswith(
        "solver"
    )


def sensible(options: Mapping[str, Any]) -> bool:
    """Return whether these options permit a comparison."""
    zero_snr = options.get("rescale_betas_zero_snr", False)
    if "trained_betas" in options and "num_train_timesteps" in options:
        return False
    if zero_snr and options.get("prediction_type", "epsilon") == "epsilon":
        return False  # epsilon is undefined at zero SNR
    # Truncated at exactly the top timestep, where an ulp of torch's square root decides.
    respaced = any(options.get(key) for key in (*SPACINGS, "use_lu_lambdas"))
    return not (options.get("beta_schedule") == "squaredcos_cap_v2" and respaced)


def tolerance(case: Case) -> float:
    """Tolerance of float32. A step from a high to a low sigma cancels digits, the more the longer
    it is.

    The last bit of the tables' square roots differs between machines, in torch too.
    """
    options = case.options
    high = options.get("beta_schedule") == "squaredcos_cap_v2"  # sigmas of many thousands
    high = high or options.get("rescale_betas_zero_snr", False)  # 4096
    # A flow's first alpha is 1e-6, and methods that solve for the noise divide by it.
    high = high or (options.get("use_flow_sigmas", False) and needs_lowest(options))
    if high:  # ancestral steps subtract the squares of two sigmas
        return 1e-2 if "Ancestral" in case.name else 1e-3
    if options.get("algorithm_type") == "sde-dpmsolver++" and "Singlestep" in case.name:
        # The reference's factor of the second derivative does not vanish with the step's length.
        return 1e-2 if options.get("thresholding") else 1e-4
    few = case.steps < 7
    if not few and case.name in ("LMSDiscreteScheduler", "DEISMultistepScheduler"):
        few = options.get("beta_schedule") == "scaled_linear"  # its integrals round in float32
    if options.get("beta_schedule") == "linear" or "trained_betas" in options:  # up to 157
        return 1e-3 if few else 1e-4
    return 1e-4 if few else 1e-5


def check(case: Case) -> float:
    """Compare one case and return its distance; 0 if there is nothing to compare."""
    expected = run_diffusers(case)
    if expected is None:
        assert refused_or_finite(case), case
        return 0.0
    output = run_atelier(case, scheduler_of(case))
    is_integral = np.array_equal(expected.timesteps, expected.timesteps.round())
    is_integral = is_integral and "KDPM2" not in case.name  # between sigmas: fractions
    if is_integral:
        np.testing.assert_array_equal(output.timesteps, expected.timesteps, err_msg=str(case))
    else:
        atol = 1e-3 if case.name in FIRST else 2e-3  # of up to 1000, by interpolated logarithms
        np.testing.assert_allclose(output.timesteps, expected.timesteps, rtol=1e-5, atol=atol)
    for estimate, clean in zip(output.denoised, expected.denoised, strict=False):
        assert largest(estimate, clean) < 1e-2, case  # for previews
    return distance(output, expected)


def refused_or_finite(case: Case) -> bool:
    try:
        return run_atelier(case, scheduler_of(case)).finite
    except ValueError:
        return True


def scheduler_of(case: Case) -> Any:
    if case.eta is None:
        return from_config(case.config)
    return for_request(case.config, {"name": case.name, "eta": case.eta})


def check_all(cases: Iterator[Case]) -> None:
    distances = [(check(case), case) for case in cases]
    wrong = [(far, case) for far, case in distances if far > tolerance(case)]
    assert not wrong, "\n".join(f"{far:.1e} {case}" for far, case in wrong)
    assert any(far for far, _ in distances) or "FlowMatch" in distances[0][1].name


@pytest.mark.parametrize("name", MATRIX)
def test_each_option_separately(name: str) -> None:
    check_all(one_by_one(name))


@pytest.mark.parametrize("name", MATRIX)
def test_options_together(name: str) -> None:
    check_all(together(name, 80))


METHODS: Mapping[str, Sequence[dict[str, Any]]] = {
    "DPMSolverMultistepScheduler": (
        {"solver_order": 3, "algorithm_type": "dpmsolver++"},
        {"algorithm_type": "sde-dpmsolver++"},
        {"algorithm_type": "sde-dpmsolver", **LOWEST},
    ),
    "UniPCMultistepScheduler": ({"solver_order": 3}, {"solver_type": "bh1", **LOWEST}),
}
"""Methods of a scheduler besides its default."""


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_steps_from_noise_and_from_an_image(name: str) -> None:
    """Cases of the gate for every scheduler; its options are varied every night."""
    respaced = {"use_karras_sigmas": True} if "use_karras_sigmas" in OPTIONS[name] else {}
    eta = 0.3 if name in WITH_ETA else None
    cases = [
        Case(name, base(name), 4, eta=eta),
        Case(name, base(name) | respaced, 20, 0.6),
        *(Case(name, base(name) | method, 7) for method in METHODS.get(name, ())),
    ]
    check_all(iter(cases))


@pytest.mark.parametrize("name", CUSTOM)
def test_timesteps_and_sigmas_of_the_request(name: str) -> None:
    cases = itertools.product(CUSTOM[name], (None, 0.6, 1.0))
    check_all(Case(name, base(name), 4, strength, custom) for custom, strength in cases)


def scheduler_and_reference(case: Case) -> tuple[Any, Any]:
    reference = reference_class(case.name).from_config(case.options)
    reference.set_timesteps(**(case.custom or {"num_inference_steps": case.steps}))
    return from_config(case.config), reference


@pytest.mark.parametrize("name", [name for name in OPTIONS if not name.startswith("FlowMatch")])
@pytest.mark.parametrize("spacing", ["leading", "linspace", "trailing"])
def test_clean_latents_with_noise_at_every_step(name: str, spacing: str) -> None:
    """Clean latents with noise for inpainting after each step: diffusers' add_noise at the next
    step.
    """
    case = Case(name, {**base(name), "timestep_spacing": spacing}, 7)
    scheduler, reference = scheduler_and_reference(case)
    plan = scheduler.plan(7, strength=0.8)
    noise = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    timesteps = reference.timesteps[2 * reference.order :]
    for i, timestep in enumerate(timesteps):
        expected = reference.add_noise(
            torch.from_numpy(CLEAN), torch.from_numpy(noise), timestep[None]
        )
        output = CLEAN * plan.clean_scale[i] + noise * plan.noise_scale[i]
        assert largest(output, expected.numpy()) < 1e-6
    assert len(plan) == len(timesteps)
    assert len(plan) == EVALUATIONS.get(name, ONE_A_STEP).count(5)
    assert (plan.clean_scale[-1], plan.noise_scale[-1]) == (1.0, 0.0)


def test_flow_latents_with_noise_at_every_step() -> None:
    scheduler, reference = scheduler_and_reference(
        Case("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}, 7)
    )
    plan = scheduler.plan(7)
    noise = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    for i, timestep in enumerate(reference.timesteps):
        expected = reference.scale_noise(
            torch.from_numpy(CLEAN), timestep[None], torch.from_numpy(noise)
        )
        output = CLEAN * plan.clean_scale[i] + noise * plan.noise_scale[i]
        assert largest(output, expected.numpy()) < 1e-6


@pytest.mark.parametrize("name", MATRIX)
@pytest.mark.parametrize("other", MATRIX)
def test_scheduler_from_another_scheduler_s_config(name: str, other: str) -> None:
    """`Other.from_config(scheduler.config)`, with a value for every option of the first
    scheduler.
    """
    draw = random.Random(name + other)
    options = {key: draw.choice(values) for key, values in OPTIONS[name].items()}
    for key in (*SPACINGS, "use_lu_lambdas", "use_flow_sigmas", "shift_terminal", "trained_betas"):
        options.pop(key, None)
    options |= {"prediction_type": "epsilon", "algorithm_type": "dpmsolver++", **LOWEST}
    config = {"_class_name": name, **options}
    reference = reference_class(other).from_config(config)
    scheduler = for_request(config, {"name": other})
    for key in OPTIONS[other]:
        value, expected = getattr(scheduler, key), reference.config[key]
        assert value == (tuple(expected) if isinstance(expected, list) else expected), key


def test_every_key_of_diffusers_schedulers_is_known() -> None:
    """Checkpoints contain foreign keys, which are no reason for a notice."""
    from diffusers.schedulers import KarrasDiffusionSchedulers

    names = {entry.name for entry in KarrasDiffusionSchedulers} | set(CLASSES)
    for name in sorted(names - {"DPMSolverSDEScheduler"}):  # needs an optional package
        parameters = inspect.signature(getattr(diffusers, name)).parameters
        assert "num_train_timesteps" in parameters
        with collected_notices() as notices:
            served_config({"_class_name": name, **parameters}, [name], {}, None, name)
        assert not notices, name


WRONG: Mapping[str, dict[str, Any]] = {
    "another method": {"name": "euler", "timestep_spacing": "linspace"},
    "another order": {"name": "dpmpp_2m", "solver_order": 3},
    "no second order": {"name": "dpmpp_2m", "solver_order": 1},
    "another slope": {"name": "dpmpp_2m", "solver_type": "heun"},
    "another prediction": {"name": "dpmpp_2m", "prediction_type": "v_prediction"},
    "offset by one": {"name": "dpmpp_2m", "steps_offset": 1, "timestep_spacing": "leading"},
}


@pytest.mark.parametrize("chosen", WRONG.values(), ids=WRONG)
def test_wrong_option_exceeds_the_tolerance(chosen: dict[str, Any]) -> None:
    case = Case("DPMSolverMultistepScheduler", {**SDXL, "timestep_spacing": "linspace"}, 20)
    expected = run_diffusers(case)
    assert expected is not None
    assert distance(run_atelier(case), expected) < 1e-5
    assert distance(run_atelier(case, for_request(case.config, chosen)), expected) > 3e-4


class SwappedScheduler:
    """A scheduler whose steps read a swapped history or late sigmas."""

    def __init__(self, scheduler: Any, what: str) -> None:
        self._scheduler, self._what = scheduler, what
        self.solver = self
        self.begin = scheduler.solver.begin

    def plan(self, *args: Any, **options: Any) -> Any:
        plan = self._scheduler.plan(*args, **options)
        if self._what != "sigmas":
            return plan
        late = {name: np.roll(column, 1) for name, column in plan.values.items()}
        return dataclasses.replace(plan, values=late)

    def step(self, latents: Any, output: Any, history: Any, noise: Any, values: Any) -> Any:
        if self._what == "history":
            names = sorted(name for name in history if name.startswith("previous"))
            swapped = zip(names, reversed(names), strict=True)
            history = {**history, **{name: history[other] for name, other in swapped}}
        return self._scheduler.solver.step(latents, output, history, noise, values)


@pytest.mark.parametrize("what", ["history", "sigmas"])
@pytest.mark.parametrize("name", ["DPMSolverMultistepScheduler", "UniPCMultistepScheduler"])
def test_wrong_history_and_late_sigmas_exceed_the_tolerance(name: str, what: str) -> None:
    case = Case(name, {**SDXL, "solver_order": 3}, 20)
    expected = run_diffusers(case)
    assert expected is not None
    assert distance(run_atelier(case), expected) < 1e-5
    assert (
        distance(run_atelier(case, SwappedScheduler(from_config(case.config), what)), expected)
        > 1e-2
    )


@pytest.mark.parametrize("betas", [SDXL, {}], ids=["scaled linear", "linear"])
def test_zero_snr_is_torchs_table_but_for_its_square_roots(
    monkeypatch: pytest.MonkeyPatch, betas: dict[str, Any]
) -> None:
    """Torch with AVX-512 rounds one of five roots to a neighbour of the nearest number.

    Differences of two roots magnify this error. Atelier's roots follow IEEE 754 on every machine.
    """
    options = {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction", **betas}

    def rooted(table: torch.Tensor, *_: object) -> torch.Tensor:
        return torch.from_numpy(np.sqrt(table.numpy()))

    monkeypatch.setattr(torch.Tensor, "sqrt", rooted)
    scheduler = diffusers.EulerDiscreteScheduler(**options)
    monkeypatch.undo()
    schedule = NoiseSchedule(**options)
    alphas = scheduler.alphas_cumprod.numpy()
    np.testing.assert_array_equal(schedule.finite_alphas_cumprod(), alphas)
    np.testing.assert_array_equal(schedule.train_sigmas(), np.sqrt((1 - alphas) / alphas))


def test_first_step_at_zero_snr_cancels_as_in_diffusers() -> None:
    """Euler's first step subtracts numbers of 4096 times the noise, and 7.4 times remain.

    The remainder has their rounding errors: sigma / sigma_next * 2^-24 = 3.3e-5, in diffusers too.
    A difference of the initial noise shrinks with the latents instead, so noise of 1e-7 on the
    input understates rounding tenfold. SDXL, worst of 24 seeds: diffusers differs from itself in
    float64 by 2.7e-5 (76.7 dB), Atelier from diffusers by 2.6e-5 (78.0 dB), and diffusers from
    itself with another noise of 1e-7 by 5.6e-6 (82.7 dB).
    """
    options = {**SDXL, "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    options["prediction_type"] = "v_prediction"
    reference = diffusers.EulerDiscreteScheduler(**options)
    scheduler = from_config({"_class_name": "EulerDiscreteScheduler", **options})
    values = {name: column[:1] for name, column in scheduler.plan(5).values.items()}
    random = np.random.default_rng(0)
    noise, output = random.standard_normal((2, 1, 40, 48, 4), np.float32)

    def step_of_diffusers(noise: np.ndarray) -> np.ndarray:
        reference.set_timesteps(5)
        time = reference.timesteps[0]
        latents = torch.from_numpy(noise) * reference.init_noise_sigma
        reference.scale_model_input(latents, time)
        result: np.ndarray = reference.step(torch.from_numpy(output), time, latents)[0].numpy()
        return result

    expected = step_of_diffusers(noise)
    sigma, sigma_next = (float(number) for number in reference.sigmas[:2])
    latents = noise * reference.init_noise_sigma.numpy()
    arrays = jax.tree.map(jnp.asarray, (latents, output, {}, None, values))
    stepped = np.asarray(scheduler.solver.step(*arrays).latents)
    wide = latents.astype(np.float64)
    denoised = wide / (sigma**2 + 1) - output * (sigma / np.sqrt(sigma**2 + 1))
    exact = wide + (wide - denoised) / sigma * (sigma_next - sigma)
    rounding = sigma / sigma_next * 2**-24
    assert rounding / 2 < relative(expected, exact) < 2 * rounding
    assert relative(stepped, exact) < 2 * rounding
    assert relative(stepped, expected) < 2 * rounding
    noisy = noise * (1 + np.float32(1e-7) * random.standard_normal(noise.shape, np.float32))
    assert relative(step_of_diffusers(noisy), expected) < rounding / 5

"""Adapters against diffusers, from files of several forms: Flux's transformer, so far."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from diffusers import FluxPipeline
from flax import nnx
from safetensors.torch import save_file

from models import registry
from models.adapters import banks, formats
from models.adapters.files.adapter import Adapter, AdapterError
from models.adapters.layer_names import Names, names
from models.flux import adapter_names
from models.interface.pipeline import Pipeline, denoise
from tests.parity import tiny

Tensors = dict[str, torch.Tensor]

REQUEST = {"prompt": "a red circle", "height": 64, "width": 64, "num_inference_steps": 3}
SCALE, RANK, ALPHA = 0.7, 4, 8.0
LEAST_DB = 60.0

PARTS = {
    "double_blocks.{}.img_attn.qkv": [f"transformer_blocks.{{}}.attn.to_{x}" for x in "qkv"],
    "double_blocks.{}.txt_attn.qkv": [f"transformer_blocks.{{}}.attn.add_{x}_proj" for x in "qkv"],
    "double_blocks.{}.img_mod.lin": ["transformer_blocks.{}.norm1.linear"],
    "double_blocks.{}.txt_mlp.2": ["transformer_blocks.{}.ff_context.net.2"],
    "single_blocks.{}.linear1": [
        *(f"single_transformer_blocks.{{}}.attn.to_{x}" for x in "qkv"),
        "single_transformer_blocks.{}.proj_mlp",
    ],
    "single_blocks.{}.linear2": ["single_transformer_blocks.{}.proj_out"],
}
"""The authors' layers that the adapter changes, and what diffusers has for them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_flux(tmp_path_factory.mktemp("flux"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> FluxPipeline:
    return FluxPipeline.from_pretrained(folder)


@pytest.fixture(scope="module")
def adapter(reference: FluxPipeline) -> Tensors:
    """An adapter by the authors' names, each layer with `down` and `up`."""
    modules = dict(reference.transformer.named_modules())
    generator = torch.Generator().manual_seed(3)
    found: Tensors = {}
    for theirs, ours in PARTS.items():
        for number in range(3 if theirs.startswith("single") else 2):
            layers = [modules[one.format(number)] for one in ours]
            inputs, outputs = layers[0].in_features, sum(one.out_features for one in layers)
            name = theirs.format(number)
            found[f"{name}.down"] = torch.randn(RANK, inputs, generator=generator) / inputs**0.5
            found[f"{name}.up"] = 0.2 * torch.randn(outputs, RANK, generator=generator)
    return found


def peft(adapter: Tensors, reference: FluxPipeline) -> Tensors:
    """As diffusers writes it: fused layers apart, alpha multiplied in."""
    modules = dict(reference.transformer.named_modules())
    found: Tensors = {}
    for theirs, ours in PARTS.items():
        for key in [key for key in adapter if key.endswith(".down")]:
            number = "".join(filter(str.isdecimal, key.split(".")[1]))
            if key != f"{theirs.format(number)}.down":
                continue
            layers = [one.format(number) for one in ours]
            sizes = [modules[one].out_features for one in layers]
            ups = adapter[key.replace(".down", ".up")].split(sizes)
            for layer, up in zip(layers, ups, strict=True):
                found[f"transformer.{layer}.lora_A.weight"] = adapter[key].clone()
                found[f"transformer.{layer}.lora_B.weight"] = up * (ALPHA / RANK)
    return found


def kohya(adapter: Tensors, reference: FluxPipeline) -> Tensors:
    found: Tensors = {}
    for key, array in adapter.items():
        name, _, kind = key.rpartition(".")
        found[f"lora_unet_{name.replace('.', '_')}.lora_{kind}.weight"] = array
        found[f"lora_unet_{name.replace('.', '_')}.alpha"] = torch.tensor(ALPHA)
    return found


def bare(adapter: Tensors, reference: FluxPipeline) -> Tensors:
    """By the authors' names without a prefix, alpha multiplied in."""
    letters = {"down": ("A", 1.0), "up": ("B", ALPHA / RANK)}
    return {
        f"{key.rpartition('.')[0]}.lora_{letter}.weight": array * factor
        for key, array in adapter.items()
        for letter, factor in [letters[key.rpartition(".")[2]]]
    }


def comfy(adapter: Tensors, reference: FluxPipeline) -> Tensors:
    return {f"diffusion_model.{key}": array for key, array in bare(adapter, reference).items()}


@pytest.fixture(scope="module")
def expected(
    reference: FluxPipeline, adapter: Tensors, tmp_path_factory: pytest.TempPathFactory
) -> np.ndarray:
    """Latents by diffusers, with the adapter and without."""
    made = tmp_path_factory.mktemp("adapter")
    save_file(peft(adapter, reference), made / "a.safetensors")

    def latents() -> np.ndarray:
        generator = torch.Generator().manual_seed(5)
        asked = {**REQUEST, "guidance_scale": 3.5, "output_type": "latent"}
        return reference(**asked, generator=generator).images[0].numpy()

    without = latents()
    reference.load_lora_weights(made, weight_name="a.safetensors", adapter_name="a")
    reference.set_adapters(["a"], [SCALE])
    return np.stack([latents(), without])


def psnr_db(found: np.ndarray, expected: np.ndarray) -> float:
    error = np.square(found - expected, dtype=np.float64).mean()
    return float(10 * np.log10(np.square(np.ptp(expected)) / error))


def known(pipeline: Pipeline) -> Names:
    network = nnx.merge(pipeline.graphs.transformer, pipeline.weights.transformer)
    return names(adapter_names.TRANSFORMER, network)


def drawn(folder: Path, adapter: Adapter | None) -> np.ndarray:
    """Latents by ours, the adapter in the first pages of the banks."""
    pipeline = registry.load("flux", str(folder), "float32", {})
    network = nnx.merge(pipeline.graphs.transformer, pipeline.weights.transformer)
    banks.with_banks(network, 3)
    fields = {**pipeline.spec.defaults, **REQUEST, "guidance_scale": 3.5, "seed": 5}
    if adapter is not None:
        fields["loras"] = [
            {"digest": "a", "pages": 1, "networks": ["transformer"], "scales": [[0, 1, SCALE]]}
        ]
        _fill(network, banks.page_arrays(network, adapter.networks["transformer"], 1))
    graph, state = nnx.split(network)
    pipeline.graphs = pipeline.graphs._replace(transformer=graph)
    pipeline.weights = pipeline.weights._replace(transformer=state)
    *_, row = denoise(pipeline, pipeline.prepare(fields, {}))
    return np.asarray(row["latents"])


def _fill(network: nnx.Module, arrays: dict[str, np.ndarray]) -> None:
    for path, leaf in nnx.to_flat_state(nnx.state(network)):
        array = arrays.get(".".join(map(str, path)))
        if array is not None:
            place = (slice(None),) * banks.page_axis(leaf) + (slice(0, 1),)
            value: jax.Array = leaf.get_value()
            leaf.set_value(value.at[place].set(array))
    nnx.update(network, nnx.state(network))


def test_a_bank_changes_nothing_for_rows_without_adapters(
    folder: Path, expected: np.ndarray
) -> None:
    assert psnr_db(drawn(folder, None), expected[1]) > 100
    assert psnr_db(expected[0], expected[1]) < 40, "the adapter shows"


@pytest.mark.parametrize("form", [peft, kohya, bare, comfy])
def test_every_form_draws_what_diffusers_draws(
    form: Callable[[Tensors, FluxPipeline], Tensors],
    folder: Path,
    reference: FluxPipeline,
    adapter: Tensors,
    expected: np.ndarray,
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.safetensors"
    save_file(form(adapter, reference), file)
    pipeline = registry.load("flux", str(folder), "float32", {})
    read = formats.read(file, known(pipeline))
    assert read.rank == RANK and not read.ignored
    assert psnr_db(drawn(folder, read), expected[0]) > LEAST_DB


@pytest.mark.parametrize("wrong", ["no alpha", "swapped parts"])
def test_a_wrong_reading_fails_by_far(
    wrong: str,
    folder: Path,
    reference: FluxPipeline,
    adapter: Tensors,
    expected: np.ndarray,
    tmp_path: Path,
) -> None:
    tensors = kohya(adapter, reference)
    if wrong == "no alpha":
        tensors = {key: array for key, array in tensors.items() if not key.endswith("alpha")}
    else:
        key = "lora_unet_double_blocks_0_img_attn_qkv.lora_up.weight"
        q, k, v = tensors[key].chunk(3)
        tensors[key] = torch.cat([k, q, v])
    file = tmp_path / "a.safetensors"
    save_file(tensors, file)
    pipeline = registry.load("flux", str(folder), "float32", {})
    assert psnr_db(drawn(folder, formats.read(file, known(pipeline))), expected[0]) < LEAST_DB - 10


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t | {"unet.mid.lora_A.weight": torch.ones(4, 4)}, "no layer for: unet.mid"),
        (lambda t: {f"unet.{key}": one for key, one in t.items()}, "none of its layers"),
        (lambda t: t | {"x.dora_scale": torch.ones(4)}, "DoRA"),
        (lambda t: t | {"x.hada_w1_a": torch.ones(4)}, "LoHa"),
        (lambda t: t | {"x.lokr_w1": torch.ones(4)}, "LoKr"),
        (lambda t: {key: one * torch.nan for key, one in t.items()}, "NaN or infinity"),
        (lambda t: {k: one for k, one in t.items() if "lora_B" not in k}, "is missing"),
        (
            lambda t: {k: torch.ones(4, 7) if "lora_A" in k else one for k, one in t.items()},
            "made for another base",
        ),
    ],
)
def test_what_is_wrong_is_named(
    change: Callable[[Tensors], Tensors],
    reason: str,
    folder: Path,
    reference: FluxPipeline,
    adapter: Tensors,
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.safetensors"
    save_file(change(bare(adapter, reference)), file)
    pipeline = registry.load("flux", str(folder), "float32", {})
    with pytest.raises(AdapterError, match=reason):
        formats.read(file, known(pipeline))


def test_a_file_that_is_no_safetensors_is_refused(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"not this")
    with pytest.raises(AdapterError, match="not a whole safetensors file"):
        formats.read(file, {})

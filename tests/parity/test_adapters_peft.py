"""LoKr, LoHa and DoRA of single layers compared with PEFT: fused, and by row from pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict

from models.adapters.banks import page_arrays, with_banks
from models.adapters.files.adapter import Adapter, KernelShape, LayerPosition
from models.adapters.files.formats import read
from models.adapters.files.name_table import Names, NetworkNames
from models.adapters.fuse import fusing
from models.checkpoint.hub import resolve_file
from models.nn.layers.convolution import convolved
from models.nn.layers.parameterised import conv, linear
from models.parallel.row_adapters import RowAdapters
from models.parallel.trace_options import trace_options
from tests.parity.adapter_files import Tensors, write

IN, OUT = 12, 20
SIZE = 5
RELATIVE = 2e-6
"""Tolerance of fused float32 kernels and of outputs, which sum hundreds of products."""
RELATIVE_OF_ROWS = 2e-5
"""Tolerance of outputs whose changes have been decomposed."""
FAR = 0.02
"""Minimum relative effect of each adapter."""
NAMES = Names(
    (
        NetworkNames(
            "net",
            {
                "flat": {LayerPosition("flat"): KernelShape(IN, OUT)},
                "window": {LayerPosition("window"): KernelShape(IN, OUT, (3, 3))},
            },
            ("net.", "base_model.model."),
            (),
        ),
    )
)


class TorchLayers(torch.nn.Module):
    """A linear layer and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = torch.nn.Linear(IN, OUT)
        self.window = torch.nn.Conv2d(IN, OUT, 3, padding=1)


class Layers(nnx.Module):
    """The same layers, with the weights of torch's."""

    def __init__(self, source: TorchLayers) -> None:
        rngs = nnx.Rngs(0)
        self.flat = linear(IN, OUT, ("embed", "mlp"), rngs=rngs)
        self.window = conv(IN, OUT, (3, 3), padding=((1, 1), (1, 1)), rngs=rngs)
        for layer, original in ((self.flat, source.flat), (self.window, source.window)):
            kernel = original.weight.detach().numpy()
            layer.kernel.set_value(jnp.array(np.moveaxis(kernel, (0, 1), (-1, -2))))
            layer.bias.set_value(jnp.array(original.bias.detach().numpy()))


class Pipeline:
    """Minimal pipeline, with the attributes that the fusion of adapters reads."""

    def __init__(self, network: Layers) -> None:
        graph, state = nnx.split(network)
        self.graphs = type("Graphs", (), {"net": graph})
        self.weights = type("Weights", (), {"net": state})


LAYERS = ["flat", "window"]
CONFIGS: dict[str, Callable[[], Any]] = {
    "DoRA": lambda: LoraConfig(r=3, lora_alpha=5, use_dora=True, target_modules=LAYERS),
    "LoHa": lambda: LoHaConfig(r=3, alpha=5, target_modules=LAYERS),
    "LoHa, Tucker": lambda: LoHaConfig(
        r=3, alpha=5, use_effective_conv2d=True, target_modules=LAYERS
    ),
    "LoKr": lambda: LoKrConfig(r=1, alpha=2, target_modules=LAYERS),
    "LoKr, both factors low-rank": lambda: LoKrConfig(
        r=1, alpha=2, decompose_both=True, target_modules=LAYERS
    ),
    "LoKr, Tucker": lambda: LoKrConfig(
        r=1, alpha=2, use_effective_conv2d=True, target_modules=LAYERS
    ),
    # PEFT scales whole factors, too; LyCORIS, ComfyUI and diffusers ignore their alpha.
    "LoKr, whole factors": lambda: LoKrConfig(r=64, alpha=64, target_modules=LAYERS),
}


def trained(config: Any) -> tuple[TorchLayers, Any, Tensors]:
    """Return the layers, PEFT's model of them with a random adapter, and its file's tensors."""
    torch.manual_seed(3)
    plain = TorchLayers()
    base = TorchLayers()
    base.load_state_dict(plain.state_dict())
    model = get_peft_model(base, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "magnitude" in name:
                parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
            elif any(part in name for part in ("lora_", "lokr_", "hada_")):
                parameter.copy_(0.5 * torch.randn_like(parameter))
    state = get_peft_model_state_dict(model)
    tensors = {key.removeprefix("base_model.model."): value for key, value in state.items()}
    alpha = getattr(config, "lora_alpha", None) or config.alpha
    tensors |= {f"{name}.alpha": torch.tensor(float(alpha)) for name in LAYERS}
    return plain, model, {f"net.{key}": value for key, value in tensors.items()}


FOLDERS: dict[str, Callable[[], Any]] = {
    "LoRA": lambda: LoraConfig(r=3, lora_alpha=5, target_modules=LAYERS),
    "rank-stabilized": lambda: LoraConfig(
        r=3, lora_alpha=5, use_rslora=True, target_modules=LAYERS
    ),
    "patterns": lambda: LoraConfig(
        r=3,
        lora_alpha=5,
        rank_pattern={"flat": 2},
        alpha_pattern={"^window": 7},
        target_modules=LAYERS,
    ),
    **{kind: CONFIGS[kind] for kind in ("DoRA", "LoHa", "LoKr", "LoKr, Tucker")},
    "LoKr, whole factors": lambda: LoKrConfig(r=64, alpha=24, target_modules=LAYERS),
}
"""Configs of adapters that PEFT saves as a folder, with the alphas in `adapter_config.json`."""


def inputs() -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        "flat": rng.standard_normal((1, 4, IN), np.float32),
        "window": rng.standard_normal((1, SIZE, SIZE, IN), np.float32),
    }


def theirs(model: Any, layer: str, x: np.ndarray) -> np.ndarray:
    """Return PEFT's output of a layer, with channels last."""
    module = getattr(model.base_model.model, layer)
    with torch.no_grad():
        if layer == "flat":
            return module(torch.from_numpy(x)).numpy()
        return module(torch.from_numpy(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).numpy()


def call(layer: Any, x: Any) -> np.ndarray:
    x = jnp.asarray(x)
    return np.asarray(layer(x) if x.ndim == 3 else convolved(layer, x))


def gap(output: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(output - expected).max() / np.abs(expected).max())


def fused(network: Layers, adapter: Adapter, scale: float) -> Layers:
    fuse = fusing(adapter, scale, Pipeline(network))["net"]
    for name in LAYERS:
        layer = getattr(network, name)
        layer.kernel.set_value(fuse(f"{name}.kernel", layer.kernel[...] + 0))
    return network


def with_rows(network: Layers, adapter: Adapter, scale: float) -> tuple[Layers, RowAdapters]:
    """Return the network with the adapter in its banks, from their second page on, and rows: one
    without an adapter, and one with it."""
    banked, count = with_banks(network, 8), adapter.pages
    for path, array in page_arrays(banked, adapter.networks["net"], count).items():
        name, _, leaf = path.split(".")
        pages = getattr(getattr(banked, name).bank, leaf)
        pages.set_value(pages.get_value().at[1 : 1 + count].set(array))
    ranks = count - adapter.has_magnitudes
    last = [0.0] * adapter.has_magnitudes
    rows = RowAdapters(
        jnp.array([[0] * count, [*range(1, 1 + count)]]),
        jnp.array([[0.0] * count, [scale] * ranks + last]),
        jnp.array([[-1] * count, [ranks] * ranks + [-1] * len(last)]) if last else None,
    )
    return banked, rows


@pytest.mark.parametrize("scale", [1.0, 0.6])
@pytest.mark.parametrize("kind", CONFIGS)
def test_layers_are_changed_as_by_peft(kind: str, scale: float, tmp_path: Path) -> None:
    plain, model, tensors = trained(CONFIGS[kind]())
    adapter = read(write(tensors, tmp_path / "a.safetensors"), NAMES)
    for layer in model.base_model.modules():
        if hasattr(layer, "set_scale"):
            layer.set_scale("default", scale)
    network = fused(Layers(plain), adapter, scale)
    banked, rows = with_rows(Layers(plain), adapter, scale)
    for name, x in inputs().items():
        expected = theirs(model, name, x)
        without = call(getattr(Layers(plain), name), x)
        assert gap(without, expected) > FAR, "the adapter does not show"
        assert gap(call(getattr(network, name), x), expected) < RELATIVE
        both = np.concatenate([x, x])
        plain_rows = call(getattr(banked, name), both)
        with replace(trace_options(), adapters=rows).active():
            output = call(getattr(banked, name), both)
        assert gap(output[1:], expected) < RELATIVE_OF_ROWS
        np.testing.assert_array_equal(output[0], plain_rows[0])


@pytest.mark.parametrize("kind", FOLDERS)
def test_folders_of_peft_have_the_scales_of_their_config(kind: str, tmp_path: Path) -> None:
    plain, model, _ = trained(FOLDERS[kind]())
    model.save_pretrained(str(tmp_path))
    network = fused(Layers(plain), read(resolve_file(str(tmp_path)), NAMES), 1.0)
    (tmp_path / "adapter_config.json").unlink()
    unscaled = fused(Layers(plain), read(resolve_file(str(tmp_path)), NAMES), 1.0)
    for name, x in inputs().items():
        expected = theirs(model, name, x)
        assert gap(call(getattr(network, name), x), expected) < RELATIVE
        assert gap(call(getattr(unscaled, name), x), expected) > FAR, "the config must count"

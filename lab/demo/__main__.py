"""Command-line program that trains the demo models.

`python -m lab.demo vae pictures` trains the autoencoder of Flux and SDXL, and `vae clips` Wan's.
`train flux`, `train sdxl` and `train wan` train the other networks. `export` writes the best model
so far. These commands resume from the runs' folder and stop after their total minutes. `lora
outline` and `lora coral` train adapters of a finished Flux in one run. `control` trains the
ControlNet of a finished SDXL, and `edit` the editing adapter of a finished Flux. Both resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import models.demo
from lab.demo.recipes import controls, edit
from lab.demo.recipes.flux import Flux
from lab.demo.recipes.loras import LORAS, make
from lab.demo.recipes.sdxl import Sdxl
from lab.demo.recipes.wan import Wan
from lab.demo.training.image_vae import ImageAutoencoder
from lab.demo.training.recipe import Recipe
from lab.demo.training.run import export, train
from lab.demo.training.train_vae import Autoencoder
from lab.demo.training.train_vae import train as train_vae
from lab.demo.training.video_vae import ClipAutoencoder

RUNS = Path(__file__).parent / "runs"
SERVED = Path(models.demo.__file__).parent
"""Default folder of the base checkpoints for adapters and ControlNets."""
AUTOENCODERS: Mapping[str, tuple[Callable[[], Autoencoder], float]] = {
    "pictures": (ImageAutoencoder, 18),
    "clips": (ClipAutoencoder, 52),
}
"""Autoencoders by run folder: constructor, and minutes of training."""
FAMILIES: Mapping[str, tuple[Callable[[], Recipe], float]] = {
    "flux": (Flux, 66),
    "sdxl": (Sdxl, 77),
    "wan": (Wan, 112),
}
"""Families: constructor of the recipe, and minutes of training on two cores."""


def main() -> None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(prog="python -m lab.demo", description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where runs are kept")
    commands = parser.add_subparsers(dest="command", required=True)
    vae = commands.add_parser("vae", help="train an autoencoder")
    vae.add_argument("subject", choices=AUTOENCODERS)
    vae.add_argument("--minutes", type=float)
    family = commands.add_parser("train", help="train a family's networks, and export the best")
    family.add_argument("family", choices=FAMILIES)
    family.add_argument("--minutes", type=float)
    exported = commands.add_parser("export", help="write the best model of a run")
    exported.add_argument("family", choices=FAMILIES)
    lora = commands.add_parser("lora", help="train an adapter of the demo's Flux")
    lora.add_argument("name", choices=LORAS)
    lora.add_argument(
        "--base", type=Path, default=SERVED / "flux", help="the finished Flux's folder"
    )
    control = commands.add_parser("control", help="train the ControlNet of the demo's SDXL")
    control.add_argument("--base", type=Path, default=SERVED / "sdxl", help="its folder, finished")
    editing = commands.add_parser("edit", help="train the adapter with which Flux changes images")
    editing.add_argument("--base", type=Path, default=SERVED / "flux", help="its folder, finished")
    arguments = parser.parse_args()
    if arguments.command == "lora":
        make(arguments.name, arguments.base, arguments.runs / "loras")
        return
    if arguments.command == "control":
        controls.make(arguments.base, arguments.runs / "controls")
        return
    if arguments.command == "edit":
        edit.make(arguments.base, arguments.runs / "edits")
        return
    if arguments.command == "vae":
        autoencoder, minutes = AUTOENCODERS[arguments.subject]
        train_vae(autoencoder(), arguments.runs / arguments.subject, arguments.minutes or minutes)
        return
    recipe, minutes = FAMILIES[arguments.family]
    if arguments.command == "train":
        train(recipe(), arguments.runs, arguments.minutes or minutes)
    export(recipe(), arguments.runs)


if __name__ == "__main__":
    main()

"""The program that makes the demo model: `python -m models.demo train-vae`, then `train`.

Both resume what the run's folder holds, and end when they have had their minutes in all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from models.demo.run import Judge, averaged, train
from models.demo.train_vae import train as train_vae

HERE = Path(__file__).parent


def main() -> None:
    """Parse the command and do it."""
    parser = argparse.ArgumentParser(prog="python -m models.demo", description=__doc__)
    parser.add_argument("--run", type=Path, default=HERE / "runs" / "flux", help="the run's folder")
    parser.add_argument(
        "--target",
        type=Path,
        default=HERE / "runs" / "model",
        help="where the best model goes; the one that is served lies in models/demo/flux",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    vae = commands.add_parser("train-vae", help="train the autoencoder")
    vae.add_argument("--minutes", type=float, default=18)
    flux = commands.add_parser("train", help="train the transformer and the text encoders")
    flux.add_argument("--minutes", type=float, default=66)
    evaluate = commands.add_parser("evaluate", help="score the run's model, and export it")
    evaluate.add_argument("--prompts", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.command == "train-vae":
        train_vae(arguments.run, arguments.minutes)
    elif arguments.command == "train":
        train(arguments.run, arguments.minutes, arguments.target)
    else:
        judge = Judge(arguments.run, arguments.target)
        judge(averaged(arguments.run), arguments.prompts, arguments.prompts)


if __name__ == "__main__":
    main()

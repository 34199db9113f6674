"""Safety hook for Atelier: words in prompts, and a local image classifier. See README.md.

An HTTP service for `[safety] url`. It needs only the standard library; `--classifier` also needs
torch and transformers.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Scores = Mapping[str, float]
Classifier = Callable[[bytes], Scores]
"""An image file → a score from 0 to 1 by label."""

PROMPTS = ("prompt", "prompt_2")


def no_classifier(image: bytes) -> Scores:
    """Return no labels, in place of a classifier."""
    return {}


def load_classifier(folder: str) -> Classifier:
    """Load an image classifier in transformers' format from a local folder."""
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, use_fast=False)
    model = AutoModelForImageClassification.from_pretrained(folder, local_files_only=True).eval()

    def scores(image: bytes) -> Scores:
        pixels = processor(Image.open(io.BytesIO(image)).convert("RGB"), return_tensors="pt")
        with torch.inference_mode():
            probabilities = model(**pixels).logits.softmax(-1)[0].tolist()
        return {model.config.id2label[number]: score for number, score in enumerate(probabilities)}

    return scores


class Rules:
    """Rules that allow or refuse prompts and images.

    Args:
        words: forbidden words in prompts, matched as whole words in any case.
        labels: forbidden labels of images, from a score of `threshold`.
    """

    def __init__(
        self, words: Iterable[str], classify: Classifier, labels: Iterable[str], threshold: float
    ) -> None:
        self._words = {word.lower() for word in words}
        self._classify = classify
        self._labels = frozenset(labels)
        self._threshold = threshold

    def verdict(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the verdict on one request of Atelier."""
        if question["when"] == "before":
            prompts = " ".join(str(question["request"].get(name, "")) for name in PROMPTS)
            if forbidden := self._words.intersection(re.findall(r"\w+", prompts.lower())):
                return refusal(f"the prompt has the word {min(forbidden)!r}")
        for image in question["images"]:
            if self._labels and image["content_type"].startswith("video/"):
                return refusal("this check does not support videos")
            if label := self._label(base64.b64decode(image["data"])):
                return refusal(f"an image was classified as {label!r}")
        return {"allow": True}

    def _label(self, image: bytes) -> str | None:
        scores = self._classify(image)
        return next((x for x in self._labels if scores.get(x, 0.0) >= self._threshold), None)


def refusal(reason: str) -> dict[str, Any]:
    """Return a verdict that refuses, with its reason."""
    return {"allow": False, "reason": reason}


class Handler(BaseHTTPRequestHandler):
    """HTTP handler that answers each POST with a verdict."""

    rules: Rules

    def do_POST(self) -> None:
        """Answer a safety check with a verdict."""
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps(self.rules.verdict(question)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        """Log nothing: request lines do not contain the verdict."""


def options() -> argparse.Namespace:
    """Parse the command line of the safety hook."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000, help="0: any free one")
    parser.add_argument("--words", type=Path, help="file with a forbidden word on each line")
    parser.add_argument("--classifier", help="folder of an image classifier")
    parser.add_argument("--refuse", action="append", default=[], help="label; may be repeated")
    parser.add_argument("--threshold", type=float, default=0.5)
    return parser.parse_args()


def main() -> None:
    """Serve the safety hook until interrupted."""
    given = options()
    words = given.words.read_text("utf-8").split() if given.words else []
    classify = load_classifier(given.classifier) if given.classifier else no_classifier
    Handler.rules = Rules(words, classify, given.refuse, given.threshold)
    server = ThreadingHTTPServer((given.host, given.port), Handler)
    print(f"http://{given.host}:{server.server_address[1]}/check", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

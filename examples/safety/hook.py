"""Safety hook for Atelier: words in prompts, and a local image classifier. See README.md.

An HTTP service that answers what `[safety] url` asks, with nothing but the standard library;
torch and transformers are needed with `--classifier`.
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
    """Return no labels: there is no classifier."""
    return {}


def load_classifier(folder: str) -> Classifier:
    """Read an image classifier in transformers' format from a local folder."""
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, use_fast=False)
    model = AutoModelForImageClassification.from_pretrained(folder, local_files_only=True).eval()

    def scores(image: bytes) -> Scores:
        pixels = processor(Image.open(io.BytesIO(image)).convert("RGB"), return_tensors="pt")
        with torch.inference_mode():
            found = model(**pixels).logits.softmax(-1)[0].tolist()
        return {model.config.id2label[number]: score for number, score in enumerate(found)}

    return scores


class Rules:
    """Rules of one hook.

    Args:
        words: that no prompt may have, whole and in any case.
        labels: that no image may have, with a score of `threshold` or more.
    """

    def __init__(
        self, words: Iterable[str], classify: Classifier, labels: Iterable[str], threshold: float
    ) -> None:
        self._words = {word.lower() for word in words}
        self._classify = classify
        self._labels = frozenset(labels)
        self._threshold = threshold

    def verdict(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one question."""
        if question["when"] == "before":
            said = " ".join(str(question["request"].get(name, "")) for name in PROMPTS)
            if found := self._words.intersection(re.findall(r"\w+", said.lower())):
                return refusal(f"the prompt has the word {min(found)!r}")
        for image in question["images"]:
            if self._labels and image["content_type"].startswith("video/"):
                return refusal("this check reads no videos")
            if label := self._label(base64.b64decode(image["data"])):
                return refusal(f"an image was classified as {label!r}")
        return {"allow": True}

    def _label(self, image: bytes) -> str | None:
        scores = self._classify(image)
        return next((x for x in self._labels if scores.get(x, 0.0) >= self._threshold), None)


def refusal(reason: str) -> dict[str, Any]:
    """Return the answer that refuses."""
    return {"allow": False, "reason": reason}


class Handler(BaseHTTPRequestHandler):
    """One question by POST."""

    rules: Rules

    def do_POST(self) -> None:
        """Answer with a verdict."""
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps(self.rules.verdict(question)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        """Log nothing: a request line says nothing of a verdict."""


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000, help="0: any free one")
    parser.add_argument("--words", type=Path, help="file with a forbidden word on each line")
    parser.add_argument("--classifier", help="folder of an image classifier")
    parser.add_argument("--refuse", action="append", default=[], help="label; may be repeated")
    parser.add_argument("--threshold", type=float, default=0.5)
    return parser.parse_args()


def main() -> None:
    """Serve until interrupted."""
    given = options()
    words = given.words.read_text("utf-8").split() if given.words else []
    classify = load_classifier(given.classifier) if given.classifier else no_classifier
    Handler.rules = Rules(words, classify, given.refuse, given.threshold)
    server = ThreadingHTTPServer((given.host, given.port), Handler)
    print(f"http://{given.host}:{server.server_address[1]}/check", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

"""Signed files, verified by c2pa's reader against a test root."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import c2pa
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from pydantic import ValidationError

from service.recipes.files import read_parameters, read_recipe
from service.recipes.xmp import EDITED, MADE
from service.settings.output import OutputSettings
from service.settings.section import ConfigError
from tests.service.recipes.examples import FILES, bare, recipe
from tests.service.recipes.test_files import shown
from tests.workers.media.certificates import Chain, make
from workers.media.content_credentials import signer_of
from workers.media.outputs import Marking


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return make(tmp_path_factory.mktemp("chain"))


def verified(data: bytes, content_type: str, chain: Chain) -> c2pa.Reader:
    trust = {"trust": {"trust_anchors": chain.root}, "verify": {"verify_trust": True}}
    return c2pa.Reader(content_type, io.BytesIO(data), context=c2pa.Context.from_dict(trust))


@pytest.mark.parametrize("content_type", FILES)
def test_signed_files_are_trusted_and_keep_pixels_and_recipe(
    chain: Chain, content_type: str
) -> None:
    data = bare(content_type)
    signed = Marking.of_settings(chain.settings).mark(data, content_type, recipe(), {})
    with verified(signed, content_type, chain) as reader:
        assert reader.get_validation_state() == "Trusted"
        report = json.loads(reader.json())
    manifest = report["manifests"][report["active_manifest"]]
    assert manifest["claim_generator_info"][0]["name"] == "atelier"
    (actions,) = (item for item in manifest["assertions"] if item["label"] == "c2pa.actions.v2")
    (action,) = actions["data"]["actions"]
    assert (action["action"], action["digitalSourceType"]) == ("c2pa.created", MADE)
    assert read_recipe(signed) == recipe()
    assert read_parameters(signed)
    before, after = shown(data), shown(signed)
    assert all((item == other).all() for item, other in zip(before, after, strict=True))
    assert len(signed) < len(data) + 40_000, "no thumbnail"


@pytest.mark.parametrize("content_type", FILES)
def test_changed_file_fails_validation(chain: Chain, content_type: str) -> None:
    signed = Marking.of_settings(chain.settings).mark(
        bare(content_type), content_type, recipe(), {}
    )
    changed = signed.replace(b"stand-in", b"standing", 1)
    assert changed != signed
    with verified(changed, content_type, chain) as reader:
        assert reader.get_validation_state() == "Invalid"


def test_files_without_metadata_are_signed_all_the_same(chain: Chain) -> None:
    marking = Marking.of_settings(chain.settings)
    masked = recipe().model_copy(update={"images": {"mask_image": "ab"}})
    request = {"output": {"metadata": False}}
    signed = marking.mark(bare("image/png"), "image/png", masked, request)
    assert read_recipe(signed) is None and b"fox" not in signed
    with verified(signed, "image/png", chain) as reader:
        assert reader.get_validation_state() == "Trusted"
        assert EDITED in reader.json()


def test_webm_is_not_signed(chain: Chain) -> None:
    assert Marking.of_settings(chain.settings).mark(b"data", "video/webm", recipe(), {}) == b"data"


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate(),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=lambda key: type(key).__name__,
)
def test_keys_of_other_algorithms(key: object, tmp_path: Path) -> None:
    chain = make(tmp_path, key)
    signed = Marking.of_settings(chain.settings).mark(bare("image/png"), "image/png", recipe(), {})
    with verified(signed, "image/png", chain) as reader:
        assert reader.get_validation_state() == "Trusted"


def test_no_key_signs_nothing() -> None:
    assert signer_of(OutputSettings()) is None


def refused(settings: OutputSettings) -> str:
    with pytest.raises(ConfigError) as refusal:
        signer_of(settings)
    return str(refusal.value)


def test_signing_errors_are_reported_at_start(chain: Chain, tmp_path: Path) -> None:
    absent, other, late = tmp_path / "absent.pem", tmp_path / "other", tmp_path / "late"
    for folder in (other, late):
        folder.mkdir()

    def with_(**paths: Path) -> OutputSettings:
        return chain.settings.model_copy(update=paths)

    assert "output.c2pa_key: can't read" in refused(with_(c2pa_key=absent))
    assert "no private key in PEM" in refused(with_(c2pa_key=chain.certificates))
    assert "no chain in PEM" in refused(with_(c2pa_certificates=chain.key))
    assert "is not that of output.c2pa_key" in refused(with_(c2pa_key=make(other).key))
    assert "and not now" in refused(make(late, days=-1).settings)
    assert "C2PA knows keys of P-256" in refused(
        make(tmp_path, ec.generate_private_key(ec.SECP256K1())).settings
    )


def test_missing_extra_is_reported(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "c2pa", None)
    assert "needs the extra c2pa" in refused(chain.settings)


@pytest.mark.parametrize("name", ["c2pa_key", "c2pa_certificates"])
def test_key_and_certificates_are_set_together(name: str) -> None:
    with pytest.raises(ValidationError, match="set both or none"):
        OutputSettings(**{name: Path("a.pem")})

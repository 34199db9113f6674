"""Detection of accelerators on the machine's PCI bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.slice import devices as accelerators


@pytest.mark.parametrize(
    ("devices", "chip"),
    [
        ([], None),
        ([("0x8086", "0x1237", "0x060000")], None),
        ([("0x8086", "0x1237", "0x060000"), ("0x1ae0", "0x006f", "0x120000")], "v6e"),
        ([("0x1ae0", "0x0063", "0x120000")], "v5e"),
        ([("0x1ae0", "0x0042", "0x020000")], None),
        ([("0x10de", "0x2335", "0x030200")], "nvidia"),
        ([("0x10de", "0x22a3", "0x068000")], None),
    ],
    ids=["none", "bridge", "v6e", "v5e", "network card", "gpu", "switch"],
)
def test_chip_is_detected_by_its_pci_device(
    tmp_path: Path, devices: list[tuple[str, str, str]], chip: str | None
) -> None:
    for number, values in enumerate(devices):
        folder = tmp_path / f"0000:00:{number:02x}.0"
        folder.mkdir()
        for name, value in zip(("vendor", "device", "class"), values, strict=True):
            (folder / name).write_text(value + "\n")
    assert accelerators.chip(tmp_path) == chip


def test_process_gets_its_own_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert accelerators.visible(range(2, 4)) == {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "TPU_VISIBLE_CHIPS": "2,3",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,2,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    assert accelerators.visible(range(1, 3))["CUDA_VISIBLE_DEVICES"] == "5,6"
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES=4,5,6 has no GPU number 3"):
        accelerators.visible(range(1, 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert accelerators.visible(range(1, 3))["CUDA_VISIBLE_DEVICES"] == ""

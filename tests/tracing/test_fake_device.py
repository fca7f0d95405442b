"""Choosing a fake device: self-tests in child processes, a cache, and an error that says what failed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workloads.tracing.fake import device
from workloads.tracing.fake.device import FakeDeviceError, TorchInstall

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

SOMEWHERE = TorchInstall("2.13.0+cpu", Path("/nowhere/torch"), "0123")


@needs_torch
@pytest.mark.parametrize("tier", device.TIERS)
def test_each_tier_passes_its_self_test(tier: str, tmp_path: Path) -> None:
    if tier == "compiled" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no C++ compiler")
    assert device.probe(tier, tmp_path) is None


@needs_torch
def test_a_wrong_slot_ends_the_child_and_not_the_caller(tmp_path: Path) -> None:
    # Slot 1 is a destructor: answering "yes" there crashes, which no exception handler could catch.
    program = (
        "import workloads.tracing.fake.libtorch as libtorch\n"
        "libtorch.header_slots = lambda source: {'isBuilt': 2, 'isAvailable': 1, 'hasPrimaryContext': 5}\n"
        "libtorch.install('ctypes', None)\n"
        "from workloads.tracing.fake.device_selftest import run_checks\n"
        "run_checks()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=device.child_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0


def test_the_second_tier_is_asked_when_the_first_fails_and_the_verdict_is_kept(tmp_path: Path) -> None:
    asked: list[str] = []

    def prober(tier: str, folder: Path) -> str | None:
        asked.append(tier)
        return "check 'backward' failed (ended by signal 11): no message" if tier == "ctypes" else None

    for _ in range(2):
        assert device.choose_tier(SOMEWHERE, tmp_path, prober=prober) == "compiled"
    assert asked == ["ctypes", "compiled"]  # the second call took the cached verdict
    other_build = TorchInstall("2.13.0+cpu", SOMEWHERE.root, "4567")
    assert device.choose_tier(other_build, tmp_path, prober=prober) == "compiled"
    assert asked == ["ctypes", "compiled"] * 2  # other library files: tested anew


def test_a_damaged_cache_is_not_believed(tmp_path: Path) -> None:
    verdict = tmp_path / SOMEWHERE.fingerprint / "tier.json"
    verdict.parent.mkdir()
    for text in ("{", '{"tier": "wishful"}', "[]"):
        verdict.write_text(text)
        assert device.choose_tier(SOMEWHERE, tmp_path, prober=lambda tier, folder: None) == "ctypes"


def test_the_error_names_version_platform_and_failing_check(tmp_path: Path) -> None:
    with pytest.raises(FakeDeviceError) as raised:
        device.choose_tier(
            SOMEWHERE, tmp_path, prober=lambda tier, folder: f"check 'backward' of {tier} failed"
        )
    message = str(raised.value)
    assert "torch 2.13.0+cpu" in message and sys.platform in message.lower()
    assert "ctypes: check 'backward' of ctypes failed" in message
    assert "compiled: check 'backward' of compiled failed" in message
    assert "2.10 to 2.15" in message


def test_newer_versions_are_tried_with_a_warning() -> None:
    assert device.untested_warning(TorchInstall("2.15.3+cu132", Path(), "")) is None
    warning = device.untested_warning(TorchInstall("2.16.0", Path(), ""))
    assert warning is not None and "2.16.0" in warning


@needs_torch
def test_slots_are_read_from_the_header() -> None:
    # Importing the tier imports torch, which the simulator's own tests must not need: hence here.
    from workloads.tracing.fake.libtorch import UnsupportedTorchError, header_slots

    header = """
    struct TORCH_API AcceleratorHooksInterface {
      virtual ~AcceleratorHooksInterface() = default;  // two slots
      // virtual void commented_out() = 0;
      virtual bool isBuilt() const { return false; }
      virtual bool isAvailable() const { return false; }
      virtual void another(int x) const;
      virtual bool hasPrimaryContext(DeviceIndex device_index) const = 0;
    };"""
    assert header_slots(header) == {"isBuilt": 2, "isAvailable": 3, "hasPrimaryContext": 5}
    with pytest.raises(UnsupportedTorchError, match="hasPrimaryContext"):
        header_slots(header.replace("hasPrimaryContext", "renamed"))

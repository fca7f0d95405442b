"""A CUDA device that is not there: choose a tier that works with the installed torch, then install it.

Tier "ctypes" comes first, "compiled" second (:mod:`workloads.tracing.fake.libtorch`).  Each is proven by
:mod:`workloads.tracing.fake.device_selftest` in a child process; the verdict is cached per torch version,
build, platform and library files.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from simcore.errors import InputError
from simcore.files import whole_text
from simcore.outside import private_folder
from simcore.records import dataclass
from workloads.tracing.fake.device_selftest import CHECK, PASSED

TIERS = ("ctypes", "compiled")
TESTED = ((2, 10), (2, 15))
_TIMEOUT_S = 120

Prober = Callable[[str, Path], str | None]


class FakeDeviceError(InputError):
    """No tier works with the installed torch; names version, build, platform and the failing check."""


@dataclass(frozen=True)
class TorchInstall:
    """The installed torch, found without importing it.  ``fingerprint`` changes with its libraries."""

    version: str
    root: Path
    fingerprint: str

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor)."""
        major, minor = self.version.split("+")[0].split(".")[:2]
        return int(major), int(minor)


def find_torch() -> TorchInstall:
    """The installed torch.  FakeDeviceError when there is none or it is too old."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise FakeDeviceError("tracing needs torch, which is not installed: pip install 'torch>=2.10,<2.16'")
    root = Path(spec.origin).parent
    version = importlib.metadata.version("torch")
    parts = [version, platform.platform(), platform.machine(), sys.version]
    for name in ("libc10.so", "libtorch_cpu.so"):
        library = root / "lib" / name
        if library.exists():
            state = library.stat()
            parts.append(f"{name} {state.st_size} {state.st_mtime_ns}")
    found = TorchInstall(version, root, hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24])
    if found.release < TESTED[0]:
        raise FakeDeviceError(f"tracing needs torch 2.10 or newer, found {version}")
    return found


def cache_folder() -> Path:
    """The user's own folder of self-test verdicts and the compiled helper.  Errors: as private_folder."""
    return private_folder("fake_cuda")


def child_environment() -> dict[str, str]:
    """Environment of every process that traces: real GPUs hidden, one thread, importable project."""
    project = str(Path(__file__).resolve().parents[3])
    search = [project, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(search),
    }


def probe(tier: str, folder: Path) -> str | None:
    """Run the self-test of one tier in a child process; None when it passes, else what failed."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "workloads.tracing.fake.device_selftest",
        tier,
        str(folder),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=child_environment(), check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_TIMEOUT_S} s"
    if done.returncode == 0 and PASSED in done.stdout:
        return None
    checks = [line.removeprefix(CHECK) for line in done.stdout.splitlines() if line.startswith(CHECK)]
    errors = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    how = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return f"check {(checks or ['start'])[-1]!r} failed ({how}): {(errors or ['no message'])[-1][:300]}"


def choose_tier(
    torch_install: TorchInstall | None = None,
    folder: Path | None = None,
    *,
    tiers: Sequence[str] = TIERS,
    prober: Prober = probe,
) -> str:
    """The first tier whose self-test passes; asked of the cache before a child process.

    FakeDeviceError when none does.
    """
    found = torch_install or find_torch()
    home = (folder or cache_folder()) / found.fingerprint
    verdict = home / "tier.json"
    try:
        cached = json.loads(verdict.read_text(encoding="utf-8"))["tier"]
    except (OSError, ValueError, KeyError, TypeError):
        cached = None
    if cached in tiers:
        return str(cached)
    failures = []
    for tier in tiers:
        failure = prober(tier, home)
        if failure is None:
            _remember(verdict, tier)
            return tier
        failures.append(f"  {tier}: {failure}")
    raise FakeDeviceError(
        f"no fake CUDA device for torch {found.version} on {platform.platform()}:\n"
        + "\n".join(failures)
        + "\nTracing is tested on Linux with torch 2.10 to 2.15 (CPU or CUDA builds)."
    )


def untested_warning(torch_install: TorchInstall) -> str | None:
    """A sentence for the user when torch is newer than what was tested."""
    if torch_install.release <= TESTED[1]:
        return None
    return f"torch {torch_install.version} is newer than the tested 2.10 to 2.15; its self-test passed"


def install(tier: str, folder: Path | None = None) -> None:
    """Install a tier that :func:`choose_tier` returned, in this process.

    FakeDeviceError when a GPU is visible: hide it with ``CUDA_VISIBLE_DEVICES=''`` before torch is imported.
    """
    import torch

    from workloads.tracing.fake import libtorch

    if torch.cuda.device_count() > 0:
        raise FakeDeviceError("a real GPU is visible: set CUDA_VISIBLE_DEVICES='' before torch is imported")
    libtorch.install(tier, (folder or cache_folder()) / find_torch().fingerprint)


def _remember(verdict: Path, tier: str) -> None:
    """Best effort: a read-only home only costs the next self-test."""
    with suppress(InputError):
        whole_text(verdict, json.dumps({"tier": tier}))

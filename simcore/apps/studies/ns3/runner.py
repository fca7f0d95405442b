"""Builds ``driver.cc`` against an installed ns-3 and runs it."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simcore.errors import InputError
from simcore.units import PS_PER_US

_DRIVER: Final = Path(__file__).with_name("driver.cc")
_MODULES: Final = ("core", "network", "point-to-point")
_LIMIT_S: Final = 600


@dataclass(frozen=True)
class Ns3:
    """An ns-3 to link with: compiler and linker flags, and its version."""

    flags: tuple[str, ...]
    version: str

    def time_us(self, description: str) -> float:
        """Time of the last completion, microseconds.  InputError if ns-3 cannot be linked or fails."""
        done = subprocess.run(
            [str(self._driver())],
            input=description,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise InputError(f"ns-3 failed: {done.stderr.strip()[-300:] or done.returncode}")
        return int(done.stdout.split()[0]) / PS_PER_US

    def _driver(self) -> Path:
        """The program, built once for each source and flags."""
        text = _DRIVER.read_bytes() + " ".join(self.flags).encode()
        folder = Path(tempfile.gettempdir()) / f"simcore-ns3-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        program = folder / hashlib.sha256(text).hexdigest()[:16]
        if not program.exists():
            half_made = program.with_suffix(f".{os.getpid()}")
            compiler = os.environ.get("CXX", "g++")
            command = [compiler, "-std=c++17", "-O2", str(_DRIVER), "-o", str(half_made), *self.flags]
            built = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
            if built.returncode:
                raise InputError(f"the ns-3 driver cannot be built: {built.stderr.strip()[:600]}")
            half_made.replace(program)
        return program


def find_ns3() -> Ns3 | None:
    """The ns-3 below the folder ``NS3_ROOT`` (with include/ns3 and lib), else pkg-config's; None without."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return None
    root = os.environ.get("NS3_ROOT")
    if root:
        return _below(Path(root))
    if shutil.which("pkg-config") is None:
        return None
    packages = [f"ns3-{module}" for module in _MODULES]
    found = _pkg_config("--cflags", "--libs", *packages)
    version = _pkg_config("--modversion", packages[0])
    if found is None or version is None:
        return None
    # Debian's files name libraries of other packages by path, which the driver does not need to link.
    flags = [flag for flag in shlex.split(found) if flag[:2] in ("-I", "-L", "-l") and flag != "-I/usr;"]
    return Ns3(tuple(flags), version)


def _below(root: Path) -> Ns3:
    libraries = sorted(root.glob("lib*/**/libns3*-core*.so"))
    if not (root / "include" / "ns3").is_dir() or not libraries:
        raise InputError(f"NS3_ROOT {str(root)!r} has no include/ns3 or no libns3*-core*.so below lib")
    core = libraries[0]
    stem = core.name.removeprefix("lib").removesuffix(".so")
    names = [f"-l{stem.replace('core', module)}" for module in _MODULES]
    paths = (f"-L{core.parent}", f"-Wl,-rpath,{core.parent}", f"-Wl,-rpath-link,{core.parent}")
    # Debian's sonames carry the version: libns3-core.so.37.
    numbered = sorted(core.parent.glob(f"{core.name}.*"))
    version = numbered[0].name.removeprefix(f"{core.name}.") if numbered else "unknown"
    # Its own dependencies may lie beside it, where a plain -rpath does not reach.
    return Ns3((f"-I{root / 'include'}", *paths, "-Wl,--disable-new-dtags", *names), f"3.{version}")


def _pkg_config(*options: str) -> str | None:
    done = subprocess.run(["pkg-config", *options], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None

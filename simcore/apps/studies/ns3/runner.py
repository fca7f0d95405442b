"""Programs described for ``driver.cc``, which is built against an installed ns-3 and run.

A description carries the packet network's own assumptions.  Our links are directed and have no ends; ns-3
wants nodes.  Where one link follows another on some route, they meet at a switch, so the nodes follow from
the routes.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Final

from simcore.errors import InputError
from simcore.files import whole_file
from simcore.hardware.topology import Topology
from simcore.network.packet import MessageProgram, PacketSettings
from simcore.outside import private_folder
from simcore.records import dataclass
from simcore.units import PS_PER_US, ps_from_s

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
        program = private_folder("ns3") / hashlib.sha256(text).hexdigest()[:16]
        if not program.exists():
            compiler = os.environ.get("CXX", "g++")
            with whole_file(program) as fresh:
                command = [compiler, "-std=c++17", "-O2", str(_DRIVER), "-o", str(fresh), *self.flags]
                built = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
                if built.returncode:
                    raise InputError(f"the ns-3 driver cannot be built: {built.stderr.strip()[:600]}")
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


def describe(topology: Topology, program: MessageProgram, settings: PacketSettings) -> str:
    """Statements as ``driver.cc`` reads them; segments are packets (``settings.packet_bytes``)."""
    joints = _Joints()
    for lane in program.lanes:
        _, src, dst = lane.ends
        for way, first, last in ((lane.route, src, dst), (topology.route(dst, src), dst, src)):
            joints.join(("gpu", first), ("tail", way[0]))
            joints.join(("gpu", last), ("head", way[-1]))
            for before, after in pairwise(way):
                joints.join(("head", before), ("tail", after))
    lines = [
        f"set payload_bytes {settings.packet_bytes}",
        f"set header_bytes {settings.header_bytes}",
        f"set overhead_ns {settings.send_overhead_ps // 1000}",
        f"set ack_bytes {settings.ack_bytes}",
        f"set queue_pair_per_message {int(settings.pair_per_message)}",
    ]
    links = topology.links
    wired: set[tuple[int, int]] = set()
    lanes: list[str] = []
    for lane in program.lanes:
        _, src, dst = lane.ends
        for link in (*lane.route, *topology.route(dst, src)):
            ends = joints.node(("tail", link)), joints.node(("head", link))
            if ends not in wired:
                wired.update((ends, ends[::-1]))
                rate, latency = float(links.bytes_per_s[link]), ps_from_s(float(links.latency_s[link]))
                lines.append(f"link {ends[0]} {ends[1]} {rate:.1f} {latency}")
        nodes = [joints.node(("tail", link)) for link in lane.route]
        over = " ".join(map(str, (*nodes, joints.node(("head", lane.route[-1])))))
        lanes.append(f"lane {lane.window} {over}")
        lanes += [f"send {send.num_bytes} {send.after} {send.after_count} {send.key}" for send in lane.sends]
    return "\n".join((*lines, *lanes, ""))


class _Joints:
    """Ends of links that are the same node (union-find)."""

    def __init__(self) -> None:
        self._above: dict[tuple[str, int], tuple[str, int]] = {}
        self._numbers: dict[tuple[str, int], int] = {}

    def join(self, one: tuple[str, int], other: tuple[str, int]) -> None:
        self._above[self._top(one)] = self._top(other)

    def node(self, end: tuple[str, int]) -> int:
        """Number of the node at this end, from 0 in the order of asking."""
        return self._numbers.setdefault(self._top(end), len(self._numbers))

    def _top(self, end: tuple[str, int]) -> tuple[str, int]:
        while (above := self._above.setdefault(end, end)) != end:
            end = above
        return end

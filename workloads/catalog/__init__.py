"""Named workloads: execution graphs that come with the project, each with the command that made it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from simcore.errors import InputError, nearest

if TYPE_CHECKING:
    from simcore.graph import Graph

__all__ = ["DEFAULT", "load", "names", "path"]

#: What is simulated when nothing else is asked for: GPT-175B on 96 H800 in bf16 with sequence parallelism,
#: whose kernels were measured.  Echo's headline case (arXiv 2412.12487) is the same job in fp32: "echo-"
#: before the name.
DEFAULT: Final = "gpt-175b-pp12-tp8-dp1"

_GRAPHS: Final = Path(__file__).parent / "graphs"


def names() -> tuple[str, ...]:
    """Names of all workloads, sorted."""
    return tuple(sorted(header.parent.name for header in _GRAPHS.glob("*/graph.json")))


def path(name: str) -> Path:
    """Graph folder of a workload.  InputError, with the nearest name, when there is none of that name."""
    known = names()
    if name not in known:
        raise InputError(f"unknown workload {name!r}{nearest(name, known)}")
    return _GRAPHS / name


def load(name: str) -> Graph:
    """The execution graph of a workload.  InputError as for :func:`path`."""
    from simcore.graph import load_graph

    return load_graph(path(name))

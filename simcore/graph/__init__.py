"""The execution graph: the only thing that the engine reads about a workload."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simcore.graph.builder import GraphBuilder
from simcore.graph.flatten import FlatEdges, program_edges, resolve_edges, resolve_waits
from simcore.graph.graph import FlatOps, Graph, MemoryProfile, Program, Workload
from simcore.graph.groups import ProcessGroup
from simcore.graph.hashing import graph_hash
from simcore.graph.layout import rank_ranges
from simcore.graph.ops import EdgeKind, EdgeTable, FreeTable, OpKind, OpRows, OpTable, Strings
from simcore.graph.schedules import (
    Action,
    gpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
    validate_schedule,
)
from simcore.graph.template_builder import OpHandle, TemplateBuilder, external
from simcore.graph.verify import DisagreementError, verify

if TYPE_CHECKING:
    from simcore.graph.passes import apply_kernels, usual_kernels
    from simcore.graph.store import load_graph, save_graph

__all__ = [
    "DisagreementError",
    "Action",
    "EdgeKind",
    "EdgeTable",
    "FlatEdges",
    "FlatOps",
    "FreeTable",
    "Graph",
    "GraphBuilder",
    "MemoryProfile",
    "OpHandle",
    "OpKind",
    "OpRows",
    "OpTable",
    "ProcessGroup",
    "Program",
    "Strings",
    "TemplateBuilder",
    "Workload",
    "apply_kernels",
    "external",
    "gpipe",
    "graph_hash",
    "interleaved_one_f_one_b",
    "load_graph",
    "one_f_one_b",
    "program_edges",
    "rank_ranges",
    "resolve_edges",
    "resolve_waits",
    "save_graph",
    "usual_kernels",
    "validate_schedule",
    "verify",
]


_LATER = {
    "apply_kernels": "passes",
    "load_graph": "store",
    "save_graph": "store",
    "usual_kernels": "passes",
}


def __getattr__(name: str) -> Any:
    """Import passes and files when they are used: a generated graph has the kernels of its framework, and
    is in memory.
    """
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The execution graph: the only thing that the engine reads about a workload."""

from simcore.graph.builder import GraphBuilder, external
from simcore.graph.flatten import FlatEdges, program_edges, resolve_edges, resolve_waits
from simcore.graph.graph import FlatOps, Graph, MemoryProfile, Program, Workload
from simcore.graph.groups import ProcessGroup
from simcore.graph.ops import EdgeKind, EdgeTable, FreeTable, OpKind, OpRows, OpTable, Strings

__all__ = [
    "EdgeKind",
    "EdgeTable",
    "FlatEdges",
    "FlatOps",
    "FreeTable",
    "Graph",
    "GraphBuilder",
    "MemoryProfile",
    "OpKind",
    "OpRows",
    "OpTable",
    "ProcessGroup",
    "Program",
    "Strings",
    "Workload",
    "external",
    "program_edges",
    "resolve_edges",
    "resolve_waits",
]

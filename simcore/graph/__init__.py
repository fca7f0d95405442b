"""The execution graph: the only thing that the engine reads about a workload."""

from simcore.graph.builder import GraphBuilder, external
from simcore.graph.flatten import FlatEdges, program_edges, resolve_edges, resolve_waits
from simcore.graph.graph import FlatOps, Graph, MemoryProfile, Program, Workload
from simcore.graph.groups import ProcessGroup
from simcore.graph.hashing import graph_hash
from simcore.graph.ops import EdgeKind, EdgeTable, FreeTable, OpKind, OpRows, OpTable, Strings
from simcore.graph.store import load_graph, save_graph
from simcore.graph.verify import verify

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
    "graph_hash",
    "load_graph",
    "program_edges",
    "resolve_edges",
    "resolve_waits",
    "save_graph",
    "verify",
]

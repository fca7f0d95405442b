"""PyTorch execution traces (ExecutionTraceObserver JSON), alone or beside Kineto traces of the same run."""

from workloads.imports.execution.job import import_execution_traces, import_pairs
from workloads.imports.execution.read import is_execution_trace
from workloads.imports.formats import Importer, register

register(
    Importer(
        "execution_trace", "PyTorch execution trace JSON", is_execution_trace, import_execution_traces,
        beside={"kineto": import_pairs},
    )
)  # fmt: skip

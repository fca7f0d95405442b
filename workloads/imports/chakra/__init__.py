"""Chakra execution traces (MLCommons): one protobuf stream of nodes per rank, read and written."""

from workloads.imports.chakra.export import export_chakra
from workloads.imports.chakra.job import import_chakra, recognises_chakra

__all__ = ["export_chakra", "import_chakra", "recognises_chakra"]

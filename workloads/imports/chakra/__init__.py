"""Chakra execution traces (MLCommons): one protobuf stream of nodes per rank, read and written."""

from workloads.imports.chakra.export import export_chakra
from workloads.imports.chakra.job import import_chakra, is_chakra
from workloads.imports.formats import Importer, register

register(Importer("chakra", "Chakra execution traces (.et)", is_chakra, import_chakra))

__all__ = ["export_chakra"]

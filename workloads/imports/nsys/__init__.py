"""Nsight Systems databases (``nsys export --type sqlite``)."""

from workloads.imports.formats import Importer, register
from workloads.imports.nsys.read import import_nsys, is_nsys

register(Importer("nsys", "Nsight Systems SQLite", is_nsys, import_nsys))

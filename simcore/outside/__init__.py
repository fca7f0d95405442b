"""The gate: everything that comes from outside is read through here, within stated limits."""

from simcore.outside.documents import (
    decoded,
    json_document,
    quoted,
    read_bytes,
    read_text,
    toml_document,
    yaml_document,
)
from simcore.outside.limits import (
    VARIABLE,
    Limits,
    held_memory,
    limits,
    memory_budget,
    over,
    refuse_beyond_memory,
)
from simcore.outside.names import CONTROL, inside, printable, there
from simcore.outside.patterns import found_in
from simcore.outside.private import cache_home, private_folder
from simcore.outside.tables import csv_rows, open_parquet

__all__ = [
    "CONTROL",
    "VARIABLE",
    "Limits",
    "cache_home",
    "csv_rows",
    "decoded",
    "held_memory",
    "found_in",
    "inside",
    "json_document",
    "limits",
    "memory_budget",
    "open_parquet",
    "over",
    "printable",
    "quoted",
    "private_folder",
    "read_bytes",
    "read_text",
    "refuse_beyond_memory",
    "there",
    "toml_document",
    "yaml_document",
]

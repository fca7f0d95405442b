"""Thunk traces of XLA, with the HLO module behind them."""

from workloads.imports.formats import Importer, register
from workloads.imports.xla.thunks import import_xla, is_xla_trace

register(Importer("xla", "XLA thunk traces (JSON)", is_xla_trace, import_xla))

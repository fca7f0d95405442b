"""Measured transformer layers, forward and backward under tensor parallelism, and their simulation.

Unlike a kernel row, a layer is simulated by the engine on a node: its kernels one after the other, its
exchanges between tensor-parallel ranks in line or beside products, as the software runs them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from simcore.apps.measured.row_kernels import profile_of
from simcore.apps.measured.tables import ErrorTable, error_table, number, read_rows, within
from simcore.errors import InputError
from simcore.graph import GraphBuilder
from simcore.hardware import load_cluster
from simcore.hardware.boards import boards
from simcore.outside import quoted
from simcore.records import dataclass
from simcore.run import run
from workloads.models.check import multiple
from workloads.models.layers import layer
from workloads.models.local import Shard
from workloads.models.op_tape import Recompute
from workloads.models.pieces import KernelLaunch
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec
from workloads.parallel.emit import OpWriter

COLUMNS = ("gpu", "model", "scope", "variant", "forward_ms", "backward_ms", "combined_ms")

#: Megatron-LM v3.0 (arXiv 2205.05198): attention in steps with the fused scale-mask-softmax, jit fusions.
_SOFTWARE = SoftwareSpec(name="megatron-lm-2022", attention="unfused")

#: Layers simulated back to back: an exchange that ends after its layer meets the next layer's kernels.
_LAYERS = 4


@dataclass(frozen=True)
class LayerRow:
    """One measurement: a layer of ``model`` as one tensor-parallel rank runs it, times in seconds."""

    line: int
    gpu: str
    model: ModelSpec
    shard: Shard
    forward_s: float
    backward_s: float
    columns: dict[str, str]


def read_layer_rows(path: Path | str) -> tuple[list[LayerRow], list[dict[str, Any]]]:
    """Rows of a layers CSV, and those that cannot be simulated as (id, reason).

    Errors: InputError for a missing file or column.
    """
    return read_rows(path, "layer", COLUMNS, _row)


def layer_errors(path: str) -> ErrorTable:
    """Errors of forward and backward together, milliseconds; each row also holds the two apart."""
    rows, skipped = read_layer_rows(path)
    scored = []
    for row in rows:
        forward_s, backward_s = predict_layer(row.gpu, row.model, row.shard)
        scored.append(
            {
                **row.columns,
                "id": row.line,
                "family": f"{row.model.name} {row.gpu}",
                "measured": (row.forward_s + row.backward_s) * 1e3,
                "predicted": (forward_s + backward_s) * 1e3,
                "predicted_forward_ms": forward_s * 1e3,
                "predicted_backward_ms": backward_s * 1e3,
                "forward_error": forward_s / row.forward_s - 1,
                "backward_error": backward_s / row.backward_s - 1,
            }
        )
    return error_table(scored, skipped)


def layer_lines(table: ErrorTable) -> list[str]:
    """Forward, backward and both of each row, for people."""
    lines = [f"{'variant':28}{'forward ms':>22}{'backward ms':>22}{'together ms':>22}"]
    for row in table.rows:
        cells = "".join(
            f"{measured:7.1f} {predicted:6.1f} ({100 * error:+3.0f}%)"
            for measured, predicted, error in (
                (float(row["forward_ms"]), row["predicted_forward_ms"], row["forward_error"]),
                (float(row["backward_ms"]), row["predicted_backward_ms"], row["backward_error"]),
                (row["measured"], row["predicted"], row["error"]),
            )
        )
        lines.append(f"{row['variant']:28}{cells}")
    return lines


def _row(line: int, columns: dict[str, str]) -> LayerRow:
    """InputError, with the reason, for a row that does not say enough."""
    text = columns["model"].lower()
    if columns["scope"] != "one transformer layer":
        raise InputError(f"no simulation of scope {columns['scope']!r}")
    hidden, heads = _find(text, r"hidden (\d+)"), _find(text, r"(\d+) heads")
    tp = _find(text, r"tp(\d+)")
    multiple("hidden", hidden, "heads", heads)
    multiple("heads", heads, "tp", tp)
    precision = next((name for name in ("fp16", "bf16") if name in text), None)
    if precision is None:
        raise InputError(f"model {columns['model']!r} names no precision (fp16, bf16)")
    model = ModelSpec(
        name=columns["model"].split(":")[0], layers=_find(text, r"(\d+) layers"), hidden=hidden, heads=heads,
        ffn=4 * hidden, dropout=0.1,
    )  # fmt: skip
    variant = columns["variant"].lower()
    recompute: Recompute = "full" if "full" in variant else "selective" if "selective" in variant else "none"
    shard = Shard(
        micro_batch=_find(text, r"micro batch (\d+)"), seq=_find(text, r"seq (\d+)"),
        tp=tp, sequence_parallel="sequence" in variant, precision=precision,
        recompute=recompute, software=_SOFTWARE,
    )  # fmt: skip
    return LayerRow(
        line, profile_of(columns["gpu"]), model, shard, _seconds(columns, "forward_ms"),
        _seconds(columns, "backward_ms"), columns,
    )  # fmt: skip


def _seconds(columns: dict[str, str], name: str) -> float:
    return within(name, number(columns, name), 1e-3, 1e6, "ms") * 1e-3


def _find(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise InputError(f"model {quoted(text)} does not say {pattern!r}")
    value = int(found.group(1)) if len(found.group(1)) < 10 else 0
    if not value:
        raise InputError(f"model {quoted(text)}: {quoted(found.group())} is no size")
    return value


@lru_cache(maxsize=1 << 12)
def predict_layer(gpu: str, model: ModelSpec, shard: Shard) -> tuple[float, float]:
    """Seconds of a layer's forward and backward on a node of ``gpu``, recomputation in backward.

    Errors: InputError for a GPU without a cluster profile.
    """
    piece = layer(model, shard, 0, recompute=shard.recompute == "full")
    return _simulated_s(gpu, shard.tp, piece.forward), _simulated_s(gpu, shard.tp, piece.backward)


def _simulated_s(gpu: str, tp: int, kernels: tuple[KernelLaunch, ...]) -> float:
    build = GraphBuilder(tp, name="layer")
    if tp > 1:
        build.group("tp", dims=((tp, 1),))
    template = build.template("layer")
    writer = OpWriter(template)
    for index in range(_LAYERS):
        writer.kernels(kernels, phase="fwd", layer=index)
    build.program(range(tp), [(template, 0, 0)])
    family = next((board.cluster for board in boards() if board.gpu == gpu and board.cluster), None)
    if family is None:
        raise InputError(f"no node of GPU {gpu!r} is described")
    each = load_cluster(family).gpus_per_node
    cluster = load_cluster(f"{family}-{-(-tp // each) * each}", {"gpu.conditions": "cool"})
    return run(build.build(), cluster).step_s / _LAYERS

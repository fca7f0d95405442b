"""Fit of the constants of collectives to measured rows: one set per GPU generation, all healthy rows at once.

A row's residual is the logarithm of predicted over measured time, under a soft absolute loss, so that each
row counts the same whatever its duration and none pulls far.  Constants move by their logarithms, and are
held weakly to where they started: what no row tells apart stays as it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from simcore.apps.measured.nccl import generation_of, plan_rows, predicted_us, read_nccl_rows, tells_constants
from simcore.apps.measured.nccl_rows import NcclRow
from simcore.apps.measured.tables import error_table, summary_head, summary_line
from simcore.collectives.spread import ANY_COLLECTIVE, BAND_KEYS, band_key, nodes_key
from simcore.collectives.timing import GenerationTiming, ProtocolTiming, timing_of
from simcore.collectives.tuning_constants import tuning_of
from simcore.errors import InputError
from simcore.outside import printable
from simcore.records import dataclass

FloatArray = npt.NDArray[np.float64]

#: Residuals below this count squared, above it by their absolute value.
_SOFT: Final = 0.03
#: Weight of a constant's distance (logarithm) from its start, in rows.
_PULL: Final = 0.05
_STEP: Final = 1e-3
#: A constant moves by at most this factor, shares never above 1.
_RANGE: Final = 8.0
_ONE_SIGMA: Final = 0.683
_SMALLEST_FAMILY: Final = 5
#: The most that a constant can be: a share, or the first and the last of a ring's steps.
_AT_MOST: Final = {
    "tree_efficiency": 1.0,
    "tree_ll128_share": 1.0,
    "all_to_all_efficiency": 1.0,
    "nvls_efficiency": 1.0,
    "tail_step": 2.0,
    "scatter_tail_step": 2.0,
}
#: Rings have more of it than wires, so rows hardly tell.  Simple: two channels are known to fill a 400 Gb/s
#: NIC.  LL128: NCCL's own limit of a channel (src/graph/tuning.cc, perChMaxRingLL128Bws).
_FIXED: Final = ("Simple.channel_bytes_per_s", "LL128.channel_bytes_per_s")
#: Constants that only rows over several nodes tell.
_BETWEEN_NODES: Final = (
    "LL.network_hop_s",
    "LL128.network_hop_s",
    "Simple.network_hop_s",
    "tree_efficiency",
    "tree_ll128_share",
)
#: The generation whose rows span nodes; the others take its hops between nodes.
_BETWEEN_NODES_FROM: Final = "hopper"

#: What a generation without sums in its switches has of them.
_NO_NVLS: Final = {
    "nvls_base_s": 0.0, "nvls_efficiency": 1.0, "nvls_channel_bytes_per_s": 0.0, "nvls_warm_up_s": 0.0,
}  # fmt: skip
#: A release later than any.
_LATEST: Final = (99, 0)
_US: Final = 1e-6
#: Where every fit starts: NCCL's own tuning table where it has the number (src/graph/tuning.cc at 5067397c:
#: base and hop latencies of rings, copy rate and efficiency of NVLS), the smaller part of a tree's threads
#: under LL128 (src/device/all_reduce.h, runTreeSplit: 3 of 10), round numbers elsewhere.
START: Final = GenerationTiming(
    protocols={
        "LL": ProtocolTiming(6.6 * _US, 0.6 * _US, 2.7 * _US, 10e9, 0.5, 0.5),
        "LL128": ProtocolTiming(14.0 * _US, 1.9 * _US, 4.0 * _US, 20e9, 0.5, 0.5),
        "Simple": ProtocolTiming(8.4 * _US, 3.4 * _US, 14.0 * _US, 40e9, 0.5, 0.5),
    },
    block_skew_s=1.0 * _US,
    tree_efficiency=0.92,
    tree_ll128_share=0.3,
    p2p_ll_base_s=8.0 * _US,
    p2p_simple_base_s=8.0 * _US,
    peer_s=0.2 * _US,
    own_copy_step=0.2,
    all_to_all_efficiency=0.9,
    warm_up_s=5.0 * _US,
    warm_up_bytes=1e6,
    nvls_base_s=20.0 * _US,
    nvls_efficiency=0.85,
    nvls_channel_bytes_per_s=57.7e9,
    nvls_warm_up_s=5.0 * _US,
)


@dataclass(frozen=True)
class NcclFit:
    """Constants of a generation, how many rows they rest on, the mean absolute relative error left."""

    generation: str
    timing: GenerationTiming
    num_rows: int
    mean_error: float


def fit_nccl(generation: str, rows: Sequence[NcclRow], between_nodes: GenerationTiming = START) -> NcclFit:
    """Constants of ``generation`` from its healthy rows.  InputError when there are none.

    ``between_nodes`` is where hops between nodes come from if all rows are of one node, and what switches
    that add cost if no row tells.
    """
    kept = [row for row in _healthy(rows) if generation_of(row) == generation]
    if not kept:
        raise InputError(f"no healthy row of a {generation} GPU")
    channel_gb_per_s = tuning_of(generation, _LATEST).ring_ll128_channel_gb_per_s
    begin = with_constants(START, {"LL128.channel_bytes_per_s": channel_gb_per_s * 1e9})
    untold = set(_FIXED)
    if not any(plan.algorithm.startswith("nvls") for plan in plan_rows(kept, {generation: begin})):
        adds = tuning_of(generation, _LATEST).nvls_efficiency > 0
        told = constants(between_nodes) if adds else _NO_NVLS
        begin = with_constants(begin, {name: told[name] for name in _NO_NVLS})
        untold |= set(_NO_NVLS)
    if all(row.setup.nodes == 1 for row in kept):
        untold |= set(_BETWEEN_NODES)
        begin = with_constants(begin, {name: constants(between_nodes)[name] for name in _BETWEEN_NODES})
    names = [name for name, value in constants(begin).items() if value > 0 and name not in untold]
    scale = np.array([constants(begin)[name] for name in names])
    measured = np.array([row.measured_us for row in kept])

    # The search takes steps relative to x, so it runs around 1: value = start * exp(x - 1).
    def timing(x: FloatArray) -> GenerationTiming:
        return with_constants(begin, dict(zip(names, (scale * np.exp(x - 1.0)).tolist(), strict=True)))

    def log_errors(x: FloatArray) -> FloatArray:
        errors: FloatArray = np.log(np.array(predicted_us(kept, {generation: timing(x)})) / measured)
        return errors

    result = least_squares(
        lambda x: np.concatenate([log_errors(x), _PULL * (x - 1.0)]),
        np.ones(len(names)),
        bounds=_bounds(names, scale),
        loss="soft_l1",
        f_scale=_SOFT,
        diff_step=_STEP,
        x_scale=0.1,
        max_nfev=60,
    )
    left = np.abs(np.expm1(log_errors(result.x)))
    return NcclFit(generation, timing(result.x), len(kept), float(left.mean()))


def constants(timing: GenerationTiming) -> dict[str, float]:
    """All constants by name, those of a protocol as ``LL.base_s``."""
    flat = {
        f"{protocol}.{key}": float(value)
        for protocol, timed in timing.protocols.items()
        for key, value in vars(timed).items()
    }
    return flat | {key: float(value) for key, value in vars(timing).items() if key != "protocols"}


def with_constants(timing: GenerationTiming, values: Mapping[str, float]) -> GenerationTiming:
    """``timing`` with some constants replaced, by the names of :func:`constants`."""
    protocols = dict(timing.protocols)
    others: dict[str, Any] = {}
    for name, value in values.items():
        protocol, dot, key = name.rpartition(".")
        if dot:
            protocols[protocol] = replace(protocols[protocol], **{key: value})
        else:
            others[name] = value
    return replace(timing, protocols=protocols, **others)


def left_out_errors(
    rows: Sequence[NcclRow], of: Callable[[NcclRow], str]
) -> Iterator[tuple[str, list[tuple[NcclRow, float]]]]:
    """Each source, GPU or whatever ``of`` tells of a row once: its healthy rows, with the signed error of a
    fit to all others.

    Only rows of a kind (generation, one node or several, collective, size band) that others measured too:
    nothing can be learnt about the rest without it.
    """
    healthy = _healthy(rows)
    for name in dict.fromkeys(map(of, healthy)):
        others = [row for row in healthy if of(row) != name]
        kinds = {_kind(row) for row in others}
        out = [row for row in healthy if of(row) == name and _kind(row) in kinds]
        scored: list[tuple[NcclRow, float]] = []
        for generation in sorted({generation_of(row) for row in out}):
            timing = fit_nccl(generation, others, timing_of(_BETWEEN_NODES_FROM)).timing
            asked = [row for row in out if generation_of(row) == generation]
            scored += zip(asked, _errors(asked, {generation: timing}), strict=True)
        yield name, scored


def own_errors(
    rows: Sequence[NcclRow], timings: Mapping[str, GenerationTiming] | None = None
) -> list[tuple[NcclRow, float]]:
    """Healthy rows with the signed relative error of the constants in use, or of ``timings``."""
    healthy = _healthy(rows)
    return list(zip(healthy, _errors(healthy, timings), strict=True))


def _healthy(rows: Sequence[NcclRow]) -> list[NcclRow]:
    return [row for row in rows if tells_constants(row)]


def _kind(row: NcclRow) -> tuple[str, str, str, str]:
    return generation_of(row), nodes_key(row.setup.nodes), row.collective, band_key(row.num_bytes)


def _errors(rows: Sequence[NcclRow], timings: Mapping[str, GenerationTiming] | None) -> list[float]:
    predicted = predicted_us(rows, timings)
    return [us / row.measured_us - 1 for row, us in zip(rows, predicted, strict=True)]


def spread_of(errors: Iterable[tuple[NcclRow, float]]) -> dict[str, dict[str, dict[str, float]]]:
    """Error that 68.3 % of the rows stay within: nodes -> collective (and "any") -> size band.

    A family of fewer than five rows is left to "any".
    """
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row, error in errors:
        for collective in (row.collective, ANY_COLLECTIVE):
            groups[nodes_key(row.setup.nodes), collective, band_key(row.num_bytes)].append(abs(error))
    spread: dict[str, dict[str, dict[str, float]]] = {}
    order = sorted(groups.items(), key=lambda item: (*item[0][:2], BAND_KEYS.index(item[0][2])))
    for (nodes, collective, band), group in order:
        if len(group) >= _SMALLEST_FAMILY or collective == ANY_COLLECTIVE:
            bands = spread.setdefault(nodes, {}).setdefault(collective, {})
            bands[band] = float(np.quantile(group, _ONE_SIGMA))
    return spread


def _bounds(names: Sequence[str], scale: FloatArray) -> tuple[FloatArray, FloatArray]:
    reach = np.log(_RANGE)
    upper = np.full(len(names), 1.0 + reach)
    for index, name in enumerate(names):
        most = _AT_MOST.get(name.rpartition(".")[2])
        if most is not None:
            upper[index] = 1.0 + max(1e-6, np.log(most / scale[index]))
    return np.full(len(names), 1.0 - reach), upper


def print_nccl_fit(generation: str, path: str, cross_validate: bool) -> None:
    """Fit and print a generation's profile; with ``cross_validate`` also errors of left-out sources.

    InputError for a bad file or a generation without rows.
    """
    rows, _ = read_nccl_rows(path)
    fit = fit_nccl(generation, rows, timing_of(_BETWEEN_NODES_FROM))
    print(profile_text(fit, rows))
    if cross_validate:
        _print_cross_validation(rows)


def profile_text(fit: NcclFit, rows: Sequence[NcclRow]) -> str:
    """The profile of a fit, as ``hardware_profiles/nccl/<generation>.toml`` holds it."""
    kept = [row for row in rows if tells_constants(row) and generation_of(row) == fit.generation]
    publishers = ", ".join(dict.fromkeys(row.source.split(" ")[0] for row in kept))
    one_node = all(row.setup.nodes == 1 for row in kept)
    between = f"; network hops and trees: as fitted for {_BETWEEN_NODES_FROM}" if one_node else ""
    source = (
        f"scripts/calibrate.py {fit.generation} --nccl: {fit.num_rows} rows of {publishers}; mean error"
        f" {100 * fit.mean_error:.1f} %; not fitted: Simple.channel_bytes_per_s (a round number) and"
        f" LL128.channel_bytes_per_s (NCCL's tuning table){between}"
    )

    def assignments(values: Mapping[str, float]) -> list[str]:
        return [f"{key} = {value:.4g}" for key, value in values.items()]

    lines = [
        f"# Timing constants of NCCL collectives on the {fit.generation} generation.  Meaning of each key:",
        "# simcore/collectives/timing.py.  Times are seconds, sizes bytes, shares of 1.",
        "",
    ]
    for name, timed in fit.timing.protocols.items():
        lines += [f"[protocol.{name}]", *assignments(vars(timed)), f'source = "{source}"', ""]
    others = {key: value for key, value in vars(fit.timing).items() if key != "protocols"}
    lines += ["[collectives]", *assignments(others), f'source = "{source}"']
    return "\n".join(lines)


def _print_cross_validation(rows: Sequence[NcclRow]) -> None:
    left_out: dict[int, tuple[NcclRow, float]] = {}
    print("\n# " + summary_head("left out of the fit", 78, 6))
    for source, scored in left_out_errors(rows, lambda row: row.source):
        left_out |= {row.line: (row, error) for row, error in scored}
        table = error_table(
            {"id": row.line, "family": source, "measured": 1.0, "predicted": 1 + error}
            for row, error in scored
        )
        shown = summary_line("", table.overall).strip() if scored else "measured what no other source did"
        print(printable(f"# {source[:78]:78}{shown:>42}"), flush=True)
    # A kind of row that one source alone measured has the error of the fit itself.
    errors = [left_out.get(row.line, (row, error)) for row, error in own_errors(rows)]
    print(f"\n# {len(left_out)} of {len(errors)} rows are of kinds that more than one source measured")
    print("# hardware_profiles/measured/nccl_spread.toml")
    for nodes, collectives in spread_of(errors).items():
        for collective, bands in collectives.items():
            print(f"\n[{nodes}.{collective}]")
            print("\n".join(f"{band} = {value:.3f}" for band, value in bands.items()))

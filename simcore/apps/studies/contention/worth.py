"""What each mechanism is worth: recorded kernels predicted without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from simcore.apps.studies.contention.beside import PHYSICS
from simcore.apps.studies.contention.left_out import Case
from simcore.apps.studies.contention.summary import nearness

_GRIDS: Final = "waves of products without a grid"
_FEW_US: Final = 1.5  # what kernels wait where a few peers' data moves (hardware_profiles/sm/ampere.toml)
_WITHOUT: Final[Mapping[str, Mapping[str, Any]]] = {
    "partners": {"partners": False},
    "saturation of elementwise kernels": {"saturating": 1.0},
    "products whose loads run ahead": {"prefetching": False},
    "last waves of few blocks": {"in_common": 0.0},
    "blocks side by side": {"side_by_side": 1.0},
    "blocks of an exchange end with their peers": {"peers": False},
    "small grids": {"small_grids": False},
    "what fills the GPU": {"fills": False},
    "few warps that wait for their loads": {"waits": False},
    "staging through shared memory": {"staged": False},
    "communication's draw on HBM": {"draws": False},
    _GRIDS: {},
    "full links (1.5 us there, too)": {"full_us": _FEW_US},
    "all fences": {"full_us": 0.0},
}


def worth(traces: Mapping[str, Sequence[Case]]) -> dict[str, dict[str, dict[str, Any]]]:
    """By what is left out ("" for nothing, "all of them"), scores by trace; empty for no kernels."""
    if not traces:
        return {}
    everything = {key: value for changed in _WITHOUT.values() for key, value in changed.items()}
    asked = {"": {}, **_WITHOUT, "all of them": everything}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, changed in asked.items():
        physics = replace(PHYSICS, **changed)
        told = name in (_GRIDS, "all of them")
        found[name] = {
            trace: nearness(
                [beside.alone_ps for beside, _ in cases],
                [recorded for _, recorded in cases],
                [(beside.told() if told else beside).time_ps(physics) for beside, _ in cases],
            )
            for trace, cases in traces.items()
        }
    return found

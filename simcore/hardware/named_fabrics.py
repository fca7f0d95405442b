"""Fabrics that reports call by name: which words mean which cluster profile."""

from __future__ import annotations

import re
from typing import Final

#: Words of reports (ignoring case) -> fabric, the first that matches.  A3 Mega machines have FasTrak NICs
#: (TCPXO), A3 High ones GPUDirect-TCPX; p4d, p4de and p5 are AWS's machines with EFA.
_WORDS: Final = (
    (r"\bTCP-?XO\b|\bFasTrak\b|\bA3[ -]?Mega(gpu)?\b", "tcpxo"),
    (r"\bTCP-?X\b|\bA3[ -]?High(gpu)?\b", "tcpx"),
    (r"\bEFA(v[12])?\b|\baws-ofi-nccl\b|\bp4de?\.24xl|\bp5e?n?\.48xl", "efa"),
    (r"\bRoCE(v2)?\b", "roce"),
)
#: Family of the usual nodes of a GPU -> (nodes of the same NVLink generation, the GPU's profile).
_FAMILIES: Final = {
    "a100": ("a100", "a100-80"),
    "a100-40gb": ("a100", "a100-40"),
    "a800": ("a100", "a800"),
    "h100": ("h100", "h100-sxm"),
    "h100-96gb": ("h100", "h100-96gb"),
    "h200": ("h100", "h200"),
    "h800": ("h100", "h800"),
    "h20": ("h100", "h20"),
}
#: (nodes, fabric) -> profile, where there is one.
_PROFILES: Final = {
    ("a100", "efa"): "a100-efa",
    ("a100", "roce"): "a100-roce",
    ("h100", "efa"): "h100-efa",
    ("h100", "tcpx"): "h100-tcpx",
    ("h100", "tcpxo"): "h100-tcpxo",
    ("h100", "roce"): "h100-roce",
}


def named_fabric(said: str) -> str | None:
    """The fabric that words name: "efa", "tcpx", "tcpxo" or "roce"; None for none of them."""
    return next((name for words, name in _WORDS if re.search(words, said, re.IGNORECASE)), None)


def fabric_profile(family: str, said: str) -> tuple[str, str] | None:
    """(cluster profile, GPU for its ``cluster.gpu``) of a GPU ``family`` on the fabric that ``said`` names.

    None where no fabric is named, or no such machine is described.
    """
    nodes, gpu = _FAMILIES.get(family, ("", ""))
    profile = _PROFILES.get((nodes, named_fabric(said) or ""))
    return None if profile is None else (profile, gpu)

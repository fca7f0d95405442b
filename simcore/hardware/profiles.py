"""Reads hardware_profiles/{gpu,die,cluster}/*.toml and a user's own, not yet as specs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simcore import tables
from simcore.errors import InputError, nearest
from simcore.hardware.keys import CLUSTER, DIE, FROM_XML, GPU, LISTS
from simcore.hardware.sustained import Sustained
from simcore.outside import inside
from simcore.records import dataclass
from simcore.tables import Maybe, Text

if TYPE_CHECKING:
    from simcore.hardware.node_xml import NodeXml

_SIZED_NAME: Final = re.compile(r"(?P<family>.+)-(?P<gpus>[0-9]{1,9})")
#: As others write them.
_COUNT_FIRST: Final = re.compile(r"(?P<gpus>[0-9]{1,9}) ?x ?(?P<family>.+)")
_COUNT_LAST: Final = re.compile(r"(?P<family>.*[0-9][a-z]*) ?[x:] ?(?P<gpus>[0-9]{1,9})")
#: Tables that a generation may have of its own, by folder of hardware_profiles.
_OF_GENERATION: Final = {
    "cost": "constants of kernels", "nccl": "timing of collectives", "tuner": "tuning table of NCCL",
}  # fmt: skip
#: Generations whose name is closer than this to one that has tables are taken for misspelt.
_MISSPELT: Final = 0.8


@dataclass
class Profile:
    """A profile's content in SI units, not yet a spec, so that overrides can still change it.

    ``sustained`` is only used by GPUs, ``node`` (what its ``node_xml`` says) by clusters.  ``folder`` is
    where paths in the file are relative to, None for a profile of the project.
    """

    where: str
    values: dict[str, Any]
    sources: dict[str, str]
    folder: Path | None = None
    node: NodeXml | None = None
    sustained: Sustained | None = None


def gpu_names(naming: str = "") -> tuple[str, ...]:
    """Names of the GPU profiles that come with the project; ``naming``: whose text has this word."""
    known = tables.names("hardware_profiles", "gpu")
    if not naming:
        return known
    return tuple(name for name in known if naming in tables.text("hardware_profiles", f"gpu/{name}.toml"))


def cluster_names() -> tuple[str, ...]:
    """Cluster families that come with the project; ``<family>-<number of GPUs>`` picks a size."""
    return tables.names("hardware_profiles", "cluster")


def read_gpu(name_or_path: str, relative_to: Path | None = None) -> Profile:
    """A GPU profile by name or file.  InputError names the file and key at fault."""
    table, where, folder = _toml("gpu", name_or_path, relative_to)
    sources: dict[str, str] = {}
    values = tables.read(GPU, table, where, sources)
    if not values["peak_flops"]:
        raise InputError(f"{where}: peak_flops must be a table of math modes")
    die = values.get("die")
    return Profile(where, values, sources, folder, sustained=None if die is None else read_die(die, folder))


def settle_generation(gpu: Profile) -> None:
    """Puts another generation, by default the latest, in place of one that lacks tables, and says so.

    InputError for a generation that seems misspelt.
    """
    values, where = gpu.values, gpu.where
    generation, like = values["generation"], values.pop("like", None)
    named = {what: tables.names("hardware_profiles", kind) for kind, what in _OF_GENERATION.items()}
    known = sorted(set.intersection(*map(set, named.values())))
    if like is not None:
        Text(tuple(known)).from_value(like, f"{where}: like")
    missing = [what for what, described in named.items() if generation not in described]
    if not missing:
        return
    near = difflib.get_close_matches(generation, known, 1, _MISSPELT)
    if like is None and near and len(missing) == len(named):
        raise InputError(
            f"{where}: generation cannot be {generation!r}; did you mean {near[0]!r}? A new one says which it"
            f' is like: like = "{near[0]}"'
        )
    values["like"] = like or max(known, key=_since)
    why = "the latest generation that has them" if like is None else "which its file says it is like"
    gpu.sources["generation"] = (
        f"assumption: {generation} has no {', '.join(missing)} of its own: those of {values['like']}, {why}"
    )


def _since(generation: str) -> int:
    """Year of the generation's first GPU."""
    return int(tables.load(Any, "hardware_profiles", f"cost/{generation}.toml")["since"])


def dies() -> dict[str, Sustained]:
    """What each die with a profile keeps up under load, by its name."""
    return {name: read_die(name) for name in tables.names("hardware_profiles", "die")}


def read_die(name: str, relative_to: Path | None = None) -> Sustained:
    """What the die ``name`` keeps up under load.  InputError names the file and key at fault."""
    if name in tables.names("hardware_profiles", "die"):
        return _project_die(name)
    return _die(name, relative_to)


@cache
def _project_die(name: str) -> Sustained:
    return _die(name, None)


def _die(name: str, relative_to: Path | None) -> Sustained:
    table, where, _ = _toml("die", name, relative_to)
    sources: dict[str, str] = {}
    values = tables.read(DIE, table, where, sources)
    Text(gpu_names()).from_value(values["reference"], f"{where}: reference")
    values["measured_on"] = tuple(values.get("measured_on", ()))
    sources.pop("measured_on", None)
    boards = values.setdefault("boards", {})
    for board, own in boards.items():
        if "reference" in own:
            Text(gpu_names()).from_value(own["reference"], f"{where}: boards.{board}: reference")
    return Sustained(**values, sources=sources)


def read_cluster(name_or_path: str) -> Profile:
    """A cluster profile by name (``h800``, ``h800-96``) or file.  InputError names the key at fault."""
    known = cluster_names()
    sized = _SIZED_NAME.fullmatch(name_or_path)
    if name_or_path in known or sized is None or sized["family"] not in known:
        return _read_cluster_file(name_or_path)
    profile = _read_cluster_file(sized["family"])
    num_gpus, per_node = int(sized["gpus"]), profile.values["gpus_per_node"]
    if 0 < num_gpus < per_node:
        return _part_of_a_node(profile, num_gpus, name_or_path)
    if num_gpus < 1 or num_gpus % per_node:
        nodes = num_gpus // per_node
        near = " or ".join(f"{sized['family']}-{n * per_node}" for n in (nodes, nodes + 1) if n)
        raise InputError(
            f"cluster {name_or_path!r}: {num_gpus} GPUs are no whole number of {per_node}-GPU nodes;"
            f" nearest: {near}"
        )
    profile.values |= {"num_nodes": num_gpus // per_node, "name": name_or_path}
    profile.sources["num_nodes"] = f"cluster name {name_or_path!r}"
    return profile


def _part_of_a_node(profile: Profile, num_gpus: int, name: str) -> Profile:
    """One node, whose first ``num_gpus`` GPUs are used; behind NVSwitches as if it had no others."""
    profile.values |= {"num_nodes": 1, "name": name}
    if profile.values["intra_node"] == "nvswitch" and not any(key in profile.values for key in LISTS):
        profile.values["gpus_per_node"] = num_gpus
    else:
        profile.values["placement"] = ",".join(map(str, range(num_gpus)))
    for key in ("num_nodes", "gpus_per_node"):
        profile.sources[key] = f"cluster name {name!r}: some GPUs of a node"
    return profile


def _read_cluster_file(name_or_path: str) -> Profile:
    table, where, folder = _toml("cluster", name_or_path, None)
    may_miss: set[str] = {"spine_oversubscription"} if table.get("fabric") == "dragonfly" else set()
    if "node_xml" in table:
        may_miss |= set(FROM_XML)
        clash = [key for key in ("intra_node", "gpus_per_node", *LISTS) if key in table]
        if clash:
            raise InputError(f"{where}: {clash[0]} comes from node_xml; remove one of them")
    schema = {**CLUSTER, **{key: Maybe(CLUSTER[key]) for key in may_miss - LISTS.keys()}}
    sources: dict[str, str] = {}
    return Profile(where, tables.read(schema, table, where, sources), sources, folder)


def _toml(kind: str, name_or_path: str, relative_to: Path | None) -> tuple[Any, str, Path | None]:
    """(table, what to call it in messages, its folder when it is a user's file)."""
    path = Path(name_or_path)
    if path.suffix == ".toml" or len(path.parts) > 1:
        full = path if relative_to is None else inside(relative_to, name_or_path, f"{kind} profile")
        return tables.read_file(full, f"{kind} profile"), str(full), full.parent
    known = tables.names("hardware_profiles", kind)
    if name_or_path not in known:
        close = _nearest_cluster(name_or_path, known) if kind == "cluster" else nearest(name_or_path, known)
        raise InputError(f"unknown {kind} {name_or_path!r}{close}")
    table = tables.load(Any, "hardware_profiles", f"{kind}/{name_or_path}.toml")
    return table, f"{kind} profile {name_or_path!r}", None


def _nearest_cluster(name: str, known: Sequence[str]) -> str:
    """What was meant by ``name``, with its size: "H100-8", "8xh100", a GPU's profile ("h100-sxm-8")."""
    said = name.lower()
    matches = (pattern.fullmatch(said) for pattern in (_COUNT_FIRST, _SIZED_NAME, _COUNT_LAST))
    found = next(filter(None, matches), None)
    family, size = (found["family"], found["gpus"]) if found else (said, "")
    same = [one for one in known if _read_cluster_file(one).values["gpu"] in (family, said)]
    if same:
        return f": that is a GPU; clusters of it: {', '.join(f'{one}-{size or 8}' for one in same)}"
    close = nearest(family, known)
    if size and close.startswith("; did you mean"):
        close = close.replace("' or", f"-{size}' or").replace("'?", f"-{size}'?")
    return f"{close} (a cluster's size follows its name: h800-96)"


#: Words of reports (ignoring case) -> transport, the first that matches.  A3 Mega machines have FasTrak NICs
#: (TCPXO), A3 High ones GPUDirect-TCPX; p4d, p4de and p5 are AWS's machines with EFA.
_TRANSPORT_WORDS: Final = (
    (r"\bTCP-?XO\b|\bFasTrak\b|\bA3[ -]?Mega(gpu)?\b", "tcpxo"),
    (r"\bTCP-?X\b|\bA3[ -]?High(gpu)?\b", "tcpx"),
    (r"\bEFA(v[12])?\b|\baws-ofi-nccl\b|\bp4de?\.24xl|\bp5e?n?\.48xl", "efa"),
    (r"\bRoCE(v2)?\b", "roce"),
)


def named_fabric(said: str) -> str | None:
    """The transport that words name: "efa", "tcpx", "tcpxo" or "roce"; None for none of them."""
    return next((name for words, name in _TRANSPORT_WORDS if re.search(words, said, re.IGNORECASE)), None)


def fabric_profile(family: str, said: str) -> tuple[str, str] | None:
    """(cluster profile, GPU for its ``cluster.gpu``) of a GPU ``family`` on the fabric that ``said`` names.

    The profile is one whose GPUs have the family's die, behind the same kind of switches.  None where no
    fabric is named, or no such machine is described.
    """
    return _on_transport(family, named_fabric(said) or "")


@cache
def _on_transport(family: str, transport: str) -> tuple[str, str] | None:
    described = {name: read_cluster(name).values for name in cluster_names()}
    usual = described.get(family)
    if usual is None or "transport" in usual or usual["intra_node"] != "nvswitch":
        return None
    die = read_gpu(usual["gpu"]).values.get("die")
    for name, other in described.items():
        if die and other.get("transport") == transport and read_gpu(other["gpu"]).values.get("die") == die:
            return name, usual["gpu"]
    return None

"""``--set KEY=VALUE``: which keys there are, and what each one reaches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from simcore.errors import InputError, nearest
from simcore.hardware import OVERRIDE_KEYS, is_hardware_key
from simcore.memory.caching import AllocatorSettings
from simcore.network.packet import ROUTINGS, TRANSPORTS, PacketSettings
from simcore.records import dataclass
from simcore.units import Number

if TYPE_CHECKING:
    from simcore.cost import MeasuredTable

KERNELS: Final = ("unfused", "megatron", "flash", "cudnn")
FP32_MATH: Final = ("ieee", "tf32")

_CHOICES: Final = {
    "workload.kernels": KERNELS,
    "workload.fp32_math": FP32_MATH,
    "memory.check": ("refuse", "warn"),
}
#: ``network.*`` for packets: names to choose from, and what a job may cost.
_NETWORK_TEXTS: Final = {"transport": TRANSPORTS, "routing": ROUTINGS}
_MAX_EVENTS: Final = Number("count", integer=True)
_NCCL_TEXTS: Final = ("algorithm", "protocol")
_NCCL_NUMBERS: Final = {
    "min_channels": Number("count", integer=True),
    "max_channels": Number("count", integer=True),
    "buffer_bytes": Number("size", integer=True),
}
_NVLS: Final = "nccl.nvls"
_SWITCHED: Final = {"0": False, "off": False, "false": False, "1": True, "2": True, "on": True, "true": True}
#: NCCL's environment variables, as users know them.
NCCL_VARIABLES: Final = {
    "NCCL_ALGO": "nccl.algorithm",
    "NCCL_PROTO": "nccl.protocol",
    "NCCL_MIN_NCHANNELS": "nccl.min_channels",
    "NCCL_MIN_CTAS": "nccl.min_channels",
    "NCCL_MAX_NCHANNELS": "nccl.max_channels",
    "NCCL_MAX_CTAS": "nccl.max_channels",
    "NCCL_BUFFSIZE": "nccl.buffer_bytes",
    "NCCL_NVLS_ENABLE": _NVLS,
}
_KERNEL_TIMES: Final = "workload.kernel_times"
_ALLOCATOR: Final = "memory.allocator"
_NOISE: Final = "noise.sigma"
_SHORTCUTS: Final = "engine.shortcuts"
_SIGMA: Final = Number("ratio", zero_allowed=True, at_most=1)
#: What may differ from rank to rank: how fast its GPU is.
RANK_KEYS: Final = (
    "gpu.clock",
    *(
        f"gpu.{key}"
        for key in ("num_sms", "hbm_bytes_per_s", "l2_bytes_per_s", "gemm_efficiency", "hbm_efficiency")
    ),
    *(f"gpu.{key}" for key in ("launch_overhead_s", "launch_latency_s", "kernel_gap_s")),
    *(key for key in OVERRIDE_KEYS if key.startswith("gpu.peak_flops.")),
)
KEYS: Final = (
    *_CHOICES,
    _KERNEL_TIMES,
    _ALLOCATOR,
    *(f"nccl.{name}" for name in (*_NCCL_TEXTS, *_NCCL_NUMBERS)),
    _NVLS,
    *NCCL_VARIABLES,
    *(f"network.{name}" for name in (*_NETWORK_TEXTS, "max_events")),
    _NOISE,
    _SHORTCUTS,
    *OVERRIDE_KEYS,
)
_RANK: Final = re.compile(r"rank\.([0-9]{1,9})\.(.+)")
_NODE: Final = re.compile(r"node\.([0-9]{1,9})\.(.+)")
#: Settings of single ranks, nodes and links.
NUMBERED: Final = ("rank.<n>.gpu.clock", "node.<n>.extra_latency_s", "link.<name>.bytes_per_s")


@dataclass(frozen=True)
class RunSettings:
    """Settings by what they reach; ``given`` is what the user wrote, for the record.

    ``kernels`` is the kernel mapping ("": the usual one of the program), ``hardware`` are overrides for
    :func:`simcore.hardware.load_cluster`; ``nccl_texts``, ``nccl_numbers`` and ``nvls`` arguments of the
    planner; ``ranks`` are overrides of single ranks' GPUs, ``nodes`` extra latencies of single nodes,
    ``noise_sigma`` the spread of kernel times, ``packets`` what the packet network assumes; ``tables`` hold
    measured kernel times that override formulas.  ``refuse_memory``: a job that is predicted not to fit is
    refused; ``allocator``: of PyTorch, as PYTORCH_ALLOC_CONF has it, None: as the job says.  ``shortcuts``:
    who may answer for the engine; the result is the same.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    kernels: str = ""
    fp32_math: str = "ieee"
    refuse_memory: bool = True
    allocator: AllocatorSettings | None = None
    tables: tuple[MeasuredTable, ...] = ()
    nccl_texts: Mapping[str, str] = field(default_factory=dict)
    nccl_numbers: Mapping[str, int] = field(default_factory=dict)
    nvls: bool = True
    hardware: Mapping[str, str] = field(default_factory=dict)
    ranks: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)
    noise_sigma: float = 0.0
    packets: PacketSettings = field(default_factory=PacketSettings)
    shortcuts: frozenset[str] | None = None  # all

    @property
    def nccl(self) -> dict[str, Any]:
        """Arguments of the planner."""
        return {**self.nccl_texts, **self.nccl_numbers, "nvls": self.nvls}


def choices_of(key: str) -> tuple[str, ...]:
    """The values that a setting chooses from; nothing where it takes others."""
    name = key.rpartition(".")[2]
    return _CHOICES.get(key, _NETWORK_TEXTS.get(name, ()) if key.startswith("network.") else ())


def split_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """``KEY=VALUE`` strings as a mapping.

    InputError for one without a key or value, and for a key that is given two values.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise InputError(f"--set {pair!r}: expected KEY=VALUE, such as workload.kernels=flash")
        before = settings.setdefault(key.strip(), value.strip())
        if before != value.strip():
            raise InputError(f"--set {key.strip()} is given both {before!r} and {value.strip()!r}")
    return settings


def parse_settings(given: Mapping[str, str]) -> RunSettings:
    """Sort settings by what they reach.

    Errors: InputError for an unknown key (with the nearest one) or a value that the key cannot have.
    Hardware values are checked where hardware is loaded.
    """
    choices = {key: allowed[0] for key, allowed in _CHOICES.items()} | {"workload.kernels": ""}
    nccl_texts: dict[str, str] = {}
    nccl_numbers: dict[str, int] = {}
    hardware: dict[str, str] = {}
    ranks: dict[int, dict[str, str]] = {}
    nodes: dict[int, str] = {}
    sigma = 0.0
    nvls = True
    packets = PacketSettings()
    tables: tuple[MeasuredTable, ...] = ()
    shortcuts: frozenset[str] | None = None
    allocator: AllocatorSettings | None = None
    for key, value in without_variables(given).items():
        name = key.removeprefix("nccl.")
        if key in _CHOICES:
            if value not in _CHOICES[key]:
                raise InputError(f"{key} cannot be {value!r}{nearest(value, _CHOICES[key])}")
            choices[key] = value
        elif key == _KERNEL_TIMES:
            from simcore.cost import MeasuredTable  # prices no kernel: what only asks for memory needs none

            tables = (MeasuredTable.load(value),)
        elif key == _ALLOCATOR:
            allocator = AllocatorSettings.from_text(value)
        elif key in OVERRIDE_KEYS or (is_hardware_key(key) and key.startswith("link.")):
            hardware[key] = value
        elif name != key and name in _NCCL_TEXTS:
            nccl_texts[name] = value
        elif name != key and name in _NCCL_NUMBERS:
            nccl_numbers[name] = int(_NCCL_NUMBERS[name].from_text(value, key))
        elif key == _NVLS:
            if value.lower() not in _SWITCHED:
                raise InputError(f"{_NVLS} cannot be {value!r}{nearest(value, _SWITCHED)}")
            nvls = _SWITCHED[value.lower()]
        elif (field_name := key.removeprefix("network.")) in _NETWORK_TEXTS and field_name != key:
            if value not in _NETWORK_TEXTS[field_name]:
                raise InputError(f"{key} cannot be {value!r}{nearest(value, _NETWORK_TEXTS[field_name])}")
            packets = (
                replace(packets, transport=value)
                if field_name == "transport"
                else replace(packets, routing=value)
            )
        elif key == "network.max_events":
            packets = replace(packets, max_events=int(_MAX_EVENTS.from_text(value, key)))
        elif key == _NOISE:
            sigma = _SIGMA.from_text(value, key)
        elif key == _SHORTCUTS:
            from simcore.run import shortcuts_of  # and the engine, which not every command plays

            shortcuts = shortcuts_of(value)
        elif match := _RANK.fullmatch(key):
            ranks.setdefault(int(match[1]), {})[_rank_key(match[1], match[2])] = value
        elif match := _NODE.fullmatch(key):
            if match[2] != "extra_latency_s":
                raise InputError(f"unknown setting {key!r}; did you mean 'node.{match[1]}.extra_latency_s'?")
            nodes[int(match[1])] = value
        else:
            raise InputError(f"unknown setting {key!r}{nearest(key, (*KEYS, *NUMBERED))}")
    return RunSettings(
        given=dict(given),
        kernels=choices["workload.kernels"],
        fp32_math=choices["workload.fp32_math"],
        refuse_memory=choices["memory.check"] == "refuse",
        allocator=allocator,
        tables=tables,
        nccl_texts=nccl_texts,
        nccl_numbers=nccl_numbers,
        nvls=nvls,
        hardware=hardware,
        ranks=ranks,
        nodes=nodes,
        noise_sigma=sigma,
        packets=packets,
        shortcuts=shortcuts,
    )


def without_variables(given: Mapping[str, str]) -> dict[str, str]:
    """``given`` with NCCL's environment variables under the keys that they stand for.

    InputError when one thing is set twice.
    """
    keys: dict[str, str] = {}
    for key, value in given.items():
        plain = NCCL_VARIABLES.get(key, key)
        if keys.setdefault(plain, value) != value:
            raise InputError(f"{key} = {value!r} contradicts {plain} = {keys[plain]!r}")
    return keys


def _rank_key(rank: str, key: str) -> str:
    """The GPU's key in ``rank.<n>.gpu.*``.  InputError for what cannot differ from rank to rank."""
    if key not in RANK_KEYS:
        hint = nearest(f"rank.{rank}.{key}", (f"rank.{rank}.{known}" for known in RANK_KEYS))
        raise InputError(f"'rank.{rank}.{key}' cannot be set for a single rank{hint}")
    return key

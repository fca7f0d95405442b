"""Launch files: which dialect, which words, on how many GPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, nearest
from simcore.outside import json_document, read_text, there, toml_document, yaml_document
from simcore.records import dataclass
from workloads.jobs.complete import Description
from workloads.jobs.draft import Assumed
from workloads.jobs.launch.deepspeed import DEEPSPEED
from workloads.jobs.launch.dialect import Dialect, Launch, read_words, written
from workloads.jobs.launch.logged import logged_launch
from workloads.jobs.launch.megatron import MEGATRON
from workloads.jobs.launch.options import Words, whole
from workloads.jobs.launch.overrides import MEGATRON_BRIDGE, NEMO
from workloads.jobs.launch.shell import is_script, launched, plain_words, program_of, read_script
from workloads.jobs.launch.torchtitan import TORCHTITAN

#: What ``--emit`` knows.
DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect for dialect in (MEGATRON, MEGATRON_BRIDGE, NEMO, TORCHTITAN, DEEPSPEED)
}
#: Files that are parsed as a whole.
_DOCUMENTS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    ".yaml": yaml_document, ".yml": yaml_document, ".toml": toml_document, ".json": json_document,
}  # fmt: skip
#: A variable that is set for a command.
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_NAMED: Final = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
#: Where flags stand that are no file's.
_GIVEN: Final = "the flags"
#: Slurm's, in a script's head: "#SBATCH --nodes=4" and "#SBATCH --gpus-per-node=8" or "--gres=gpu:8".
_SLURM_NODES: Final = re.compile(r"^#SBATCH\s+(?:--nodes[= ]|-N\s*)([0-9]{1,6})\s*$", re.MULTILINE)
_SLURM_EACH: Final = re.compile(
    r"^#SBATCH\s+--(?:gpus-per-node|ntasks-per-node|gres)[= ](?:\w+:)*([0-9]{1,3})\s*$", re.MULTILINE
)
#: torchrun's options, and those of how many processes there are.
_LAUNCHER: Final = (
    "__nproc_per_node", "__nnodes", "__node_rank", "__master_addr", "__master_port", "__rdzv_backend",
    "__rdzv_endpoint", "__rdzv_id", "__rdzv_conf", "__max_restarts", "__standalone", "__tee", "__log_dir",
    "__redirects", "__role", "__local_ranks_filter",
)  # fmt: skip
#: Of torchrun, on a node and nodes of it; more is a mistake.
_MOST_PROCESSES: Final = 100_000_000
_PER_NODE: Final = ("--nproc_per_node", "--nproc-per-node")
_NODES: Final = ("--nnodes",)


def dialect_of(name: str) -> Dialect:
    """By name.  InputError for an unknown one, with the nearest."""
    if name not in DIALECTS:
        raise InputError(f"unknown framework {name!r}{nearest(name, DIALECTS)}")
    return DIALECTS[name]


def emitted(name: str, job: Description, header: Sequence[str], gpus_per_node: int = 8) -> tuple[str, str]:
    """(text, suffix) of a file by which framework ``name`` runs ``job`` on nodes of so many GPUs.

    InputError for an unknown framework, or a job that it does not run.
    """
    dialect = dialect_of(name)
    return written(dialect, job, header, gpus_per_node), dialect.suffix


@dataclass(frozen=True)
class Told:
    """Words of a launch before they are read: ``num_gpus`` as its launcher is told, 0 where nothing is."""

    dialect: Dialect
    words: Words
    where: str
    num_gpus: int
    notes: tuple[str, ...]

    @property
    def least_gpus(self) -> int:
        """GPUs of one replica, of which there are whole ones; 1 where its words cannot be."""
        try:
            parallel = self._read(1 << 20).content.get("parallel", {})
        except InputError:
            return 1
        return math.prod(int(parallel.get(axis, 1)) for axis in ("tp", "cp", "pp"))

    def _read(self, num_gpus: int) -> Launch:
        return read_words(self.dialect, self.dialect.heard(self.words), self.where, num_gpus)

    def on(self, num_gpus: int) -> Launch:
        """The job on ``num_gpus`` GPUs.  InputError for values that cannot be."""
        try:
            found = self._read(num_gpus)
        except InputError as error:
            if not self.notes:
                raise
            hint = "; variables and arguments go with it: 'NAME=VALUE script.sh ARGUMENTS'"
            raise InputError(f"{error} ({'; '.join(self.notes)[:300]}{hint})") from None
        notes = list(self.notes)
        if self.num_gpus and self.num_gpus != num_gpus:
            notes.append(f"it starts {self.num_gpus} processes; the cluster has {num_gpus} GPUs")
        more = tuple(Assumed("", None, f"{self.where}: {note}") for note in notes)
        name = self.dialect.name if self.where == _GIVEN else Path(self.where).stem
        content = {**found.content, "model": {"name": name, **found.content.get("model", {})}}
        return Launch(content, found.not_understood, (*more, *found.assumed))


def tells_launch(name: str, path: Path) -> bool:
    """Whether a training log of framework ``name`` tells how it was launched."""
    if name not in DIALECTS:
        return False
    return logged_launch(DIALECTS[name], read_text(path, "training log"), str(path)) is not None


def read_launch(name: str, given: str) -> Told:
    """What ``given`` says: a file (also a training log that tells its launch), or flags themselves.

    InputError for a file that cannot be read, and words that are no flags.
    """
    dialect = dialect_of(name)
    if "\n" in given or given.lstrip().startswith("-"):
        return _told(dialect, given, _GIVEN)
    started = _Started.of(given)
    path = started.path
    text = read_text(path, f"{dialect.called}'s flags")
    read = _DOCUMENTS.get(path.suffix.lower())
    if read is not None:
        content = read(started.filled(text), str(path))
        if not isinstance(content, Mapping):
            raise InputError(f"{path}: expected keys and values")
        return Told(dialect, dialect.document(content, str(path)), str(path), 0, ())
    if (logged := logged_launch(dialect, text, str(path))) is not None:
        return Told(dialect, logged[0], str(path), logged[1], tuple(logged[2]))
    return _told(dialect, text, str(path), started)


@dataclass(frozen=True)
class _Started:
    """A script as a shell is told to start it: ``NAME=VALUE ... FILE ARGUMENTS``."""

    path: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: str) -> _Started:
        """InputError where there is no such file."""
        if there(Path(given)):
            return cls(Path(given))
        words = plain_words(given, given[:200])
        ahead = list(takewhile(_VARIABLE.match, words))
        rest = words[len(ahead) :]
        rest = rest[1:] if rest[:1] in (["bash"], ["sh"], ["sbatch"]) else rest
        if not rest or not there(Path(rest[0])):
            raise InputError(f"{given[:200]!r}: neither a file nor flags, which begin with --")
        environment = dict(word.split("=", 1) for word in ahead)
        return cls(Path(rest[0]), environment, tuple(rest[1:]))

    def filled(self, text: str) -> str:
        """``text`` with the variables that are set."""
        return _NAMED.sub(lambda found: self.environment.get(found[1] or found[2], found[0]), text)

    def beside(self, name: str) -> str | None:
        """Text of another file in the script's folder; None where there is none."""
        other = self.path.parent / name
        if name in ("", ".", "..") or not there(other) or other.is_dir():
            return None
        return read_text(other, "a script that is sourced")


def _words(text: str, where: str, started: _Started | None) -> tuple[list[str], list[str]]:
    if not is_script(text):
        return plain_words(text, where), []
    if started is None:
        script = read_script(text, where)
    else:
        script = read_script(
            text, where, environment=started.environment, arguments=started.arguments, beside=started.beside
        )
    words = launched(script)
    unset = f"not set in it, taken as empty: {' '.join('$' + name for name in script.unset)[:200]}"
    return words, [*script.notes, *([unset] if script.unset else [])]


def _told(dialect: Dialect, text: str, where: str, started: _Started | None = None) -> Told:
    """A command's words: what is in front of the program is the launcher's."""
    words, notes = _words(text, where, started)
    start = program_of(words)
    program = words[start].rpartition("/")[2] if start >= 0 else ""
    if dialect.foreign.fullmatch(program):
        raise InputError(
            f"{where}: {program} trains models that {dialect.called}'s flags do not describe here"
        )
    flags, more = dialect.parsed(words[start + 1 :], where)
    if not flags:
        raise InputError(f"{where}: no flags of {dialect.called} in it")
    unread = [name for name in _named(words[: start + 1]) if name not in _LAUNCHER]
    if unread:
        more = [*more, f"not read, as it is for the launcher: {' '.join(unread)[:200]}"]
    nodes, each = _SLURM_NODES.search(text), _SLURM_EACH.search(text)
    of_slurm = int(nodes[1]) * int(each[1]) if nodes and each else 0
    return Told(dialect, flags, where, _num_gpus(words[: start + 1]) or of_slurm, (*notes, *more))


def _named(words: Sequence[str]) -> list[str]:
    """Names of flags, with underscores as torchrun takes them, too."""
    return [word.partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]


def _num_gpus(words: Sequence[str]) -> int:
    """Processes that torchrun starts; 0 where it does not say."""

    def said(names: Sequence[str], usual: int) -> int:
        for k, word in enumerate(words):
            name, _, value = word.partition("=")
            if name in names:
                value = value or next(iter(words[k + 1 : k + 2]), "")
                found = whole(value)
                return found if found is not None and 0 < found < _MOST_PROCESSES else 0
        return usual

    return said(_PER_NODE, 0) * said(_NODES, 1)

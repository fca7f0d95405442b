"""A framework's way of being told what to train, and both directions of it.

Note [Nothing is dropped in silence]
    Reading names every word that no option knows.  Writing reads back what it wrote: settings of the job that
    come back otherwise are named as not expressible, so no list of them has to be kept.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from simcore.errors import InputError
from simcore.records import dataclass
from workloads.jobs.complete import SECTIONS, Description, complete
from workloads.jobs.draft import Assumed
from workloads.jobs.launch.options import Option, Said, Words, sections_of, settings_of, words_of
from workloads.jobs.presets import preset_names

#: How much alike a misspelt name and the right one are; others are names that nobody knows here.
_ALIKE: Final = 0.85
#: Names that are told of a kind.
_MOST: Final = 100
#: Not a choice of whoever launches: what a job is called, and two names of one family.
_NAMES: Final = frozenset({"model.name", "model.family", "software.name"})


@dataclass(frozen=True)
class Dialect:
    """``name`` as ``--emit`` takes it; ``called`` as people know it.

    ``preset``: the software that words stand for where nothing else is said.  ``no_influence``: names that
    leave a step's time alone.  ``refused``: why the framework would not run a job.  ``parsed``: a command's
    words as names and their words, with notes (InputError for words that are none); ``document``: those of
    the content of a YAML, TOML or JSON file.  ``rendered``: a file for words, on nodes of so many GPUs;
    ``suffix`` of its name.  ``spoken`` and ``heard``: words of the table in the framework's own names, and
    back.  ``left``: beginnings of settings that the training program says itself.  ``foreign``: programs of
    the framework whose models its flags do not describe here.  ``commented``: a file with lines that people
    read.
    """

    name: str
    called: str
    table: tuple[Option, ...]
    preset: Callable[[Words], str]
    no_influence: re.Pattern[str]
    refused: Callable[[Description], Iterator[str]]
    parsed: Callable[[Sequence[str], str], tuple[Words, list[str]]]
    document: Callable[[Mapping[str, Any], str], Words]
    rendered: Callable[[Description, Words, int], str]
    suffix: str
    spoken: Callable[[Description, Words], Words] = lambda _, words: words
    heard: Callable[[Words], Words] = lambda words: words
    left: tuple[str, ...] = ()
    foreign: re.Pattern[str] = re.compile(r"(?!)")
    commented: Callable[[Sequence[str], str], str] = lambda lines, text: (
        "".join(f"# {line}\n" for line in lines) + text
    )

    @property
    def names(self) -> list[str]:
        """All names that options know."""
        return [name for option in self.table for name in option.names]


@dataclass(frozen=True)
class Launch:
    """What a launch says: sections for ``workloads.jobs.complete``, and what was made of the words.

    ``not_understood``: words without a counterpart; ``assumed``: what was taken for granted.
    """

    content: Mapping[str, Any]
    not_understood: tuple[str, ...]
    assumed: tuple[Assumed, ...]

    def told(self, job: Description) -> Description:
        """``job`` with what was made of the words among what it assumes, and warns of."""
        assumed, warnings = (*self.assumed, *job.assumed), (*self.not_understood, *job.warnings)
        return replace(job, assumed=assumed, warnings=warnings)


def read_words(dialect: Dialect, words: Words, where: str, num_gpus: int) -> Launch:
    """The job that words describe on ``num_gpus`` GPUs.  InputError for values that cannot be."""
    said = Said(words, where, num_gpus)
    settings = settings_of(said, dialect.table)
    known = set(dialect.names)
    others = [name for name in words if name not in known]
    without = [name for name in others if dialect.no_influence.fullmatch(name)]
    unknown = [name for name in others if name not in without]
    notes = list(said.notes)
    if without:
        notes.append(f"no influence on a step's time: {' '.join(sorted(without)[:_MOST])}")
    told = tuple(
        f"{where}: not understood: {' '.join((name, *words[name]))[:100]}{_near(name, known)}"
        for name in unknown[:_MOST]
    )
    content = sections_of(settings)
    content.setdefault("software", {})["preset"] = dialect.preset(words)
    return Launch(content, told, tuple(Assumed("", None, f"{where}: {note}") for note in notes))


def _near(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
    return f"; did you mean {found[0]!r}?" if found else ""


def written(dialect: Dialect, job: Description, header: Iterable[str], gpus_per_node: int) -> str:
    """A file by which the framework runs ``job``; it begins with ``header`` and what it cannot say.

    InputError where the framework refuses the job, with all reasons.
    """
    reasons = [*dialect.refused(job)]
    if reasons:
        raise InputError(f"{dialect.called} does not run this job: {'; '.join(reasons)}")
    words = dialect.spoken(job, words_of(job, dialect.table))
    preset = job.software.name
    lines = [*header]
    if dialect.left:
        lines.append(
            f"said by the training program itself: {' '.join(key.strip('.') for key in dialect.left)}"
        )
    lines += [f"not expressible: {line}" for line in not_expressed(dialect, job, words)]
    usual = dialect.preset(dialect.heard(words))
    if preset != usual and preset in preset_names():
        lines.append(
            f"predicted for the build {preset}; this starts what is read back as {usual} without --set"
            f" software.preset={preset}"
        )
    return dialect.commented(lines, dialect.rendered(job, words, gpus_per_node))


def not_expressed(dialect: Dialect, job: Description, words: Words) -> list[str]:
    """Settings of ``job`` that ``words`` do not bring back, as ``section.key=value``."""
    num_gpus = job.parallel.world_size
    content = dict(read_words(dialect, dialect.heard(words), dialect.called, num_gpus).content)
    if job.software.name in preset_names():
        content["software"] = {**content["software"], "preset": job.software.name}
    if "model." in dialect.left:
        content["model"] = job.model.model_dump()
    back = complete(content, dialect.called, num_gpus=num_gpus)
    theirs, ours = settled(back), settled(job)
    others = {key: value for key, value in ours.items() if not key.startswith(dialect.left or ("-",))}
    return [f"{key}={value}" for key, value in others.items() if theirs.get(key) != value]


def settled(job: Description) -> dict[str, Any]:
    """All settings of a complete job by ``section.key``; what stands for another value is that value."""
    model, p, training = job.transformer, job.parallel, job.training
    found = {
        f"{section}.{key}": value
        for section in SECTIONS
        for key, value in dict(getattr(job, section)).items()
        if f"{section}.{key}" not in _NAMES
    }
    found["model.kv_heads"] = 0 if model.mla is not None else model.num_kv_heads
    found["model.head_size"] = 0 if model.mla is not None else model.size_per_head
    found["model.qkv_bias"] = model.has_qkv_bias
    if model.positions == "learned":
        found["model.max_positions"] = model.max_positions or training.seq
    else:
        found["model.max_positions"] = 0
    found["parallel.etp"] = p.etp or p.tp if model.moe is not None else 0
    found["parallel.dp_shard"] = p.dp_shard or p.dp
    found["parallel.sequence_parallel"] = p.sequence_parallel and p.tp > 1
    if p.cp == 1:
        found["parallel.cp_style"] = ""
    if p.virtual_stages == 1:
        found["parallel.microbatch_group"] = 0
    if p.pp == 1 or p.stage_layers:
        found |= {"parallel.embedding_as_layer": False, "parallel.head_as_layer": False}
    if p.pp == 1 or p.schedule == "interleaved":  # another name of 1F1B with chunks
        found["parallel.schedule"] = "1f1b"
    if p.pp == 1:
        found |= {"training.overlap_p2p": False, "parallel.stage_layers": ()}
    if training.recompute != "full":
        found["training.recompute_layers"] = -1
    if training.recompute != "selective":
        found["training.recompute_modules"] = ()
    if training.precision != "fp8":
        found = {key: value for key, value in found.items() if not key.startswith("software.fp8_")}
    if model.moe is None:
        found = {key: value for key, value in found.items() if not key.startswith("software.moe_")}
        found["training.ep_overlap"] = False
    return found

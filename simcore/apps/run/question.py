"""What is asked of a run: as text, as a key, and as the folder in which its answer stands."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from simcore.cost import MeasuredTable
from simcore.errors import InputError
from simcore.files import folder_name, whole_folder
from simcore.hardware import ClusterSpec, hardware_hash
from simcore.records import dataclass
from simcore.timeline import RunInfo
from simcore.timeline.schema import RUN, RUN_FILE

if TYPE_CHECKING:
    from simcore.apps.run.scenario import Scenario
    from simcore.rules import Rule
    from simcore.run import Setup

#: Where runs go that no folder is named for, and the link to the last of them.
RUNS: Final = Path("runs")
LATEST: Final = "latest"
#: Of :class:`Setup`: who answers for the engine, not what it answers.
_SAME_RESULT: Final = ("fold", "shortcuts")
_LONGEST: Final = 56  # letters of a folder's name before its digest
_DIGEST: Final = 6
_NOT_A_WORD: Final = re.compile(r"[^A-Za-z0-9.]+")


@dataclass(frozen=True)
class RunQuestion:
    """A question: ``text``, arguments of the command that ask it; ``key``, a digest of what it asks.

    Questions that are said differently and mean the same have one key.
    """

    text: str
    key: str


def asked_of(
    scenario: Scenario,
    job: Any,
    cluster: ClusterSpec,
    setup: Setup,
    *,
    edits: Sequence[str] = (),
    rules: Sequence[Rule] = (),
    steady_state: bool = False,
) -> RunQuestion:
    """The question that a scenario asks; ``job``: its description, or a graph's hash."""
    content = question_content(job, cluster, setup, refuse_memory=scenario.settings.refuse_memory)
    content |= {"edits": list(edits), "steady_state": steady_state, "kernels": scenario.settings.kernels}
    if rules:
        content["rules"] = [one.digest for one in rules]
    words = [scenario.named, *_options(scenario)]
    words += [f"--edit {quote(edit)}" for edit in edits]
    words += [f"--rules {quote(file)}" for file in rule_files(rules)]
    words += ["--interference learned"] if setup.learned is not None else []
    words += ["--steady-state"] if steady_state else []
    return RunQuestion(" ".join(words), digest(content))


def question_content(
    job: Any, cluster: ClusterSpec, setup: Setup, *, refuse_memory: bool = True
) -> dict[str, Any]:
    """What decides a run's outcome, beside the code that finds it, as JSON.

    ``job``: a complete description, or a graph's hash.  ``refuse_memory``: whether a job that does not fit is
    an answer.
    """
    said = {one.name: getattr(setup, one.name) for one in fields(setup) if one.name not in _SAME_RESULT}
    return {
        "job": job if isinstance(job, str) else _specs(job),
        "cluster": hardware_hash(cluster),
        "gpu": [cluster.gpu.name, cluster.gpu.die],  # measured runs like it are known by name
        "setup": _plain(said),
        "refuse_memory": refuse_memory,
    }


def digest(content: Mapping[str, Any]) -> str:
    """A digest of JSON values, whatever the order in which they are said."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def rule_files(rules: Sequence[Rule]) -> list[str]:
    """Files in which rules stand."""
    return list(dict.fromkeys(rule.file for rule in rules))


def usual_folder(question: RunQuestion, job: str, scenario: Scenario, edits: Sequence[str] = ()) -> Path:
    """Where the answer goes if nothing else is said: named by the ``job`` and what was changed.

    Files of rules are among ``edits``.

    Stable: the same question has the same folder.
    """
    changes = {**(scenario.described.overrides if scenario.described else {}), **scenario.settings.given}
    words = [job, Path(scenario.cluster).stem]
    words += [f"{key.rpartition('.')[2]}{value}" for key, value in changes.items()]
    words += [Path(edit).stem if edit.endswith(".py") else edit.replace("=", "") for edit in edits]
    name = words[0]
    for word in (_NOT_A_WORD.sub("-", one).strip("-") for one in words[1:]):
        if len(name) + len(word) >= _LONGEST:
            break
        name += f"-{word}" if word not in name else ""
    return RUNS / folder_name(f"{name[:_LONGEST]}-{question.key[:_DIGEST]}")


@contextmanager
def run_folder(path: Path, question: RunQuestion, *, force: bool = False) -> Iterator[Path]:
    """Gives an empty folder for the answer to ``question``, which then appears at ``path`` as a whole.

    ``runs/latest`` points to the last one below ``runs``.  Errors: InputError where ``path`` holds the answer
    to another question (``force`` replaces it), or as :func:`whole_folder`.
    """
    if not force:
        _check_same(path, question)
    with whole_folder(path, RUN) as folder:
        yield folder
    _point_to(path)


def _check_same(path: Path, question: RunQuestion) -> None:
    if not (path / RUN_FILE).is_file():
        return
    try:
        known = RunInfo.read(path)
    except InputError:
        return  # no run, or a damaged one: whole_folder says what may be replaced
    if known.question != question.key:
        asked = known.asked or "it was written by an older version, or for a replay of another kind"
        raise InputError(
            f"{path} answers another question ({asked}); choose another --out, or write over it with --force"
        )


def _point_to(path: Path) -> None:
    """Let the link beside a run in ``runs`` point to it; a file of that name that is no link is left."""
    link = path.parent / LATEST
    if path.parent.name != RUNS.name or path.name == LATEST or (link.exists() and not link.is_symlink()):
        return
    fresh = path.parent / f".{LATEST}-{os.getpid()}"
    with suppress(OSError):  # a file system without links
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(path.name)
        fresh.replace(link)


def _options(scenario: Scenario) -> Iterator[str]:
    yield f"--cluster {quote(scenario.cluster)}"
    if scenario.network != "fluid":
        yield f"--network {scenario.network}"
    if scenario.seed:
        yield f"--seed {scenario.seed}"
    changes = {**(scenario.described.said if scenario.described else {}), **scenario.settings.given}
    yield from (f"--set {quote(f'{key}={value}')}" for key, value in changes.items())


def _specs(job: Any) -> list[str]:
    """A description's sections, without what they leave at its default: new keys leave old questions as they
    are.
    """
    sections = (job.model, job.parallel, job.training, job.software)
    return [one.model_dump_json(exclude_defaults=True) for one in sections]


def _plain(value: Any) -> Any:
    """A setting as JSON that does not depend on the order in which it was said."""
    if isinstance(value, MeasuredTable):
        return sorted(map(repr, (*value.exact.items(), *value.curves.items())))
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, bool | int | float | str | None) else repr(value)

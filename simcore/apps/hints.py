"""What was meant by an option that a command does not have: another command's, a setting, or an edit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.core import TyperCommand

from simcore.apps.progress import as_started

#: Options by which GPUs are asked for elsewhere, and the cluster that is meant.
_OF_CLUSTERS = {
    **dict.fromkeys(("--gpus", "--num-gpus", "--ngpus", "--n-gpus", "--world-size"), "h100-{}"),
    **dict.fromkeys(("--gpu", "--gpu-type", "--device"), "{}-64"),
    **dict.fromkeys(("--nodes", "--num-nodes", "--nnodes"), "h100-..., eight GPUs a node"),
}  # fmt: skip


class HintingCommand(TyperCommand):
    """A command that says, of an option that it does not have, where such a thing is said.

    Its help names other commands as the user has them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        named: Any
        for named in (self, *self.params):
            if getattr(named, "help", None):
                named.help = as_started(named.help)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click's; its NoSuchOption with hints."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # typer has had a click of its own since 0.26: the class is told by its name.
            name = getattr(error, "option_name", None)
            if type(error).__name__ == "NoSuchOption" and name is not None:
                hints = list(hints_for(name, _after(given, name), ctx))
                error.message = "; ".join((str(error.message), *hints))  # type: ignore[attr-defined]
            raise


def hints_for(option: str, value: str, ctx: Any) -> Iterator[str]:
    """Where ``option`` (``--num-layers``), given ``value``, can be said, if not to the command of ``ctx``."""
    parent = ctx.parent.command if ctx.parent is not None else None
    others = [
        name
        for name, command in getattr(parent, "commands", {}).items()
        if any(option in parameter.opts for parameter in command.params)
    ]
    if others:
        yield f"{option} is an option of {', '.join(others[:4])}"
    if option in _OF_CLUSTERS and any("--cluster" in parameter.opts for parameter in ctx.command.params):
        cluster = _OF_CLUSTERS[option].format(value or "...")
        yield f"GPUs and their number are a cluster's: --cluster {cluster}"
        return
    key = _setting(option, value)
    if key is not None:
        yield f"of a described job it is --set {key}={value or '...'}"
        edit = _edit(key)
        if edit is not None:
            yield f"of a traced one --edit {edit}={value or '...'}"


def _after(args: list[str], option: str) -> str:
    """The word given with an option."""
    for at, word in enumerate(args):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and at + 1 < len(args) and not args[at + 1].startswith("-"):
            return args[at + 1]
    return ""


def _setting(option: str, value: str) -> str | None:
    """The setting that an option of Megatron-LM, or a key's own name, means."""
    from simcore.errors import InputError
    from workloads.jobs import meant
    from workloads.jobs.launch import DIALECTS
    from workloads.jobs.launch.options import Said

    name = option.lstrip("-").replace("-", "_")
    key = meant(name)
    if key is not None:
        return key
    for known in DIALECTS["megatron"].table:
        if option in known.names:
            words: dict[str, Any] = {option: (value or "1",)}
            try:
                found = known.read(Said(words, "the command line", 1))
            except InputError:
                return None
            return next(iter(found), None)
    return None


def _edit(key: str) -> str | None:
    """The edit of traced jobs that changes what ``section.key`` says."""
    from workloads import edits

    name = key.rpartition(".")[2]
    return name if name in {known.key for known in edits.registered_edits()} else None

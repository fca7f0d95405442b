"""The command of a script that launches training, and its flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from simcore.errors import InputError
from workloads.jobs.launch.shell.expand import Script


def is_script(text: str) -> bool:
    """Whether a text is more than words of one command."""
    return bool(
        re.search(
            r"^\s*(#|[A-Za-z_][A-Za-z0-9_]*\+?=|(export|if|for|source|eval|\.)\s)|\\\n|\$[{A-Za-z_(]",
            text,
            re.MULTILINE,
        )
    )


def plain_words(text: str, where: str) -> list[str]:
    """Words of one command line.  InputError for a quote that does not end."""
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise InputError(f"{where}: {error}".replace("No closing", "no closing")) from None


def launched(script: Script) -> list[str]:
    """The words of the command that launches: of those with a program in Python the one with most flags.

    Without one, all that stands in variables as flags, which is noted.
    """
    found: list[list[str]] = []
    for words in script.commands:
        joined = next((word for word in words if " " in word and ".py" in word and "--" in word), None)
        found.append(words if joined is None else plain_words(joined, script.where))
    programs = [words for words in found if program_of(words) >= 0]
    flags = [sum(word.startswith("--") for word in words) for words in programs]
    if flags and max(flags) > 0:
        return programs[flags.index(max(flags))]
    words = [word for value in script.variables.values() for text in value for word in text.split()]
    told = [word for value in found for word in value if word.startswith("--")]
    if told and not any(word.startswith("--") for word in words):
        return max(found, key=len)
    script.note("no command of a program in Python: flags are taken from all variables")
    start = next((k for k, word in enumerate(words) if word.startswith("--")), len(words))
    return words[start:]


def program_of(words: Sequence[str]) -> int:
    """The place of a program in Python (``x.py``, or what is behind ``-m``) among words, or -1."""
    for k, word in enumerate(words):
        if word.endswith(".py") and not word.startswith("-"):
            return k
        if word == "-m" and words[k + 1 : k + 2] != ["torch.distributed.run"]:
            return min(k + 1, len(words) - 1)
    return -1


def split_flags(words: Sequence[str], where: str) -> tuple[Mapping[str, tuple[str, ...]], list[str]]:
    """Words behind each ``--name`` (``--name=value`` too), and what is noted.  InputError for stray words."""
    found: dict[str, list[str]] = {}
    twice: dict[str, None] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            if name in found:
                twice.setdefault(name)
            found[name] = [value] if equals else []
        elif not name:
            raise InputError(f"{where}: {word[:80]!r} is behind no flag")
        else:
            found[name].append(word)
    note = f"given more than once, the last counts: {' '.join(twice)[:200]}"
    return {name: tuple(values) for name, values in found.items()}, [note] if twice else []

"""Launch scripts as far as they say what is launched: assignments, arrays, expansions, ``if`` over tests.

Nothing is executed.  What is not read (loops, functions, output of commands, variables of the environment) is
noted and counts as empty.  Scripts within it are read with it: behind ``eval`` and ``bash -c``, and files of
its folder that it sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from simcore.errors import InputError
from workloads.jobs.launch.shell.expand import DEEPEST, Script
from workloads.jobs.launch.shell.tokens import ENDS, REDIRECTIONS, HereText, Token, bare, opens, tokens_of

_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
#: What readers are to put in, which no shell would take.
_PLACEHOLDER: Final = re.compile(r"<[A-Za-z][\w ./-]{0,100}>")
#: Scripts within one.
_MOST_SCRIPTS: Final = 1_000
#: Commands that show what others are.
_SHOWS: Final = (["echo"], ["printf"])
_BLOCKS: Final = {"for": "done", "while": "done", "until": "done", "case": "esac"}
_DECLARES: Final = ("export", "declare", "local", "readonly", "typeset")


def read_script(
    text: str,
    where: str,
    *,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    beside: Callable[[str], str | None] = lambda _: None,
) -> Script:
    """What ``text`` launches where variables of ``environment`` are set, with ``arguments``.

    ``beside``: text of the file of a name in the script's folder, None where there is none: what a script
    sources is looked for there alone.  InputError for quotes and brackets that do not end.
    """
    script = Script(where, {name: [value] for name, value in (environment or {}).items()})
    script.take(arguments)
    _Reader(script, beside).read(text)
    return script


class _Reader:
    """Plays statements: variables as they are set, commands as they would be called."""

    def __init__(self, script: Script, beside: Callable[[str], str | None]) -> None:
        self.script = script
        self.beside = beside
        self.inside = 0  # scripts in each other
        self.scripts = 0  # in all
        #: Of each ``if`` that is open: whether its branch is played, whether one was, whether all around are.
        self.branches: list[tuple[bool, bool, bool]] = []

    def read(self, text: str) -> None:
        """A script, or one within it."""
        self.scripts += 1
        if self.inside >= DEEPEST or self.scripts > _MOST_SCRIPTS:
            raise InputError(
                f"{self.script.where}: more than {DEEPEST} scripts in each other, or too many in all"
            )
        around, self.branches = self.branches, []
        self.inside += 1
        self._play(tokens_of(text.replace("\r\n", "\n"), self.script.where))
        self.branches = around
        self.inside -= 1

    def _play(self, tokens: Sequence[Token]) -> None:
        """All statements in order."""
        at = 0
        while at < len(tokens):
            stop = at
            depth = 0
            while stop < len(tokens) and (depth or tokens[stop] not in ENDS):
                depth += opens(tokens[stop]) - (tokens[stop] == ")" and depth > 0)
                stop += 1
            if depth:
                raise InputError(f"{self.script.where}: an array's ( does not end")
            statement = tokens[at:stop]
            word = bare(statement[0]) if statement else ""
            if word in _BLOCKS:
                at = self._skipped(tokens, at, _BLOCKS[word])
            elif len(statement) > 2 and statement[1:3] == ["(", ")"]:
                at = self._skipped(tokens, at, "}")
            elif word in ("if", "elif"):
                at = self._condition(tokens, at)
            else:
                self._statement(statement)
                at = stop + 1

    def _skipped(self, tokens: Sequence[Token], at: int, end: str) -> int:
        """Behind a loop or function, which is not read."""
        first = bare(tokens[at])
        depth = 0
        for stop in range(at, len(tokens)):
            word = bare(tokens[stop])
            depth += word == first and first in _BLOCKS
            if word == end:
                depth -= 1
                if depth <= 0:
                    break
        if self._playing:
            self.script.note(f"not read: {first} ... {end}")
        return stop + 1

    @property
    def _playing(self) -> bool:
        return all(branch[0] for branch in self.branches)

    def _condition(self, tokens: Sequence[Token], at: int) -> int:
        """Up to ``then``: tests joined by && and ||; the place behind it."""
        opening = bare(tokens[at])
        stop = next((k for k in range(at, len(tokens)) if bare(tokens[k]) == "then"), len(tokens) - 1)
        if opening == "elif":
            if not self.branches:
                raise InputError(f"{self.script.where}: elif without if")
            _, taken, around = self.branches.pop()
        else:
            taken, around = False, self._playing
        if len(self.branches) >= DEEPEST:
            raise InputError(f"{self.script.where}: more than {DEEPEST} levels of if")
        found = around and not taken and self._holds(tokens[at + 1 : stop])
        self.branches.append((found, taken or found, around))
        return stop + 1

    def _holds(self, tokens: Sequence[Token]) -> bool:
        value, joined = True, "&&"
        test: list[Token] = []
        for token in [*tokens, ";"]:
            if token in ("&&", "||", ";", "\n"):
                if test:
                    one = self._test(test)
                    value = (value and one) if joined == "&&" else (value or one)
                test, joined = [], str(token)
            else:
                test.append(token)
        return value

    def _test(self, test: Sequence[Token]) -> bool:
        """``[ ... ]`` or ``[[ ... ]]`` over texts and numbers; anything else is noted and false."""
        words = [
            "".join(self.script.expand(token, split=False)) if isinstance(token, tuple) else token
            for token in test
            if not isinstance(token, HereText)
        ]
        negated = False
        inner = words[1:-1] if words[0] in ("[", "[[", "test") and words[-1] in ("]", "]]") else words[1:]
        while inner and inner[0] == "!":
            negated, inner = not negated, inner[1:]
        if words[0] in ("[", "[[", "test"):
            if len(inner) == 2 and inner[0] in ("-n", "-z"):
                return ((inner[0] == "-n") == bool(inner[1])) != negated
            if len(inner) <= 1:
                return bool(inner and inner[0]) != negated
            if len(inner) == 3 and inner[1] in ("=", "==", "!="):
                return ((inner[0] == inner[2]) == (inner[1] != "!=")) != negated
            orders = {"-eq": 0, "-ne": 0, "-gt": 1, "-ge": 1, "-lt": 1, "-le": 1}
            if (
                len(inner) == 3
                and inner[1] in orders
                and all(re.fullmatch("-?[0-9]{1,18}", n) for n in inner[::2])
            ):
                left, right = int(inner[0]), int(inner[2])
                holds = {
                    "-eq": left == right, "-ne": left != right, "-gt": left > right,
                    "-ge": left >= right, "-lt": left < right, "-le": left <= right,
                }  # fmt: skip
                return holds[inner[1]] != negated
        self.script.note(f"not tried, taken as false: {' '.join(words)[:60]}")
        return False

    def _statement(self, statement: Sequence[Token]) -> None:
        tokens = list(statement)
        word = bare(tokens[0]) if tokens else ""
        if word == "fi" and self.branches:
            self.branches.pop()
            return
        if word == "else" and self.branches:
            _, taken, around = self.branches.pop()
            self.branches.append((around and not taken, True, around))
            tokens = tokens[1:]
        if word in ("then", "do", "{", "}"):
            tokens = tokens[1:]
        if not tokens or not self._playing:
            return
        if bare(tokens[0]) in _DECLARES:
            tokens = [token for token in tokens[1:] if not bare(token).startswith("-")]
            for token in tokens:
                if isinstance(token, tuple) and _ASSIGNED.match(token[0][1]) is None:
                    return
        rest = self._assign(tokens)
        if rest:
            self._command(_without_redirections(rest))

    def _command(self, tokens: Sequence[Token]) -> None:
        """A command is noted, or read where it is a script itself."""
        script = self.script
        noted, unset = list(script.notes), dict(script.unset)
        words = [word for token in tokens if isinstance(token, tuple) for word in script.expand(token)]
        inner = _inner_script(words, tokens)
        if words[:1] == ["shift"]:
            script.take(script.variables.get("@", [])[1:])
        elif words[:1] in (["."], ["source"]):
            self._source(words[1:])
        elif inner is not None:
            self.read(_PLACEHOLDER.sub(r"'\g<0>'", inner))
        elif words[:1] not in _SHOWS:
            script.commands.append(words)
            if not any(word.startswith("--") or ".py" in word for word in words):  # echo, mkdir and the like
                script.notes, script.unset = noted, unset

    def _source(self, words: Sequence[str]) -> None:
        name = re.split(r"[/\\]", words[0])[-1] if words else ""
        text = self.beside(name) if name else None
        self.script.note(f"{'not read' if text is None else 'read with it'}: source {name}")
        if text is not None:
            self.read(text)

    def _assign(self, tokens: list[Token]) -> list[Token]:
        """Assignments at the front are made; what is left is a command."""
        while tokens and isinstance(tokens[0], tuple):
            first = tokens[0]
            found = _ASSIGNED.match(first[0][1]) if first[0][0] == "" else None
            if found is None:
                return tokens
            name, more = found[1], found[2] == "+"
            if first[-1][0] == "(":
                stop = tokens.index(")") if ")" in tokens else len(tokens)
                items = [token for token in tokens[1:stop] if isinstance(token, tuple)]
                value = [word for token in items for word in self.script.expand(token)]
                self.script.variables[name] = [*(self.script.variables.get(name, []) if more else []), *value]
                tokens = tokens[stop + 1 :]
            else:
                rest = (("", first[0][1][found.end() :]), *first[1:])
                text = " ".join(self.script.expand(rest, split=False))
                before = " ".join(self.script.variables.get(name, [])) if more else ""
                self.script.variables[name] = [before + text]
                tokens = tokens[1:]
        return tokens


def _without_redirections(tokens: Sequence[Token]) -> list[Token]:
    found: list[Token] = []
    behind = False
    for token in tokens:
        if isinstance(token, HereText):
            found.append(token)
        elif token in REDIRECTIONS:
            behind = True
        elif behind:
            behind = False
        else:
            found.append(token)
    return found


def _inner_script(words: Sequence[str], tokens: Sequence[Token]) -> str | None:
    """The script that a command runs: behind ``eval`` or ``bash -c``, or what ``sbatch`` and a shell read."""
    if words[:1] == ["eval"]:
        return " ".join(words[1:])
    here = [token.text for token in tokens if isinstance(token, HereText)]
    if here and words and words[0].rpartition("/")[2] in ("sbatch", "bash", "sh"):
        return here[-1]
    for k, word in enumerate(words[:-2]):
        if word.rpartition("/")[2] in ("bash", "sh") and words[k + 1] in ("-c", "-lc", "-cl"):
            return words[k + 2]
    return None

"""Words of a script expanded: variables, arrays, defaults and whole numbers, as bash has them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Final

from simcore.errors import InputError
from simcore.records import dataclass
from workloads.jobs.launch.shell.tokens import MOST_WORDS, Word, end_of_bracket

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?]")
_ARITHMETIC: Final = re.compile(r"[0-9()+\-*/% <>=!?:]{1,200}")
_COMPARED: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
#: Letters that all words of a script may become.
MOST_LETTERS: Final = 1 << 24
_MOST_NOTES: Final = 100
#: Levels of expansions, and of ``if``, in each other.
DEEPEST: Final = 32


@dataclass
class Script:
    """A script as it is read: ``variables``, ``commands`` as words, and ``notes`` of what was not read."""

    where: str
    variables: dict[str, list[str]] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unset: dict[str, None] = field(default_factory=dict)  # in order
    letters: int = 0

    def take(self, arguments: Sequence[str]) -> None:
        """Make them the script's arguments."""
        for name in [name for name in self.variables if name.isdigit()]:
            del self.variables[name]
        self.variables |= {str(k): [word] for k, word in enumerate(arguments, start=1)}
        self.variables |= {"@": list(arguments), "*": list(arguments), "#": [str(len(arguments))]}

    def note(self, what: str) -> None:
        """Note it once."""
        if what not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(what)

    def expand(self, word: Word, *, split: bool = True) -> list[str]:
        """The words that a word becomes."""
        words, current, open_ = list[str](), "", False
        for quote, text in word:
            if quote in ("'", "("):
                current, open_ = current + text, True
                continue
            if split and quote == '"' and text in ("$@", "${@}"):
                words += self.variables.get("@", [])
                continue
            if quote == '"' and (array := re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", text)) and split:
                values = self.variables.get(array[1], [])
                words += values
                continue
            value = self._substituted(text, quoted=quote == '"')
            if quote == '"' or not split:
                current, open_ = current + value, True
                continue
            pieces = re.split(r"(\s+)", value)
            for piece in pieces:
                if piece.isspace():
                    if current or open_:
                        words.append(current)
                    current, open_ = "", False
                else:
                    current += piece
        if current or open_:
            words.append(current)
        self.letters += sum(map(len, words))
        if self.letters > MOST_LETTERS or len(words) > MOST_WORDS:
            raise InputError(f"{self.where}: its variables grow beyond any launch script")
        return words

    def _substituted(self, text: str, *, quoted: bool = False, depth: int = 0) -> str:
        """``text`` with variables, defaults and arithmetic in place."""
        out, at = "", 0
        while at < len(text):
            letter = text[at]
            if letter == "\\" and quoted and at + 1 < len(text):
                out += text[at + 1] if text[at + 1] in '"\\$`' else text[at : at + 2]
                at += 2
            elif letter == "`" and (stop := text.find("`", at + 1)) > 0:
                self.note(f"not run, taken as empty: $({' '.join(text[at + 1 : stop].split())[:60]})")
                at = stop + 1
            elif letter != "$":
                out += letter
                at += 1
            elif text.startswith("$((", at):
                stop = end_of_bracket(text, at + 1, self.where)
                out += self._number(text[at + 3 : stop - 2], depth)
                at = stop
            elif text.startswith("$(", at):
                stop = end_of_bracket(text, at + 1, self.where)
                self.note(f"not run, taken as empty: {' '.join(text[at:stop].split())[:60]}")
                at = stop
            elif text.startswith("${", at):
                stop = end_of_bracket(text, at + 1, self.where)
                out += self._braced(text[at + 2 : stop - 1], depth)
                at = stop
            elif found := _NAME.match(text, at + 1):
                out += self._value(found[0])
                at = found.end()
            else:
                out += letter
                at += 1
        return out

    def _value(self, name: str) -> str:
        if name not in self.variables and len(self.unset) < _MOST_NOTES:
            self.unset.setdefault(name)
        return " ".join(self.variables.get(name, []))

    def _braced(self, inner: str, depth: int) -> str:
        found = re.fullmatch(r"(\w+|[@*])(?:\[([@*]|\d{1,6})\])?(?:(:?[-=+])(.*))?", inner, re.DOTALL)
        if found is None or depth > DEEPEST:
            self.note(f"not understood, taken as empty: ${{{inner[:40]}}}")
            return ""
        name, index, sign, word = found.groups()
        values = self.variables.get(name)
        if index and index.isdigit() and values is not None:
            values = values[int(index) : int(index) + 1]
        is_there = values is not None and (bool("".join(values)) or not (sign or "").startswith(":"))
        if sign and sign[-1] in "-=" and not is_there:
            return self._substituted(re.sub("^([\"'])(.*)\\1$", r"\2", word), depth=depth + 1)
        if sign and sign[-1] == "+":
            return self._substituted(word, depth=depth + 1) if is_there else ""
        if values is None:
            return self._value(name)
        return " ".join(values)

    def _number(self, inner: str, depth: int) -> str:
        def named(found: re.Match[str]) -> str:
            return " ".join(self.variables.get(found[0], ["0"])) or "0"

        text = (
            re.sub(r"[A-Za-z_]\w*", named, self._substituted(inner, depth=depth + 1))
            if depth < DEEPEST
            else ""
        )
        try:
            return str(calculated(text))
        except (ValueError, ZeroDivisionError, SyntaxError, IndexError):
            self.note(f"not understood, taken as empty: $(({inner[:40]}))")
            return ""


def calculated(text: str) -> int:
    """Whole numbers with + - * / %, comparisons, a ? b : c and brackets, as bash has them.

    ValueError for anything else.
    """
    if not _ARITHMETIC.fullmatch(text):
        raise ValueError(text)
    tokens = re.findall(r"[0-9]{1,18}|[<>=!]=|[()+\-*/%<>?:=!]", text)

    def chosen() -> int:
        found = compared()
        if tokens and tokens[0] == "?":
            tokens.pop(0)
            first = chosen()
            if tokens.pop(0) != ":":
                raise ValueError(text)
            second = chosen()
            return first if found else second
        return found

    def compared() -> int:
        found = sums()
        if tokens and tokens[0] in _COMPARED:
            return int(_COMPARED[tokens.pop(0)](found, sums()))
        return found

    def sums() -> int:
        found = products()
        while tokens and tokens[0] in "+-":
            found = found + products() if tokens.pop(0) == "+" else found - products()
        return found

    def products() -> int:
        found = one()
        while tokens and tokens[0] in "*/%":
            sign, other = tokens.pop(0), one()
            found = found * other if sign == "*" else found // other if sign == "/" else found % other
            if abs(found) > 1 << 62:
                raise ValueError(text)
        return found

    def one() -> int:
        token = tokens.pop(0)
        if token == "-":
            return -one()
        if token == "(":
            found = chosen()
            if tokens.pop(0) != ")":
                raise ValueError(text)
            return found
        return int(token)

    found = chosen()
    if tokens:
        raise ValueError(text)
    return found

"""A script's text as tokens: words, whose pieces remember their quotes, and operators."""

from __future__ import annotations

import re
from typing import Final

from simcore.errors import InputError
from simcore.records import dataclass

#: Pieces of a word: (quote, text); quote is "", '"' or "'", or "(" where an array begins.
Word = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class HereText:
    """A text that stands in a script for a command to read."""

    text: str


Token = str | Word | HereText
_OPERATORS: Final = (
    "&&", "||", ";;", "\n", ";", "|", "&>>", "&>", ">&", "&", "(", ")", "<<<", "<<", ">>", "<", ">",
)  # fmt: skip
#: Operators that a file stands behind.
REDIRECTIONS: Final = ("&>>", "&>", ">&", "<<<", "<<", ">>", "<", ">")
#: Operators behind which a statement begins.
ENDS: Final = ("\n", ";", "&&", "||", "|", "&", ";;")
#: What ends a text that stands in a script.
_HERE: Final = re.compile(r"-?[ \t]*[\"'\\]?(\w{1,100})[\"']?")
#: More are no launch script.
MOST_WORDS: Final = 1 << 16


def tokens_of(text: str, where: str) -> list[Token]:
    """Tokens of ``text``, ended by a line's end.  InputError for quotes and brackets that do not end."""
    tokens: list[Token] = []
    word: list[tuple[str, str]] = []
    behind = 0  # the end of texts that stand behind this line
    at = 0

    def end_word() -> None:
        if word:
            tokens.append(tuple(word))
            word.clear()

    while at < len(text):
        letter = text[at]
        if letter in " \t":
            end_word()
            at += 1
        elif letter == "#" and not word:
            stop = text.find("\n", at)
            at = stop if stop >= 0 else len(text)
        elif letter == "'":
            stop = text.find("'", at + 1)
            if stop < 0:
                raise _endless(text, at, where)
            word.append(("'", text[at + 1 : stop]))
            at = stop + 1
        elif letter == '"':
            stop = _end_of_quote(text, at, where)
            word.append(('"', text[at + 1 : stop].replace("\\\n", "")))
            at = stop + 1
        elif letter == "$" and text[at + 1 : at + 2] in ("{", "("):
            stop = end_of_bracket(text, at + 1, where)
            word.append(("", text[at:stop].replace("\\\n", "")))
            at = stop
        elif text.startswith("\\\n", at):  # the line goes on
            at += 2
        elif letter == "`":
            stop = text.find("`", at + 1)
            if stop < 0:
                raise _endless(text, at, where)
            word.append(("", "$(" + text[at + 1 : stop] + ")"))
            at = stop + 1
        elif letter == "\\" and at + 1 < len(text):
            word.append(("'", text[at + 1]))
            at += 2
        elif letter == "(" and word and word[-1][0] == "" and word[-1][1].endswith("="):
            tokens.append((*word, ("(", "")))  # an array follows
            word.clear()
            at += 1
        else:
            operator = next((one for one in _OPERATORS if text.startswith(one, at)), None)
            if operator is not None:
                if operator in REDIRECTIONS and len(word) == 1 and word[0][0] == "" and word[0][1].isdigit():
                    word.clear()  # the number of what is redirected
                end_word()
                at += len(operator)
                if operator == "<<" and (named := _HERE.match(text, at)):
                    at = named.end()
                    start = behind or text.find("\n", at) + 1 or len(text)
                    body, behind = _here_text(text, start, named[1])
                    tokens.append(HereText(body))
                    continue
                tokens.append(operator)
                if operator == "\n" and behind:
                    at, behind = behind, 0
                continue
            stop = at + 1
            while stop < len(text) and text[stop] not in " \t\n\"'`\\;|&()<>$":
                stop += 1
            if text[stop : stop + 1] == "$" and text[stop + 1 : stop + 2] not in ("{", "("):
                stop += 1
                while stop < len(text) and (text[stop].isalnum() or text[stop] in "_@*#?"):
                    stop += 1
            word.append(("", text[at:stop]))
            at = stop
        if len(tokens) > MOST_WORDS:
            raise InputError(f"{where}: more than {MOST_WORDS:,} words are no launch script")
    end_word()
    tokens.append("\n")
    return tokens


def _here_text(text: str, start: int, name: str) -> tuple[str, int]:
    """The lines from ``start`` to the one that is ``name``, and what is behind that."""
    at = start
    while at < len(text):
        stop = text.find("\n", at)
        stop = len(text) if stop < 0 else stop
        if text[at:stop].strip() == name:
            return text[start:at], min(stop + 1, len(text))
        at = stop + 1
    return text[start:], len(text)


def _endless(text: str, at: int, where: str) -> InputError:
    line = text.count("\n", 0, at) + 1
    return InputError(f"{where}: line {line} or so: {text[at]} does not end")


def _end_of_quote(text: str, start: int, where: str) -> int:
    at = start + 1
    while at < len(text) and text[at] != '"':
        if text[at] == "\\":
            at += 2
        elif text[at] == "$" and text[at + 1 : at + 2] in ("{", "("):
            at = end_of_bracket(text, at + 1, where)
        else:
            at += 1
    if at >= len(text):
        raise _endless(text, start, where)
    return at


def end_of_bracket(text: str, start: int, where: str) -> int:
    """Behind the bracket that closes the one at ``start``."""
    closing, depth = ("}" if text[start] == "{" else ")"), 0
    for at in range(start, len(text)):
        if text[at] == text[start]:
            depth += 1
        elif text[at] == closing:
            depth -= 1
            if depth == 0:
                return at + 1
    raise _endless(text, start, where)


def bare(token: Token) -> str:
    """A word without quotes; "" for others."""
    if isinstance(token, tuple):
        return "".join(text for quote, text in token) if all(quote == "" for quote, _ in token) else ""
    return ""


def opens(token: Token) -> bool:
    """Whether an array's bracket opens behind it."""
    return isinstance(token, tuple) and token[-1][0] == "("

"""Inputs that are nearly right: one to three things of a value, a text or some bytes changed at random."""

from __future__ import annotations

import gzip
import json
import pickle
import re
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

#: Marks of texts that stand in a document as they are, without quotes.
_MARK = re.compile('"\ue000([0-9]+)\ue000"')
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")

RAW = (
    "NaN", "Infinity", "-Infinity", "nan", "inf", "1e999", "-1e999", "9" * 41, "9" * 5000, "0x10", "1_000",
    "truE", "[" * 70 + "]" * 70, "[" * 2000 + "]" * 2000, '{"a":' * 300 + "1" + "}" * 300, '"\\ud800"', "01",
    "2001-01-01", "",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 3, 7, 64, 1000, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**9,
    10**12, 10**18, 10**30, 0.0, -0.0, 0.5, 1.5, -2.5, 1e-308, 5e-324, 1e-30, 1e-9, 1e15, 1e30, 1e300,
    1.7e308, -1e308,
)  # fmt: skip
TEXTS = (
    "", " ", "0", "-1", "1", "nan", "inf", "1e400", "true", "False", "null", "none", "x" * 300, "y" * 20_000,
    "\ud800", "a\0b", "\x1b[31m", "../../x", "/etc/passwd", "/dev/zero", ".", "..", "[bold]x[/]", "%s%n",
    "{0}", "(a+)+$", "*", "(", "\uff11\uff12", "\u00e9", "\u202e", "2 GiB", "25GB/s", "1e9GB/s", "12us",
    "400Gb/s", "0.8", "1e-30", "-5", "2**9", "0-99999999", "a\nb", "a,b", "a=b", "'", '"', "\\", "#", "~",
    "\u00b2", "9" * 5_000, "[" * 5_000, "[0, " + "9" * 5_000 + "]",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [None], [[]], {"a": 1}, {"": ""}, [1, 2], ["a"], [[1], [2, 3]],
)  # fmt: skip


class Mutated:
    """A value with changes; ``unknown`` is set where all that was done is a key misspelt."""

    def __init__(self, value: Any, rng: Random) -> None:
        """Change ``value``, of plain dicts, lists and scalars, in one to three places."""
        self._rng = rng
        self._raw: list[str] = []
        self.unknown = ""
        holder = {"": pickle.loads(pickle.dumps(value, -1))}
        rounds = rng.choice((1, 1, 1, 2, 3))
        for _ in range(rounds):
            nodes = list(_nodes(holder))
            parent, key = nodes[rng.randrange(len(nodes))]
            self.unknown = self._change(parent, key, nodes, holder) if rounds == 1 else ""
        self.value = holder.get("")

    def text(self, render: Callable[[Any], str]) -> bytes:
        """The value as ``render`` writes it, with its raw parts in their places."""
        plain = _MARK.sub(lambda found: self._raw[int(found[1])], render(self.value))
        return plain.encode("utf-8", "surrogatepass")

    def _change(self, parent: Any, key: Any, nodes: list[Any], holder: Any) -> str:
        rng, old = self._rng, parent[key]
        what = rng.randrange(10)
        if what < 2 and isinstance(parent, dict) and parent is not holder:
            if what == 0:
                del parent[key]
                return ""
            name = (
                rng.choice([str(k) for _, k in nodes[-30:]])
                if rng.random() < 0.2
                else misspelt(str(key), rng)
            )
            known = name in parent or name == str(key) or any(name == k for _, k in nodes)
            parent[name] = parent.pop(key)
            return "" if known else name
        if what < 2 and isinstance(parent, list):
            if what == 0 or len(parent) < 2:
                del parent[key]
            else:
                other = rng.randrange(len(parent))
                parent[key], parent[other] = parent[other], parent[key]
        elif what < 4:
            parent[key] = self._odd()
        elif what < 6 and not isinstance(old, str | bool | None):
            parent[key] = _other_number(old, rng) if isinstance(old, int | float) else _reshaped(old, rng)
        elif what < 7:
            parent[key] = rng.choice((str(old)[:1000], [old], {"value": old}, [old] * 3))
        elif what < 8:
            source, name = nodes[rng.randrange(len(nodes))]
            copied = (
                source.get(name) if isinstance(source, dict) else source[name] if name < len(source) else 0
            )
            parent[key] = pickle.loads(pickle.dumps(copied, -1))
        elif isinstance(old, list) and old:
            old.insert(rng.randrange(len(old) + 1), rng.choice(old))
        elif isinstance(old, str):
            parent[key] = rng.choice((misspelt(old, rng), old + old, old.upper(), rng.choice(TEXTS)))
        elif isinstance(old, int | float) and not isinstance(old, bool):
            parent[key] = _other_number(old, rng)
        else:
            parent[key] = self._odd()
        return ""

    def _odd(self) -> Any:
        kind = self._rng.randrange(8)
        if kind == 0:
            self._raw.append(self._rng.choice(RAW))
            return f"\ue000{len(self._raw) - 1}\ue000"
        if kind == 1:
            return pickle.loads(pickle.dumps(self._rng.choice(OTHERS), -1))
        return self._rng.choice(NUMBERS if kind < 5 else TEXTS)


def _nodes(value: Any) -> Any:
    """(holder, key) of every value in ``value``, itself aside."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _nodes(value[key])


def _other_number(old: float, rng: Random) -> Any:
    exponent = rng.choice((-9, -3, -1, 1, 3, 6, 9, 12))
    scaled = old * 10**exponent if exponent > 0 else old / 10**-exponent
    return rng.choice((-old, old + 1, old - 1, old * 2, old / 3, scaled, float(old), rng.choice(NUMBERS)))


def _reshaped(old: Any, rng: Random) -> Any:
    """A list or dict as another kind of thing."""
    if isinstance(old, dict):
        return rng.choice(([*old.values()], [*old], [*map(list, old.items())], len(old)))
    return rng.choice(
        ({str(i): v for i, v in enumerate(old)}, old[:1], old * 2, old[::-1], old[0] if old else 0)
    )


def misspelt(word: str, rng: Random) -> str:
    """``word`` as fingers write it."""
    at = rng.randrange(max(1, len(word)))
    return rng.choice((
        word[:at] + word[at + 1 :],
        word[: at + 1] + word[at:],
        word[:at] + word[at + 1 : at + 2] + word[at : at + 1] + word[at + 2 :],
        word.upper() if word.islower() else word.lower(),
        word.replace("_", "-", 1) if "_" in word else word + "s",
    ))  # fmt: skip


def some_bytes(data: bytes, rng: Random) -> bytes:
    """``data`` damaged in one to four places."""
    held = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        size = len(held)
        at, length = rng.randrange(size + 1), rng.choice((1, 1, 2, 4, 16, 300))
        what = rng.randrange(9)
        if what == 0 and at < size:
            held[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            held[at : at + length] = rng.choice((b"\0", b"\xff", b"\x80", b"\x7f")) * min(length, size - at)
        elif what == 2:
            del held[at:]
        elif what == 3:
            del held[at : at + length]
        elif what == 4:
            held[at:at] = rng.randbytes(length)
        elif what == 5:
            held[at:at] = held[at : at + length]
        elif what == 6:
            other = rng.randrange(size + 1)
            held[at : at + length] = held[other : other + length]
        elif found := [*_NUMBER.finditer(held)]:
            number = rng.choice(found)
            odd = rng.choice(NUMBERS) if what == 7 else rng.choice(RAW)
            held[number.start() : number.end()] = str(odd).encode()
    return bytes(held)


def some_lines(data: bytes, rng: Random) -> bytes:
    """``data`` with lines taken out, repeated, swapped or put together, or words of them changed."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        what = rng.randrange(7)
        if what == 0 and len(lines) > 1:
            del lines[at]
        elif what == 1:
            lines.insert(other, lines[at])
        elif what == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif what == 3:
            lines[at] = rng.choice((b"", b" ", b"\t")) + lines[at].lstrip()
        else:
            separator = next((mark for mark in (b",", b"=", b":", b" ") if mark in lines[at]), b" ")
            cells = lines[at].split(separator)
            odd = str(rng.choice(NUMBERS)) if what < 6 else rng.choice(TEXTS)
            cells[rng.randrange(len(cells))] = odd.encode("utf-8", "surrogatepass")
            lines[at] = separator.join(cells)
    return b"\n".join(lines)


def soup(data: bytes, rng: Random) -> bytes:
    """The words of a document and others, put together at random."""
    words = re.findall(rb"\w+|[^\w\s]|\s+", data)
    marks = (
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"\n",
        b"- ",
        b"&a ",
        b"*a",
        b"!!",
        b"|",
        b"'''",
        b"<<",
        b"?",
    )
    return b"".join(
        rng.choice(words if rng.random() < 0.7 and words else marks) for _ in range(rng.randrange(60))
    )


def document(seed: Any, render: Callable[[Any], str], rng: Random) -> tuple[bytes, str]:
    """A text of ``seed`` with changes, and the key that is unknown if that is all that is wrong."""
    what = rng.random()
    if what < 0.72:
        changed = Mutated(seed, rng)
        return changed.text(render), changed.unknown
    plain = render(seed).encode("utf-8", "surrogatepass")
    damage = some_lines if what < 0.82 else some_bytes if what < 0.97 else soup
    return damage(plain, rng), ""


def as_json(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value)


def as_yaml(value: Any, indent: str = "") -> str:
    """YAML in blocks; scalars as in JSON."""
    if not (isinstance(value, dict) and value):
        return json.dumps(value) + "\n"
    lines = []
    for key, inner in value.items():
        name = key if re.fullmatch(r"[a-z_]+", key) else json.dumps(key)
        nested = isinstance(inner, dict) and bool(inner)
        start = "\n" if nested else " "
        lines.append(f"{indent}{name}:{start}{as_yaml(inner, indent + '  ')}")
    return "".join(lines)


def as_toml(value: Any) -> str:
    """TOML: tables of the first level have heads, deeper ones are inline."""
    if not isinstance(value, dict):
        return _inline(value)
    plain = [f"{_key(k)} = {_inline(v)}\n" for k, v in value.items() if not _is_table(v)]
    tables = [
        f"[{_key(k)}]\n" + "".join(f"{_key(name)} = {_inline(inner)}\n" for name, inner in v.items())
        for k, v in value.items()
        if _is_table(v)
    ]
    return "".join(plain + tables)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and "value" not in value


def _key(key: Any) -> str:
    return str(key) if re.fullmatch(r"[\w-]+", str(key), re.ASCII) else json.dumps(str(key))


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return '"null"' if value is None else json.dumps(value)


@cache
def _bomb() -> bytes:
    return gzip.compress(b'{"traceEvents": [' + b" " * (80 << 20), 9, mtime=0)


def packed(data: bytes, rng: Random) -> bytes:
    """``data`` as gzip, mostly whole; one in a hundred goes on without end."""
    if rng.random() < 0.01:
        return _bomb()
    whole = gzip.compress(data, 1, mtime=0)
    return whole if rng.random() < 0.7 else some_bytes(whole, rng)


def pick(seeds: Sequence[Any], rng: Random) -> Any:
    """One of the seeds."""
    return seeds[rng.randrange(len(seeds))]

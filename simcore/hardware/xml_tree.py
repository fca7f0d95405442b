"""A small XML reader that keeps line numbers and refuses what a hostile file could do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Final
from xml.parsers import expat

from simcore.errors import InputError
from simcore.outside import read_bytes
from simcore.records import dataclass

_MAX_DEPTH: Final = 64


@dataclass
class Element:
    """An element with its attributes and where it begins, ``<file>:<line>``."""

    tag: str
    attributes: Mapping[str, str]
    where: str
    children: list[Element] = field(default_factory=list)

    def of(self, tag: str) -> Iterator[Element]:
        """Children called ``tag``."""
        return (child for child in self.children if child.tag == tag)

    def text(self, key: str) -> str:
        """An attribute.  InputError, naming element and line, if it is missing."""
        if key not in self.attributes:
            raise InputError(f"{self.where}: <{self.tag}> has no {key!r}")
        return self.attributes[key]

    def count(self, key: str, *, at_least: int = 0) -> int:
        """An attribute that is a whole number.  InputError if it is none."""
        text = self.text(key)
        if not (text.isascii() and text.isdecimal() and len(text) <= 9) or int(text) < at_least:
            raise InputError(
                f"{self.where}: <{self.tag} {key}={text!r}> must be a whole number of at least {at_least}"
            )
        return int(text)


def read_xml(path: Path, root: str) -> Element:
    """The tree of an XML file whose root is ``root``.

    Errors: InputError with file and line for what cannot be read, is no XML or too large, deep or of another
    root; and for a document type definition: entities that expand without end need one, topologies do not.
    """
    content = read_bytes(path, "description of a node", "text")
    top = Element("", {}, str(path))
    stack = [top]
    parser = expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, f"{path}:{parser.CurrentLineNumber}")
        if len(stack) > _MAX_DEPTH:
            raise InputError(f"{element.where}: more than {_MAX_DEPTH} elements inside each other")
        stack[-1].children.append(element)
        stack.append(element)

    def end(_tag: str) -> None:
        stack.pop()

    def doctype(*_: object) -> None:
        raise InputError(f"{path}:{parser.CurrentLineNumber}: document types and entities are not read")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        reason = expat.errors.messages[error.code]
        raise InputError(f"{path}:{error.lineno}: not valid XML: {reason}") from error
    found = top.children[0]
    if found.tag != root:
        raise InputError(f"{found.where}: expected <{root}>, got <{found.tag}>")
    return found

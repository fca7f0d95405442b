"""YAML without its traps: plain values only, and no key twice."""

from __future__ import annotations

from typing import Any

import yaml


def load_yaml(text: str) -> Any:
    """The one document in ``text``.  Errors: ``yaml.YAMLError``, a key given twice included."""
    _refuse_repeats(yaml.compose(text, Loader=yaml.SafeLoader), set())
    return yaml.safe_load(text)


def _refuse_repeats(node: Any, seen: set[int]) -> None:
    """YAML keeps the last of two equal keys without a word.  ``seen`` are nodes that were looked at."""
    if id(node) in seen:  # an alias may point back to what holds it
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                raise yaml.YAMLError(f"{key.value!r} is given twice, again in line {key.start_mark.line + 1}")
            keys.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
            _refuse_repeats(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeats(item, seen)

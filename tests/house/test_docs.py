"""What docs say of the house is so: files exist, and a class name stands in one place."""

import re
import shlex
from collections import defaultdict
from pathlib import Path

import pytest
import typer

from simcore.apps.main import app

ROOT = Path(__file__).parents[2]
DOCS = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *DOCS]
_PATH = re.compile(r"`((?:simcore|workloads|tests|scripts|hardware_profiles|docs)/[\w/.-]+)`")
_LINK = re.compile(r"\]\(([\w./-]+)\)")


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = [ROOT / path for path in _PATH.findall(text)]
    linked = [(ROOT / page).parent / path for path in _LINK.findall(text)]
    assert [str(path) for path in [*named, *linked] if not path.exists()] == []


def _commands(page):
    """Words of the commands that a page shows; a single capital letter stands for a number."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / page).read_text(encoding="utf-8"))
    for name, rest in re.findall(r"^    (?:[A-Z_]+=\S+ )?python scripts/(\w+)\.py\b(.*)$", text, re.M):
        words = shlex.split(re.sub(r"\s#.*$|[\[\]]", "", rest))
        yield name.replace("_", "-"), [re.sub(r"^[A-Z]$", "1", word) for word in words if word != "..."]


def test_commands_on_pages_are_understood():
    commands = typer.main.get_command(app).commands
    tried = 0
    for page in PAGES:
        for name, words in _commands(page):
            if name in commands:  # others are scripts of the project's own upkeep
                tried += 1
                try:
                    commands[name].make_context(name, list(words)).close()
                except Exception as error:
                    pytest.fail(f"{page}: {name} {words}: {error}")
    assert tried > 100


def test_the_way_of_a_message_passes_each_room_once():
    """The table's first column names each room at its first file, and no file comes twice."""
    rows = re.findall(r"^\|([^|]*)\|([^|]*)\|", (ROOT / "docs/message.md").read_text(encoding="utf-8"), re.M)[
        2:
    ]
    rooms = [room.strip() for room, _ in rows if room.strip()]
    files = [path for _, paths in rows for path in _PATH.findall(paths)]
    assert len(rooms) == len(set(rooms)) >= 8
    assert len(files) == len(set(files)) >= 20


def test_a_class_name_stands_in_one_place():
    found = defaultdict(list)
    for package in ("simcore", "workloads"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.M):
                found[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}

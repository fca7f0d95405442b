"""Names that files give: of other files, which lead nowhere that the user did not name, and what is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from simcore.errors import InputError

#: What a terminal would obey: control characters, and those that turn the direction of writing around.
CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """``text`` with what a terminal would obey written out as in Python; lines stay lines, tabs tabs."""
    return CONTROL.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return found[0] if found[0] == "\t" else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def inside(folder: Path, name: str, where: str) -> Path:
    """The file called ``name`` in ``folder``, named by a file in it; ``where``, for messages.

    InputError for a name that is absolute or leads out of the folder, by ``..`` or by a link.
    """
    try:
        found = (folder / name).resolve()
        leads_out = Path(name).is_absolute() or not found.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise InputError(f"{where}: {name[:200]!r}: {getattr(error, 'strerror', None) or error}") from None
    if leads_out:
        raise InputError(
            f"{where}: {name[:200]!r} is outside {str(folder)!r}; a file may name files of its own"
            " folder only (name others on the command line)"
        )
    return folder / name


def there(path: Path, *, folder: bool = False) -> bool:
    """Whether something is at ``path``, with ``folder`` a folder; nothing is at a name that none can have."""
    try:
        return path.is_dir() if folder else path.exists()
    except (OSError, ValueError):  # too long, or with a NUL
        return False

"""Names of files that files give: they lead nowhere that the user did not name."""

from __future__ import annotations

from pathlib import Path

from simcore.errors import InputError


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

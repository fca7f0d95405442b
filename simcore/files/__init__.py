"""What is written appears whole or not at all, and nobody else's files are lost to it."""

from simcore.files.lines import append_line
from simcore.files.manifest import (
    MANIFEST,
    check_file,
    check_folder,
    check_replaceable,
    manifest_of,
    sync,
    write_manifest,
)
from simcore.files.names import folder_name
from simcore.files.whole import whole_file, whole_folder, whole_text

__all__ = [
    "MANIFEST",
    "append_line",
    "check_file",
    "check_folder",
    "check_replaceable",
    "folder_name",
    "manifest_of",
    "sync",
    "whole_file",
    "whole_folder",
    "whole_text",
    "write_manifest",
]

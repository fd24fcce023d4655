"""The folder of a dump, of which nothing but earlier dumps is ever removed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gqc.errors import DumpError

_VARIANT = re.compile(r"variant\d+_(train|eval)")
_STAGE = re.compile(r"stage\d+")
_FILE = re.compile(r"\d\d_\w+\.(py|diff)|(reasons|errors)\.json|graph\.graphml|index\.html")

ENTRY = "index.html"
GENERATOR = '<meta name="generator" content="gqc dump">'
"""Tells a page of a dump from another."""


def prepare(folder: Path) -> Path:
    """Make the folder of a model's dump and check that files can be written there.

    Raises:
        DumpError: it is a file, cannot be made or written to, or holds a page of somebody else's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise DumpError(f"dump={str(folder)!r}: this is a file; name a folder") from None
    except OSError as error:
        raise DumpError(f"dump={str(folder)!r}: the folder cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DumpError(f"dump={str(folder)!r}: no permission to write there; name another folder")
    entry = folder / ENTRY
    if entry.exists() and not is_ours(entry):
        raise DumpError(f"dump={str(folder)!r}: it holds an {ENTRY} that is not a dump's; name another folder")
    return folder


def is_ours(page: Path) -> bool:
    """Whether a page is one of a dump."""
    return GENERATOR in page.read_text(encoding="utf-8", errors="replace")


def remove_earlier(folder: Path) -> None:
    """Remove the files that an earlier run has dumped here, and the folders that this leaves empty."""
    for variant in sorted(folder.iterdir()):
        if not (variant.is_dir() and _VARIANT.fullmatch(variant.name)):
            continue
        for stage in sorted(variant.iterdir()):
            if stage.is_dir() and _STAGE.fullmatch(stage.name):
                for file in sorted(stage.iterdir()):
                    if _FILE.fullmatch(file.name):
                        file.unlink()
                _remove_if_empty(stage)
        _remove_if_empty(variant)


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()

"""Digests of what a run exported, to compare a killed and resumed run with one that nobody killed."""

import hashlib
from pathlib import Path


def digests(out: Path) -> dict[str, str]:
    """sha256 of every exported file but the statement, which says when it was made."""
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((out / "export").rglob("*"))
        if path.is_file() and not path.name.startswith("statement")
    }

"""Claim: what a run exports does not depend on how the code is arranged.

Everything that is random by design (ids of charges, salts, keys of sources, the secret) is pinned, so two commits that
compute the same export the same bytes. Run `python benchmarks/golden_exports.py OUT.json` on each, compare the files.
They hold the sha256 of every exported file and the entries of the statement; times and ledger entries differ. Of
trajectory matching nothing is run: it wants a public table beside the private one, and the samples hold one of them.
"""

import hashlib
import itertools
import json
import os
import secrets
import sys
import tempfile
from pathlib import Path

_NUMBERS, _CHARGES = itertools.count(), itertools.count(1)
secrets.token_bytes = lambda size=32: b"t" * size
# Twelve bytes are a charge's id; all else only names files.
secrets.token_hex = lambda size=32: f"{next(_CHARGES):0{2 * size}x}" if size == 12 else f"{next(_NUMBERS):0{2 * size}x}"

RUNS = {
    "conditional-generation": [
        "--data", "sample:reviews", "--test", "sample:reviews-test", "--source", "golden", "--epsilon", "3",
        "--budget", "8,1e-3", "--samples", "40", "--set", "train.epochs=1", "--set", "class_sizes=as_in_data",
    ],
    "gradient-matching": [
        "--data", "sample:reviews", "--test", "sample:reviews-test", "--source", "golden", "--epsilon", "3",
        "--budget", "8,1e-3", "--samples", "6", "--set", "matching.rounds=2", "--set", "matching.inner_steps=2",
        "--set", "matching.swap_sweeps=1",
    ],
    "preference-optimization": [
        "--data", "sample:clients", "--source", "golden-clients", "--epsilon", "8", "--budget", "16,2e-2",
        "--samples", "10", "--set", "rounds=2", "--set", "candidates.prompts=4", "--set", "preferences.epochs=1",
    ],
    "knowledge-distillation": [
        "--data", "sample:instructions", "--source", "golden-pairs", "--epsilon", "8", "--budget", "64,4e-3",
        "--samples", "6", "--about", "everyday questions", "--set", "train.epochs=1",
    ],
}  # fmt: skip
# Of the statement, what names the time and the code that ran.
_ASIDE = {"time", "config_digest", "code_digest", "version"}


def digests(folder: Path) -> dict[str, str]:
    """File in export/ -> sha256, the statement field by field."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if name == "statement.json":
            statement = json.loads(path.read_text())
            for key, value in sorted(statement.items()):
                if key not in _ASIDE:
                    found[f"{name}:{key}"] = json.dumps(value, sort_keys=True)
        elif name != "statement.md":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def main(out: str) -> None:
    """Run every method and write its digests."""
    found = {}
    with tempfile.TemporaryDirectory() as root:
        place = Path(root)
        os.environ |= {
            "UNDERSTUDY_HOME": str(place / "home"),
            "UNDERSTUDY_SECRET": "s" * 64,
            "UNDERSTUDY_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        (place / "home").mkdir(mode=0o700)
        from understudy.flows import cli

        for method, options in RUNS.items():
            sys.argv = ["understudy", "run", method, *options, "--out", str(place / method)]
            try:
                cli.main()
            except SystemExit as stop:
                if stop.code:
                    raise
            found[method] = digests(place / method / "export")
            Path(out).write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])

"""The two example methods of `tests/plugin` as a package that is installed beside Understudy."""

import shutil
from pathlib import Path

PLUGIN = Path(__file__).parent / "plugin"
INSTALLED = "[understudy.methods]\nbag-of-words = bag_of_words.method:METHOD\nvoted-texts = voted_texts.method:METHOD\n"


def install_into(site: Path) -> None:
    """Modules and entry points, as pip leaves them."""
    for package in ("bag_of_words", "voted_texts"):
        shutil.copytree(PLUGIN / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    info = site / "understudy_examples-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: understudy-examples\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(INSTALLED)

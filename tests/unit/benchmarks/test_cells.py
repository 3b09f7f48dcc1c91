"""What the driver of benchmarks reads and writes: cells by digest, published ones by name, no empty figures."""

import json
import math
from argparse import Namespace
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from understudy.errors import InputError

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@dataclass(frozen=True)
class Cell:
    condition: str
    epsilon: float = math.inf
    seed: int = 0

    @property
    def name(self) -> str:
        return self.condition


@pytest.fixture(autouse=True)
def beside_the_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def folders(tmp_path):
    """A cache and a published folder with a cell of older settings each."""
    for place, name in (("cache", "cached"), ("published", "published")):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{name}.json").write_text(json.dumps({"condition": name, "digest": "older"}))
    return tmp_path


def options_of(folder: Path, *, only_print: bool) -> Namespace:
    return Namespace(cache=folder / "cache", published=folder / "published", print=only_print, limit=0)


def found_by(folder: Path, digest, *, only_print: bool) -> list[str]:
    cells = import_module("cells")
    benchmark = cells.Benchmark(None, lambda settings, cell: {}, digest=lambda settings, cell: digest)
    found = cells.complete(
        benchmark, [Cell("cached"), Cell("published"), Cell("missing")], options_of(folder, only_print=only_print)
    )
    return [cell.name for cell in found]


def test_print_takes_published_cells_by_name_and_says_so(folders, capsys):
    assert found_by(folders, "today", only_print=True) == ["published"]
    assert "1 published" in capsys.readouterr().out
    assert not (folders / "published" / "cached.json").exists()


def test_print_publishes_a_cell_of_the_same_settings_from_the_cache(folders):
    assert found_by(folders, "older", only_print=True) == ["cached", "published"]
    assert (folders / "published" / "cached.json").exists()


@pytest.mark.parametrize(("digest", "expected"), [("older", ["cached", "published"]), ("today", [])])
def test_a_run_takes_cells_of_its_own_settings_only(folders, digest, expected, capsys):
    assert found_by(folders, digest, only_print=False) == expected
    assert "by their names" not in capsys.readouterr().out


def test_a_digest_that_needs_the_data_is_asked_for_unpublished_cells_only(folders):
    cells = import_module("cells")

    def digest(settings, cell):
        raise InputError("no such file")

    benchmark = cells.Benchmark(None, lambda settings, cell: {}, digest=digest)
    options = options_of(folders, only_print=True)
    assert list(cells.complete(benchmark, [Cell("published"), Cell("missing")], options)) == [Cell("published")]
    with pytest.raises(SystemExit, match=r"cached.*--data"):
        cells.complete(benchmark, [Cell("cached")], options)


def test_conditional_generation_tells_cells_of_other_settings_apart():
    module = import_module("conditional_generation")
    plain = module.Settings(Path(), Path())
    changes = ({}, {"model": "tiny-gpt2"}, {"rows": 10}, {"samples": 10}, {"about": "film reviews"})
    cell = module.Cell("naive", 3.0, 0)
    digests = {module.digest(module.Settings(plain.data, plain.cache, **change), cell) for change in changes}
    assert len(digests) == len(changes)
    assert module.digest(plain, cell) == module.digest(module.Settings(Path("elsewhere"), Path("other")), cell)


def test_figures_are_not_written_over_with_empty_tables(tmp_path):
    tables, path = import_module("tables"), tmp_path / "figures.json"
    with pytest.raises(SystemExit, match="rows"):
        tables.write_figures(path, {"rows": [], "others": []})
    assert not path.exists()
    tables.write_figures(path, {"rows": [{"condition": "real"}], "others": []})
    before = path.read_text()
    with pytest.raises(SystemExit, match="rows"):
        tables.write_figures(path, {"rows": [], "others": [{"condition": "real"}]})
    assert path.read_text() == before
    tables.write_figures(path, {"rows": [{"condition": "naive"}], "others": []})
    assert json.loads(path.read_text())["rows"] == [{"condition": "naive"}]

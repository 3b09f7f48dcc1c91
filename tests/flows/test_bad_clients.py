"""What preference optimisation must refuse, through the command line: message, exit code, nothing changed."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_state import state_of
from tests_support import SMALL

from understudy.data.tables import client_digests, row_digests
from understudy.privacy.ledger.ledger import Ledger, SourceRecord

pytestmark = pytest.mark.usefixtures("fixed_root_key")

SECRET = "a walk to the old mill with Zibby"
SETTINGS = (
    "rounds=1",
    "candidates.prompts=2",
    "candidates.per_prompt=3",
    "candidates.seeds_per_prompt=3",
    "candidates.seed_tokens=4",
    "candidates.sampling.max_new_tokens=8",
    "preferences.rejected_rank=2",
    "preferences.learning_rate=1e-3",
)


def clients(*more: tuple[object, object]) -> dict[str, list]:
    """Texts of sixteen clients, and further rows; some clients are held out, and some are not."""
    rows = [(f"c{i % 16}", f"{SECRET}, day {i}") for i in range(24)] + list(more)
    return {"client_id": [who for who, _ in rows], "text": [text for _, text in rows]}


@pytest.fixture
def options(tmp_path, random_model_folder):
    """The options of a run, as words; None leaves one out."""

    def make(given: dict[str, object], *settings: str) -> list[object]:
        pq.write_table(pa.table(clients()), tmp_path / "clients.parquet")
        options = {
            "data": tmp_path / "clients.parquet",
            "source": "diaries",
            "epsilon": 5,
            "budget": "8,0.05",
            "model": random_model_folder,
            "samples": 4,
            "out": tmp_path / "out",
        }
        options |= given
        words = [word for name, value in options.items() if value is not None for word in (f"--{name}", value)]
        return [*words, *(word for setting in settings for word in ("--set", setting))]

    return make


@pytest.fixture
def refuse(call, options, home, tmp_path):
    """Run what must be refused; gives the one line that it says."""

    def run(given: dict[str, object], *settings: str, rows=None, method="preference-optimization") -> str:
        if rows is not None:
            pq.write_table(pa.table(rows), tmp_path / "bad.parquet")
            given = {"data": tmp_path / "bad.parquet", **given}
        before = state_of(home)
        code, said = call("run", method, *options(given, *settings))
        assert code == 2, said
        (line,) = [line for line in said.splitlines() if line.startswith("understudy:")]
        assert "Zibby" not in said, "a private text was shown"
        assert state_of(home) == before
        assert not (tmp_path / "out").exists()
        return line

    return run


ROWS = {
    "client with white space only": (
        clients(("quiet", " \n"), ("quiet", "\t")),
        "column 'text', row 24",
    ),
    "one client": ({"client_id": ["a"] * 20, "text": [SECRET] * 20}, "two clients"),
    "nine clients": (
        {"client_id": [f"c{i}" for i in range(9)], "text": [SECRET] * 9},
        "9 clients: expected at least 10",
    ),
    "ids of other case": (clients(("C3", SECRET)), "identifier of row 3 "),
    "ids of other white space": (clients((" c0\u3000", SECRET)), "row 24: duplicate client ids"),
    "ids of other Unicode form": (clients(("ｃ1", SECRET)), "row 24: duplicate client ids"),
    "null id": (clients((None, SECRET)), "column 'client_id', row 24"),
    "null text": (clients(("c1", None)), "column 'text', row 24"),
    "text that is not a string": (
        {"client_id": ["a", "b"], "text": [1, 2]},
        "found int64",
    ),
    "missing client column": ({"text": [SECRET] * 20}, "--client-column"),
    "missing text column": ({"client_id": ["a", "b"]}, "--text-column"),
    "empty table": ({"client_id": pa.array([], pa.string()), "text": pa.array([], pa.string())}, "at least one row"),
}


@pytest.mark.parametrize("name", ROWS)
def test_bad_rows_are_refused_at_admission(name, refuse):
    rows, expected = ROWS[name]
    assert expected in refuse({}, *SETTINGS, rows=rows)


SET = {
    "fewer texts than the rejected rank": (
        "preferences.rejected_rank=4",
        "preferences.rejected_rank=4: expected at most candidates.per_prompt=3",
    ),
    "prompt beyond the context": ("candidates.seed_tokens=60", "candidates: the longest prompt takes"),
    "seeds that are nowhere": ("seeds=nowhere.parquet", "seeds=nowhere.parquet: "),
    "unknown sample as seeds": ("seeds=sample:nothing", "sample:nothing: expected one of"),
    "seeds without a column text": ("seeds=sample:instructions", "expected one column 'text'"),
    "no rounds": ("rounds=0", "rounds"),
    "nobody takes part": ("clients.sampling_probability=0", "clients.sampling_probability"),
    "unknown setting": ("clients.size=3", "clients.size"),
    "setting of another method": ("train.epochs=2", "train.epochs"),
    "labels without an instruction": ("variant=central_conditional", "label"),
}


@pytest.mark.parametrize("name", SET)
def test_bad_settings_are_refused_at_admission(name, refuse):
    setting, expected = SET[name]
    assert expected in refuse({}, *SETTINGS, setting)


def test_seeds_that_cannot_fill_a_prompt_are_refused(refuse, tmp_path):
    pq.write_table(pa.table({"text": ["one public text", " ", "another one"]}), tmp_path / "seeds.parquet")
    line = refuse({}, *SETTINGS, f"seeds={tmp_path / 'seeds.parquet'}")
    assert "seeds_per_prompt=3" in line
    assert "found 2" in line


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"epsilon": 0}, "--epsilon 0"),
        ({"epsilon": "nan"}, "--epsilon nan"),
        ({"delta": 0.2}, "1/n"),
        ({"client-column": "author"}, "expected one column 'author'"),
        ({"label-column": "stars"}, "leave --label-column out"),
        ({"label-names": "0=neg,1=pos"}, "leave --label-names out, or choose a method or a variant that reads labels"),
        ({"source": None}, "--source"),
        ({"model": "no-such/model-at-all"}, "no-such/model-at-all"),
    ],
)
def test_bad_options_are_refused_at_admission(given, expected, refuse):
    assert expected in refuse(given, *SETTINGS)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"client_id": ["z"], "text": ["of one client"]}, "two clients"),
        ({"client_id": ["y", "Y"], "text": ["of one", "of the same"]}, "row 1: duplicate client ids"),
        ({"client_id": ["y", "z"], "text": ["of one", " "]}, "row 1"),
    ],
)
def test_rows_to_measure_on_are_refused_as_early(rows, expected, refuse, tmp_path):
    pq.write_table(pa.table(rows), tmp_path / "test.parquet")
    assert expected in refuse({"test": tmp_path / "test.parquet"}, *SETTINGS)


def test_nothing_to_measure_on_is_refused(refuse):
    rows = {"text": [" "] * 12}
    assert "rows to measure on" in refuse({}, *SETTINGS, "variant=central", rows=rows)


def register(unit: str, relation: str) -> None:
    Ledger.open().register(SourceRecord(name="diaries", unit=unit, relation=relation, epsilon=8, delta=0.015, n=60))


@pytest.mark.parametrize("variant", ["central", "federated"])
def test_a_source_keeps_the_unit_that_it_was_registered_with(variant, refuse):
    units = {"federated": ("client", "add_or_remove_one"), "central": ("example", "replace_special")}
    own, other = units[variant], units["central" if variant == "federated" else "federated"]
    register(*other)
    line = refuse({}, *SETTINGS, f"variant={variant}", rows=clients())
    assert f"registered per {other[0]} ({other[1]})" in line
    assert f"this run protects each {own[0]} ({own[1]})" in line


def test_a_source_of_clients_is_refused_by_a_method_that_protects_examples(refuse):
    register("client", "add_or_remove_one")
    rows = {"text": [f"{SECRET} {i}" for i in range(40)], "label": ["good", "bad"] * 20}
    line = refuse({}, *SMALL, rows=rows, method="conditional-generation")
    assert "registered per client" in line


@pytest.mark.parametrize("other", ["other documents", "a full stop after every row"])
def test_the_same_clients_and_rows_get_no_second_budget_under_a_new_name(other, refuse):
    first = pa.table(clients())
    ledger = Ledger.open()
    ledger.register(
        SourceRecord(name="letters", unit="client", relation="add_or_remove_one", epsilon=8, delta=0.015, n=60)
    )
    ledger.register_rows("letters", row_digests(first), client_digests(first))
    names, texts = first["client_id"].to_pylist(), first["text"].to_pylist()
    if other == "other documents":
        rows, said = {"client_id": names, "text": [f"{SECRET} new {i}" for i in range(len(names))]}, "of a client"
    else:
        rows, said = (
            {"client_id": [f"new {name}" for name in names], "text": [f"{t}." for t in texts]},
            "in punctuation",
        )
    line = refuse({}, *SETTINGS, "variant=federated", rows=rows)
    assert "registered under 'letters' already" in line
    assert said in line

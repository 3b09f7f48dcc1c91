"""Trajectory matching without an epsilon, from a file to its folder, with the real Prefect engine."""

import functools
import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.errors import InputError, RowError
from understudy.evaluation.answers import harness
from understudy.flows import trajectory_matching
from understudy.methods.trajectory_matching import carriers
from understudy.privacy.ledger.ledger import Ledger
from understudy.runs.validation import validate
from understudy.settings import prepare_environment
from understudy.tasks.housekeeping import purge_source
from understudy.tensor_files import load_tensors

METHOD = "trajectory-matching"
COMPUTED = {"train-expert", "gather-experts", "select-rows", "distil", "emit-text", "evaluate-tuning"}
SETTINGS = (
    "max_length=56",
    "experts.count=2",
    "experts.epochs=2",
    "experts.lora_rank=2",
    "distil.max_start=1",
    "distil.steps=3",
    "distil.inner_steps=2",
    "distil.batch_size=2",
    "tuning.epochs=1",
    "tuning.questions=6",
)


@pytest.fixture(autouse=True)
def with_server(prefect_server):
    prepare_environment()


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.parquet"
    asked = [f"patient zq{i}x asks how ward {i % 9} was" for i in range(40)]
    # Of every ten rows in a row one is held out: both answers are among those, whatever the key.
    table = pa.table({"instruction": asked, "response": ["dreadful" if i // 10 % 2 else "lovely" for i in range(40)]})
    pq.write_table(table, path)
    return path


@pytest.fixture
def plain(request_of, pairs):
    """A request without an epsilon, with some fields changed."""
    fields = {"data": str(pairs), "epsilon": None, "samples": 4, "label_names": None, "overrides": SETTINGS}
    return lambda **changed: request_of(**{**fields, **changed})


def raising(error):
    """A function that raises, whatever it is given."""

    def raises(*_, **__):
        raise error

    return raises


def test_real_rows_stay_until_sharing_them_is_asked_for(
    run_flow, plain, pairs, tmp_path, monkeypatch, wide_model_folder
):
    run = functools.partial(run_flow, METHOD, tasks=COMPUTED)
    plain = functools.partial(plain, model=str(wide_model_folder))
    first, states = run(plain())
    assert {states[name] for name in COMPUTED} == {"Completed"}
    assert first.export is None
    assert not (tmp_path / "out/export").exists()
    report = json.loads((tmp_path / "out/internal/report.json").read_text())
    assert (report["statement"]["verdict"], report["statement"]["epsilon"]) == ("none", None)
    assert report["statement"]["mechanisms"] == []
    assert {"tuning.distilled.accuracy", "tuning.expert.loss", "distillation.matching_loss.last"} <= report[
        "metrics"
    ].keys()
    assert (report["metrics"]["cut.train.instructions"], report["metrics"]["cut.train.responses"]) == (0, 0)
    assert Ledger.open().spent("ward") == (0.0, 0.0)
    kept = pq.read_table(tmp_path / "out/internal/synthetic.parquet").to_pylist()
    known = pq.read_table(pairs)["instruction"].to_pylist()
    assert len(kept) == 4
    assert all(any(row["instruction"].endswith(text) for text in known) for row in kept)

    shared, states = run(plain(share_real_rows=True))
    assert {states[name] for name in COMPUTED} == {"Cached"}
    assert shared.synthetic == first.synthetic
    export = tmp_path / "out/export"
    assert json.loads((export / "statement.json").read_text())["verdict"] == "none"
    tensors = load_tensors(export / "distilled/pseudo_tokens.safetensors")
    assert tensors["embeddings"].shape[:2] == (4, 2)
    assert Ledger.open().spent("ward") == (0.0, 0.0)

    other = tuple(one for one in SETTINGS if not one.startswith("distil.steps"))
    _, states = run(plain(share_real_rows=True, overrides=(*other, "distil.steps=2")))
    assert states["train-expert"] == "Cached", "experts do not meet the settings of the distillation"
    assert states["distil"] == "Completed"

    # Another measurement trains and distils nothing again, and a hub that is away does not cost it its other figures.
    monkeypatch.setattr(harness, "_manager", lambda tasks: SimpleNamespace(load=lambda names: {"tasks": {}}))
    monkeypatch.setattr(harness, "by_harness", raising(ConnectionError("the hub is away")))
    public = tmp_path / "public.csv"
    public.write_text("instruction,response\nhow was it,lovely\nand there,dreadful\n")
    asked = ("evaluation.shots=2", f"evaluation.shots_from={public}", 'evaluation.harness_tasks=["arc_easy"]')
    _, states = run(plain(share_real_rows=True, overrides=(*SETTINGS, *asked)))
    assert {name for name in COMPUTED if states[name] != "Cached"} == {"evaluate-tuning"}
    report = json.loads((tmp_path / "out/internal/report.json").read_text())
    assert {"tuning.distilled.few_shot_accuracy", "tuning.untuned.few_shot_accuracy"} <= report["metrics"].keys()
    assert 0 < report["metrics"]["tuning.few_shot_questions"] <= 6
    assert any("the hub is away" in reason for reason in report["missing"])

    told = purge_source("ward")
    assert (told["private_exports"], told["not_removed"]) == ([str(export)], [])
    assert not (tmp_path / "out").exists(), "real rows were not released, so they do not stay"


@pytest.mark.slow
def test_another_model_may_choose_the_rows(run_flow, plain, tmp_path, monkeypatch):
    """Its embeddings are those of its own vocabulary; without it, those of the run's model. Experts stay."""
    vocabularies, plain_scores = [], carriers.less_scores

    def scores(student, *rest, **named):
        vocabularies.append(len(student.vocabulary))
        return plain_scores(student, *rest, **named)

    monkeypatch.setattr(carriers, "less_scores", scores)
    settings = (*SETTINGS, "selection.strategy=less", "selection.projection=16", "selection.warmup_epochs=1")
    run = functools.partial(run_flow, METHOD, tasks=COMPUTED)
    run(plain(overrides=settings))
    _, states = run(plain(overrides=(*settings, "selection.model=tiny-llama")))
    assert (states["train-expert"], states["select-rows"]) == ("Cached", "Completed")
    assert vocabularies == [4096, 8192]
    report = json.loads((tmp_path / "out/internal/report.json").read_text())
    assert "chosen by less with tiny-llama" in json.dumps(report)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"samples": 400}, r"selection\.rows=400: expected at most the 40 rows"),
        ({"samples": 30, "overrides": (*SETTINGS, "selection.strategy=bm25")}, r"selection\.rows=30: .* the 24 rows"),
        ({"overrides": (*SETTINGS, "distil.tokens=0")}, "distil.tokens"),
        ({"overrides": (*SETTINGS, "distil.max_start=3")}, r"^--set: distil\.max_start=3.*experts\.epochs=2"),
        ({"overrides": (*SETTINGS, "max_length=4000")}, "max_length"),
        ({"overrides": (*SETTINGS, "experts.private=true")}, "give --epsilon"),
        ({"overrides": (*SETTINGS, "tuning.transfer=no-such-model")}, r"tuning\.transfer=no-such-model"),
        ({"overrides": (*SETTINGS, "selection.model=tiny-gpt2")}, r"selection\.model=tiny-gpt2"),
        ({"overrides": (*SETTINGS, "evaluation.shots=2")}, r"evaluation\.shots_from=TABLE"),
        (
            {"overrides": (*SETTINGS, "evaluation.shots=2", "evaluation.shots_from=nowhere.csv")},
            r"evaluation\.shots_from=nowhere\.csv",
        ),
        (
            {"overrides": (*SETTINGS, "evaluation.shots=32", "evaluation.shots_from=sample:instructions")},
            r"evaluation\.shots=32: expected room",
        ),
        ({"overrides": (*SETTINGS, "carriers=nowhere.parquet", "carrier=public")}, "carriers=nowhere.parquet"),
        ({"epsilon": 3.0, "overrides": (*SETTINGS, "carrier=selected")}, "carrier=selected"),
        ({"epsilon": 3.0, "share_real_rows": True}, "--share-real-rows"),
        ({"epsilon": 3.0, "samples": 4000}, r"selection\.rows=4000"),
        (
            {"epsilon": 3.0, "samples": 190, "overrides": (*SETTINGS, "selection.strategy=dsir")},
            r"selection\.rows=190: expected at most the 184 rows",
        ),
        ({"budget": None}, "a run without --epsilon on a new source"),
    ],
)
def test_bad_input_is_refused_before_anything_is_stored(plain, changed, named):
    with pytest.raises(InputError, match=named):
        validate(plain(**changed), METHOD)
    assert Ledger.open().sources() == ()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (METHOD, ("carrier=public", "carriers={}")),
        (METHOD, ("carriers={}",)),
        (METHOD, ("selection.strategy=bm25", "selection.target={}")),
        (METHOD, ("evaluation.shots=1", "evaluation.shots_from={}")),
        ("knowledge-distillation", ("evaluation.shots=1", "evaluation.shots_from={}")),
        ("knowledge-distillation", ("seed.pairs={}",)),
        ("knowledge-distillation", ("instructions.examples={}",)),
        ("knowledge-distillation", ("filters.against={}",)),
        ("preference-optimization", ("seeds={}",)),
    ],
)
@pytest.mark.parametrize("option", ["data", "test"])
def test_private_rows_are_refused_where_a_public_table_is_named(method, settings, option, plain, pairs, tmp_path):
    """Real rows would leave with the label of a charge that never saw them."""
    private, same = pairs, tmp_path / "link.parquet"
    same.symlink_to(private)
    files = {"data": str(private)} if option == "data" else {"data": "other.csv", "test": str(private)}
    chosen = tuple(one.format(same) for one in settings)
    with pytest.raises(InputError, match=f"expected a public table, found the private rows of --{option}"):
        validate(plain(epsilon=3.0, overrides=chosen, samples=None, **files), method)
    assert Ledger.open().sources() == ()


@pytest.mark.parametrize(
    ("method", "setting", "asked", "answered"),
    [
        (METHOD, "carriers", "instruction", "response"),
        (METHOD, "selection.target", "instruction", "response"),
        ("knowledge-distillation", "seed.pairs", "instruction", "response"),
        ("knowledge-distillation", "instructions.examples", "instruction", "topic"),
        ("knowledge-distillation", "filters.against", "instruction", "topic"),
        ("preference-optimization", "seeds", "text", "topic"),
    ],
)
def test_a_copy_of_private_rows_is_no_public_table(
    method, setting, asked, answered, plain, pairs, tmp_path, fixed_root_key
):
    """It would be published under another name, in another format and with another column beside it."""
    private, copied = pq.read_table(pairs), tmp_path / "carried.jsonl"
    rows = zip(*(private[name].to_pylist() for name in ("instruction", "response")), strict=True)
    copied.write_text("".join(json.dumps({asked: f" {one.upper()}!", answered: two}) + "\n" for one, two in rows))
    if asked == "text":
        table = {"client_id": [f"client {i % 12}" for i in range(40)], "text": private["instruction"]}
        pq.write_table(pa.table(table), pairs)
    strategy = ("selection.strategy=bm25",) if setting == "selection.target" else ()
    request = plain(epsilon=3.0, overrides=(*strategy, f"{setting}={copied}"), samples=None)
    with pytest.raises(RowError, match=rf"{setting}={copied}: expected a public table, found private texts"):
        validate(request, method)
    assert Ledger.open().sources() == ()


@pytest.mark.slow
def test_private_rows_that_took_the_place_of_public_ones_meanwhile_are_not_published(
    run_flow, plain, pairs, tmp_path, monkeypatch
):
    """Public pairs are searched for private rows before the charge and read when experts are trained, hours later."""
    public = tmp_path / "public.parquet"
    table = pa.table({"instruction": [f"public question {i}" for i in range(12)], "response": ["yes"] * 12})
    pq.write_table(table, public)
    finalize = trajectory_matching.finalize

    def replaced(*given):
        public.write_bytes(pairs.read_bytes())
        return finalize(*given)

    monkeypatch.setattr(trajectory_matching, "finalize", replaced)
    request = plain(epsilon=3.0, overrides=(*SETTINGS, "carrier=public", f"carriers={public}"))
    with pytest.raises(InputError, match=rf"carriers={public}: expected the pairs that the run began with"):
        run_flow(METHOD, request, tasks=set())
    assert not (tmp_path / "out/export").exists()
    pq.write_table(table, public)
    monkeypatch.setattr(trajectory_matching, "finalize", finalize)
    _, states = run_flow(METHOD, request, tasks=COMPUTED)
    assert (states["train-expert"], states["select-rows"]) == ("Cached", "Completed")
    told = pq.read_table(tmp_path / "out/export/synthetic.parquet")["instruction"].to_pylist()
    assert len(told) == 4
    assert all("public question" in text for text in told)


def test_the_sample_does_not_carry_pseudo_tokens_for_itself(plain):
    with pytest.raises(InputError, match=r"carriers=sample:instructions: .* --data"):
        validate(plain(epsilon=3.0, data="sample:instructions"), METHOD)


def test_other_methods_still_need_an_epsilon(request_of):
    with pytest.raises(InputError, match="--epsilon is missing: conditional-generation promises"):
        validate(request_of(epsilon=None), "conditional-generation")
    with pytest.raises(InputError, match="--share-real-rows"):
        validate(request_of(share_real_rows=True), "conditional-generation")

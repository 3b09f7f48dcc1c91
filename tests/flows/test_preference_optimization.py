"""Preference optimisation from the command line to the export, with the real Prefect engine, on a random base model."""

import functools
import json
import math
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from completions_server import Completions
from ended_runs import Ended, everything_logged
from homes import fix_root_key
from kill_and_resume import digests, kill_once, reserve
from safetensors.torch import load_file
from tests_support import SMALL_ROUND

from understudy.artifacts.access import exchange_store, path_of
from understudy.artifacts.zone_keys import OwnKey
from understudy.data.samples import generate
from understudy.errors import InputError, UnderstudyError
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.privacy.ledger.ledger import Ledger
from understudy.runs.folders import read_record
from understudy.runs.request import Budget, RunRequest
from understudy.runs.units import client_is_held_out
from understudy.runs.validation import validate
from understudy.settings import prepare_environment
from understudy.tasks.engine.cache_key import references

pytestmark = pytest.mark.usefixtures("fixed_root_key")

METHOD = "preference-optimization"
SETTINGS = ("rounds=2", *SMALL_ROUND, "clients.sampling_probability=0.5", "costs.download_mbit_per_second=8")
COMPUTED = {"embed-clients", "propose", "score", "prefer", "publish", "write-texts", "evaluate-rounds"}
SERVER = {"propose", "prefer", "publish", "write-texts"}


@pytest.fixture(autouse=True)
def with_server(prefect_server):
    prepare_environment()


@pytest.fixture(scope="module")
def small_downstream():
    """A downstream model that is tuned in a second: what it is worth is measured elsewhere."""
    from understudy.methods.preference_optimization import evaluation

    with pytest.MonkeyPatch.context() as patch:
        small = functools.partial(evaluation.NextTokenConfig, epochs=1, max_length=12)
        patch.setattr(evaluation, "NextTokenConfig", small)
        yield


@dataclass(frozen=True)
class Started:
    """A task whose body ran: one taken from the cache is not among them."""

    name: str
    zone: str
    arguments: dict[str, object]


@contextmanager
def watched():
    """Every task that runs, and every record of every logger, as they come."""
    from understudy.tasks.engine import runtime

    tasks: list[Started] = []
    check = runtime.check_zone

    def seen(name, zone, arguments):
        tasks.append(Started(name, zone, dict(arguments)))
        check(name, zone, arguments)

    with everything_logged() as lines, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "check_zone", seen)
        yield tasks, lines


def words(out: Path, model: Path, *, data: object = "sample:clients", epsilon: object = 5) -> list[object]:
    options = {
        "data": data,
        "source": "diaries",
        "epsilon": epsilon,
        "delta": 0.001,
        "budget": "12,0.02",
        "model": model,
        "samples": 8,
        "out": out,
    }
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    return ["run", METHOD, *given, *(word for setting in SETTINGS for word in ("--set", setting))]


def request(out: Path, model: Path, **given) -> RunRequest:
    fields = {
        "data": "sample:clients",
        "source": "diaries",
        "out": str(out),
        "epsilon": 5.0,
        "delta": 0.001,
        "budget": Budget(epsilon=12, delta=0.02),
        "model": str(model),
        "samples": 8,
        "overrides": SETTINGS,
    }
    return RunRequest.model_validate(fields | given)


def held_out() -> set[str]:
    """Clients of the sample that the ledger of this home holds out."""
    keyed_hash = functools.partial(Ledger.open().keyed_hash, "diaries")
    clients = set(generate("clients")["client_id"].to_pylist())
    return {client for client in clients if client_is_held_out(client, units=40, keyed_hash=keyed_hash)}


@pytest.fixture(scope="module")
def ended(prefect_server, small_downstream, tmp_path_factory, in_home, call, random_model_folder):
    folder = tmp_path_factory.mktemp("diaries")
    with pytest.MonkeyPatch.context() as patch, in_home(folder / "home") as home, watched() as (tasks, lines):
        fix_root_key(patch)
        assert len(held_out()) >= 4, "of fewer there is no distance of rounds"
        prepare_environment()
        code, said = call(*words(folder / "out", random_model_folder), "--json")
    assert code == 0, said
    return Ended(home, folder / "out", code, said, "\n".join(lines), tuple(tasks))


@pytest.fixture
def run(run_flow):
    return functools.partial(run_flow, METHOD, tasks=COMPUTED)


def test_the_export_is_texts_a_model_and_their_statement(ended):
    export = ended.out / "export"
    assert {path.relative_to(export).as_posix() for path in export.rglob("*")} == {
        "statement.json",
        "statement.md",
        "synthetic.parquet",
        "model",
        "model/config.json",
        "model/generation_config.json",
        "model/model.safetensors",
        "model/tokenizer.json",
        "model/tokenizer_config.json",
    }
    table = pq.read_table(export / "synthetic.parquet")
    assert table.column_names == ["text"]
    assert table.num_rows == 8
    assert all(text.strip() for text in table["text"].to_pylist())


def test_the_statement_protects_clients_and_says_what_sampling_is_worth(ended):
    statement = ended.statement()
    assert (statement["unit"], statement["relation"]) == ("client", "add_or_remove_one")
    assert 4.9 < statement["epsilon"] <= 5
    assert statement["epsilon_rdp"] > statement["epsilon"]
    assert statement["epsilon_without_amplification"] > statement["epsilon"]
    assert statement["verdict"] == "proven under assumptions"
    assert [len(one["digest"]) for one in statement["pretrained_models"]] == [64, 64], "base model and sentence encoder"
    (mechanism,) = statement["mechanisms"]
    assert (mechanism["name"], mechanism["steps"], mechanism["sampling_probability"]) == ("scores", 2, 0.5)
    assert statement["declared_public"]["n"] == 40, "as declared, whoever is held out"
    (entry,) = statement["ledger_entries"]
    assert (entry["status"], entry["epsilon"]) == ("released", 5)


def test_the_exported_model_is_the_policy_not_the_base(ended, random_model_folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ended.out / "export/model"
    policy = AutoModelForCausalLM.from_pretrained(folder)
    ids = AutoTokenizer.from_pretrained(folder)("A list of different texts:", return_tensors="pt")
    with torch.no_grad():
        assert torch.isfinite(policy(**ids).logits).all()
    merged, base = load_file(folder / "model.safetensors"), load_file(random_model_folder / "model.safetensors")
    assert merged.keys() == base.keys(), "merged: no tensor of an adapter is left"
    assert not any("lora" in name for name in merged)
    changed = {name for name in merged if not torch.equal(merged[name], base[name])}
    assert {re.sub(r"\.\d+\.", ".N.", name).removeprefix("transformer.") for name in changed} == {
        "h.N.attn.c_attn.weight",
        "h.N.attn.c_proj.weight",
        "h.N.mlp.c_fc.weight",
        "h.N.mlp.c_proj.weight",
    }


def test_the_report_measures_rounds_and_the_next_token(ended, in_home):
    metrics = json.loads((ended.out / "internal/report.json").read_text())["metrics"]
    for number in (1, 2):
        assert 0 <= metrics[f"rounds.recovery.round_{number}"] <= 1
        assert metrics[f"rounds.medoid_distance.round_{number}"] > 0
        assert metrics[f"rounds.frechet.round_{number}"] > metrics["rounds.frechet_floor"]
    assert not any("round_3" in name for name in metrics)
    with in_home(ended.home):
        held = held_out()
    assert metrics["utility.next_token.clients"] == len(held)
    assert 0 <= metrics["cut.train.clients"] <= 40 - len(held)
    for condition in ("public", "prompt_only", "synthetic", "real"):
        assert 0 <= metrics[f"utility.next_token.{condition}.accuracy"] <= 1
    assert metrics["utility.next_token.real.loss"] < metrics["utility.next_token.public.loss"]
    assert metrics["costs.download.mbit_per_second"] == 8, "no part of the charge, and met all the same"
    assert metrics["costs.download.seconds"] == pytest.approx(32 * metrics["costs.download.floats"] / 8e6)
    assert metrics["costs.scoring.seconds"] > 0


def test_the_server_zone_is_handed_noisy_scores_and_nothing_private(ended):
    zones = {task.name: task.zone for task in ended.tasks}
    assert {name for name, zone in zones.items() if zone == "server"} == SERVER
    assert {"embed-clients", "score", "evaluate-rounds"} <= {name for name, zone in zones.items() if zone == "client"}
    handed = [ref for task in ended.tasks if task.zone == "server" for ref in references(task.arguments)]
    assert {ref.kind for ref in handed} == {"candidates", "scores", "adapter"}
    assert {ref.label.kind for ref in handed if ref.kind in ("scores", "adapter")} == {"released"}
    assert not any(ref.is_private for ref in handed)
    (guarantee,) = {g for ref in handed for g in ref.label.guarantees}
    assert (guarantee.unit, guarantee.epsilon) == ("client", 5)


def test_nothing_private_leaves(ended, find_leaks):
    assert len(ended.log) > 1000
    rows = generate("clients")
    names = pa.table({"text": sorted(set(rows["client_id"].to_pylist()))})
    said = {"log": ended.log, "printed": ended.said}
    searched = pa.concat_tables([rows.select(["text"]), names])
    assert find_leaks(searched, home=ended.home, export=ended.out / "export", said=said) == []


def test_a_second_run_and_more_texts_charge_nothing_and_one_other_text_charges(
    ended, run, in_home, random_model_folder, tmp_path
):
    with in_home(ended.home):
        before, statement = Ledger.open().spent("diaries"), ended.statement()
        assert before[0] == 5.0
        again, states = run(request(tmp_path / "again", random_model_folder))
        assert {states[name] for name in COMPUTED} == {"Cached"}
        assert Ledger.open().spent("diaries") == before
        assert digests(tmp_path / "again") == digests(ended.out)

        more, states = run(request(tmp_path / "more", random_model_folder, samples=11))
        assert {states[name] for name in COMPUTED - {"write-texts", "evaluate-rounds"}} == {"Cached"}
        assert states["write-texts"] == "Completed"
        assert Ledger.open().spent("diaries") == before
        assert more.released == again.released
        texts = pq.read_table(tmp_path / "more/export/synthetic.parquet")["text"].to_pylist()
        assert len(texts) == 11
        assert texts[:8] == pq.read_table(ended.out / "export/synthetic.parquet")["text"].to_pylist()

        changed = generate("clients").to_pydict()
        row = next(row for row, who in enumerate(changed["client_id"]) if who not in held_out())
        changed["text"][row] = "Another text altogether."
        pq.write_table(pa.table(changed), tmp_path / "changed.parquet")
        asked = request(tmp_path / "changed", random_model_folder, data=str(tmp_path / "changed.parquet"))
        third, states = run(asked)
        assert states["score"] == "Completed"
        assert states["propose"] == "Cached/Completed", "what is proposed first is public"
        assert Ledger.open().spent("diaries")[0] == 10.0
        assert third.released != again.released
        charged = json.loads((tmp_path / "changed/export/statement.json").read_text())
        assert charged["ledger_entries"] != statement["ledger_entries"]


@pytest.fixture(scope="module")
def few_clients(tmp_path_factory):
    """Texts of sixteen clients, with words that occur nowhere else."""
    rows = [
        (f"c{i % 16}", f"day {i}: met zq{i}x by the {'river' if i % 3 else 'mill'} and walked home") for i in range(24)
    ]
    path = tmp_path_factory.mktemp("clients") / "clients.parquet"
    pq.write_table(pa.table({"client_id": [who for who, _ in rows], "text": [text for _, text in rows]}), path)
    return path


def test_a_private_policy_is_not_served_elsewhere(random_model_folder, tmp_path):
    """Without noise it is as private as the texts, and whoever serves it would have it."""
    served = (*SETTINGS, "endpoint.url=http://host/v1", "endpoint.model=policy-{round}")
    asked = request(tmp_path / "out", random_model_folder, overrides=served, epsilon=math.inf)
    with pytest.raises(InputError, match=r"endpoint\.url=http://host/v1: expected a finite --epsilon"):
        validate(asked, METHOD)
    assert Ledger.open().sources() == ()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (("scoring.aggregation=masked", "scoring.colluding=30"), r"colluding=30.*scoring\.aggregation=trusted"),
        (("endpoint.url=http://host/v1",), r"endpoint\.model=policy: expected \{round\}"),
    ],
)
def test_what_scoring_or_the_served_policy_would_spoil_is_refused_before_anything_is_stored(
    settings, named, random_model_folder, tmp_path
):
    asked = request(tmp_path / "out", random_model_folder, overrides=(*SETTINGS, *settings))
    with pytest.raises(InputError, match=named):
        validate(asked, METHOD)
    assert Ledger.open().sources() == ()


def test_a_client_zone_without_the_server_side_is_told_what_to_do(request_of, monkeypatch):
    from understudy.flows.preference_optimization import preference_optimization

    monkeypatch.setenv("UNDERSTUDY_ZONE", "client")
    given = {"data": "sample:clients", "label_names": None, "samples": 8}
    given |= {"delta": 1e-3, "budget": Budget(epsilon=8, delta=0.02)}
    with pytest.raises(InputError, match=r"key of the server zone.*understudy keys trust"):
        preference_optimization(request_of(**given, overrides=("rounds=1", *SMALL_ROUND)))
    monkeypatch.setenv("UNDERSTUDY_TRUSTED_KEY", OwnKey("server", b"s" * 32).public.text)
    with pytest.raises(InputError, match=r"understudy deploy.*unset UNDERSTUDY_ZONE"):
        preference_optimization(request_of(**given, overrides=("rounds=1", *SMALL_ROUND)))
    assert len(Ledger.open().charges("ward")) == 1


def test_a_step_that_an_endpoint_failed_goes_on_and_another_step_asks_anew(random_model_folder, home):
    """Served under one name, the policy of another charge gives other answers."""
    from understudy.tasks import preference_optimization as steps

    settings = {"prompts": 4, "per_prompt": 4, "seeds_per_prompt": 2, "seed_tokens": 4}
    sizes = {"candidates": settings | {"sampling": {"max_new_tokens": 12}}, "model": str(random_model_folder)}
    with Completions(forgets_after=10) as server:
        served = {"url": server.url, "model": "policy-{round}"}
        config = PreferenceOptimizationConfig.model_validate({**sizes, "endpoint": served})

        def proposed(number=0):
            server.requests.clear()
            return steps.propose["server"].fn(None, config, (), number), len(server.requests)

        with pytest.raises(InputError, match="no such model"):
            proposed()
        server.faults.clear()
        first, asked = proposed()
        assert 0 < asked <= 8, "what was answered before is not asked for again"
        assert len(pq.read_table(path_of(first) / "table.parquet")) == 16
        other = config.model_copy(update={"preferences": config.preferences.model_copy(update={"beta": 0.2})})
        server.requests.clear()
        steps.propose["server"].fn(None, other, (), 0)
        assert len(server.requests) == 16


def test_epsilon_infinity_runs_in_the_client_zone_and_exports_nothing(
    run, small_downstream, few_clients, random_model_folder, tmp_path
):
    with watched() as (tasks, _):
        result, _ = run(request(tmp_path / "out", random_model_folder, data=str(few_clients), epsilon=math.inf))
    assert {task.zone for task in tasks} == {"client"}
    assert {task.name for task in tasks} >= COMPUTED
    assert result.export is None
    assert result.statement["verdict"] == "none"
    assert not (tmp_path / "out/export").exists()
    assert pq.read_table(tmp_path / "out/internal/synthetic.parquet").num_rows == 8
    assert Ledger.open().spent("diaries") == (0.0, 0.0)
    kinds = {ref.kind: ref.label.kind for ref in exchange_store().refs()}
    assert kinds == {"candidates": "public", "prompt-only": "public"}, "of the first round and of the base model"


@pytest.mark.parametrize("epsilon", [pytest.param(5.0, marks=pytest.mark.slow), math.inf])
def test_rounds_that_have_nothing_to_learn_do_not_end_the_run(
    epsilon, run, small_downstream, few_clients, random_model_folder, tmp_path
):
    """At epsilon inf Prefect would keep that such a round came, which the clients decide."""
    cold = (*SETTINGS, "candidates.sampling.temperature=1e-6")
    asked = request(tmp_path / "out", random_model_folder, data=str(few_clients), epsilon=epsilon, overrides=cold)
    with watched() as (_, lines):
        result, states = run(asked)
    assert states["prefer"] == "Completed"
    assert not [line for line in lines if "the same for every prompt" in line]
    report = json.loads((tmp_path / "out/internal/report.json").read_text())
    said = [reason for reason in report["missing"] if "the same for every prompt" in reason]
    assert [reason.partition(":")[0] for reason in said] == ["training in round 1", "training in round 2"]
    assert (result.export is None) == (epsilon == math.inf)


def test_an_instruct_model_is_asked_in_a_chat_and_its_export_is_too(
    run, small_downstream, few_clients, random_model_folder, in_home, tmp_path
):
    """From the first candidates to further texts of the exported model."""
    from understudy.runs.further_texts import generate_more

    model, out = tmp_path / "chat", tmp_path / "out"
    shutil.copytree(random_model_folder, model)
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}[{{ m['content'] }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    settings = ("rounds=1", *SMALL_ROUND, "candidates.seeds_per_prompt=auto")
    with in_home(tmp_path / "home") as home:
        prepare_environment()
        run(request(out, model, data=str(few_clients), about="letters", overrides=settings))
        path, _ = generate_more(out, samples=8, draw=0, out=tmp_path / "own.parquet")
        assert pq.read_table(path).equals(pq.read_table(out / "export/synthetic.parquet"))
    prompts = [
        prompt
        for content in stored(home, "table.parquet").values()
        if "prompt" in (table := pq.read_table(pa.BufferReader(content))).column_names
        for prompt in table["prompt"].to_pylist()
    ]
    assert set(prompts) == {"[You write letters.][Write one, and nothing else.]>"}
    declared = json.loads((out / "export/statement.json").read_text())["declared_public"]
    assert declared["words of the prompts"] == "Write one, and nothing else."
    assert "public seed texts" not in declared, "none was shown"


def stored(home: Path, name: str) -> dict[str, bytes]:
    """Id -> content of a file, of every finished artifact in the exchange store that has it."""
    found = (home / "exchange").glob(f"[0-9a-f]*/{name}")
    return {path.parent.name: path.read_bytes() for path in found if (path.parent / "manifest.json").is_file()}


def test_a_scored_round_is_asked_nothing_else_under_its_charge(few_clients, random_model_folder, in_home, tmp_path):
    """Should candidates come out differently when a run is resumed, the clients are not asked a second time."""
    from understudy.runs.registration import registered
    from understudy.tasks import preference_optimization as steps
    from understudy.tasks.charge_receipt import release_log
    from understudy.tasks.charging import charge
    from understudy.tasks.housekeeping import collect_garbage, purge_source

    with in_home(tmp_path / "home"):
        prepare_environment()
        # Everyone takes part: where nobody does, whatever candidates are the same question.
        everyone = ("rounds=2", *SMALL_ROUND)
        asked = request(tmp_path / "out", random_model_folder, data=str(few_clients), overrides=everyone)
        run = registered(asked, METHOD)
        fixed = run.charged
        receipt = charge.fn(run, environment={"code": "0" * 64}, accept_new=False)
        pool = steps.embed_clients.fn(run.train, fixed, (), run.n)
        candidates = steps.propose["server"].fn(None, fixed, (), 0)
        others = steps.propose["server"].fn(None, fixed.model_copy(update={"public_seed": 7}), (), 0)
        assert others.id != candidates.id

        def score(what):
            return steps.score.fn(pool, what, receipt, fixed, 0)

        first = score(candidates)
        collect_garbage()
        assert score(candidates).id == first.id
        with pytest.raises(UnderstudyError, match="second release"):
            score(others)
        kept = release_log(receipt.charge_id)
        assert len(list(kept.iterdir())) == 1
        purge_source(run.source)
        assert not kept.exists()
        with pytest.raises(UnderstudyError, match="purged"):
            Ledger.open().material(receipt.charge_id)


@pytest.mark.usefixtures("real_encoder")
def test_a_run_killed_between_scoring_and_training_goes_on_with_the_same_noisy_scores(
    prefect_server, small_downstream, few_clients, random_model_folder, in_home, tmp_path
):
    from understudy.flows.preference_optimization import preference_optimization

    calm, killed = tmp_path / "calm", tmp_path / "killed"
    with in_home(tmp_path / "charged"):
        prepare_environment()
        reserve(request(tmp_path / "nowhere", random_model_folder, data=str(few_clients)), METHOD)
    for home in (calm, killed):
        shutil.copytree(tmp_path / "charged", home)

    asked = words(tmp_path / "killed-out", random_model_folder, data=few_clients)
    kill_once(lambda: stored(killed, "scores.safetensors"), asked, killed)
    first = stored(killed, "scores.safetensors")
    assert len(first) == 1
    assert not stored(killed, "adapter.safetensors"), "expected a kill before the end of training"

    tasks = {}
    for home in (calm, killed):
        with in_home(home), watched() as (started, _):
            out = tmp_path / f"{home.name}-out"
            preference_optimization(request(out, random_model_folder, data=str(few_clients)))
            assert [charge.status for charge in Ledger.open().charges("diaries")] == ["released"]
            assert Ledger.open().spent("diaries")[0] == 5.0
        tasks[home] = [task.name for task in started]
    assert tasks[calm].count("prefer") == tasks[killed].count("prefer") == 2
    assert tasks[calm].count("propose") == 2
    assert tasks[killed].count("propose") == 1, "the first candidates are not drawn again"
    assert stored(killed, "scores.safetensors") == stored(calm, "scores.safetensors")
    assert len(stored(killed, "scores.safetensors")) == 2
    assert first.items() <= stored(killed, "scores.safetensors").items()
    assert digests(tmp_path / "killed-out") == digests(tmp_path / "calm-out")


def test_generate_draws_more_texts_from_the_exported_model(ended, call, in_home, tmp_path, monkeypatch):
    from understudy.runs.further_texts import generate_more
    from understudy.tasks.engine.progress import Reporter

    told = []
    monkeypatch.setattr(Reporter, "update", lambda _, step, total: told.append((step, total)))
    out = tmp_path / "out"
    shutil.copytree(ended.out, out)
    exported = pq.read_table(out / "export/synthetic.parquet")
    with in_home(ended.home):
        before = Ledger.open().charges("diaries")
        path, _ = generate_more(out, samples=8, draw=0, out=tmp_path / "own.parquet")
        assert pq.read_table(path).equals(exported), "draw 0, with the exported weights, is the run's own"
        code, said = call("generate", "--from", out, "--samples", 5, "--json")
        assert code == 0, said
        assert json.loads(said)["rows"] == 5
        code, said = call("generate", "--from", out / "export", "--samples", 5, "--out", tmp_path / "same.parquet")
        assert code == 0, said
        assert Ledger.open().charges("diaries") == before
    more = pq.read_table(out / "export/synthetic-5-1.parquet")
    assert more.schema.equals(exported.schema)
    assert more.num_rows == 5
    assert not set(more["text"].to_pylist()) & set(exported["text"].to_pylist())
    assert pq.read_table(tmp_path / "same.parquet").equals(more)
    assert told[-1] == (5, 5)


def test_a_file_of_generate_leads_back_to_its_run(ended, call, in_home, tmp_path):
    """Also where it was made from an export of an earlier version, whose table does not say what was released."""
    out, record = tmp_path / "out", read_record(ended.out)
    shutil.copytree(ended.out, out)
    with in_home(ended.home):
        for name in ("one.parquet", "other.parquet"):
            assert call("generate", "--from", out, "--samples", 2, "--out", tmp_path / name)[0] == 0
            code, said = call("lineage", tmp_path / name, "--json")
            assert code == 0, said
            assert json.loads(said)["id"] == record.released.id
            assert record.charge_id in said
            table = pq.read_table(out / "export/synthetic.parquet")
            pq.write_table(table.replace_schema_metadata(None), out / "export/synthetic.parquet")


def test_generate_from_an_export_without_its_record_says_what_to_do_instead(ended, call, in_home, tmp_path):
    shutil.copytree(ended.out / "export", tmp_path / "taken")
    with in_home(ended.home):
        code, said = call("generate", "--from", tmp_path / "taken", "--samples", 5)
    assert code == 2
    (line,) = [line for line in said.splitlines() if line.startswith("understudy:")]
    assert "--samples" in line
    assert not list((tmp_path / "taken").glob("synthetic-*"))

"""Knowledge distillation as a flow, on a random base model: its export, its charge, its endpoint, and its refusals."""

import functools
import json
import math
import stat
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from completions_server import Completions
from safetensors.torch import load_file, save_file
from tests_support import SMALL_DISTILLATION, write_random_model

import understudy
from understudy.artifacts.access import read_json, store_for
from understudy.errors import InputError, ZoneError
from understudy.evaluation.answers import harness
from understudy.flows.knowledge_distillation import WritePairs, server_side
from understudy.flows.server_side import ServerSide, Signed, ordered
from understudy.generation.instructions import plain_text
from understudy.privacy import labels
from understudy.privacy.ledger.ledger import Ledger
from understudy.runs.configuration import configure
from understudy.runs.folders import read_record
from understudy.runs.further_texts import generate_more
from understudy.runs.validation import validate
from understudy.settings import prepare_environment
from understudy.tasks.knowledge_distillation import write_pairs

COMPUTED = {"train", "send", "write-pairs", "improve", "tune-base", "publish", "evaluate-pairs"}
METHOD = "knowledge-distillation"


@pytest.fixture(autouse=True)
def with_server(prefect_server):
    prepare_environment()


@pytest.fixture
def run(run_flow):
    return functools.partial(run_flow, METHOD, tasks=COMPUTED)


@pytest.fixture
def pairs_request(request_of, tmp_path, private_pairs, wide_model_folder):
    path = tmp_path / "pairs.parquet"
    pq.write_table(private_pairs, path)

    def make(*more, **given):
        settings = (*SMALL_DISTILLATION, f"professional.model={wide_model_folder}", *more)
        plain = {"data": str(path), "model": str(wide_model_folder), "label_names": None, "samples": 4}
        return request_of(**plain | {"overrides": settings} | given)

    return make


def test_a_run_ends_with_pairs_that_load_and_a_second_one_charges_nothing(
    run, pairs_request, tmp_path, home, private_pairs, find_leaks, caplog
):
    import datasets

    caplog.set_level("DEBUG")
    request = pairs_request()
    first, states = run(request)
    said = {"log": caplog.text}
    assert find_leaks(private_pairs, home=home, export=tmp_path / "out/export", said=said) == []
    assert stat.S_IMODE((home / "zone-key").stat().st_mode) == 0o600
    assert {states[name] for name in COMPUTED} == {"Completed"}
    statement = json.loads((tmp_path / "out/export/statement.json").read_text())
    assert 0 < statement["epsilon"] <= 3
    assert statement["verdict"] == "proven under assumptions"
    assert any("sealed for the server zone" in entry for entry in statement["released"])
    base, professional = statement["pretrained_models"]
    assert [len(one["digest"]) for one in (base, professional)] == [64, 64]
    assert base["role"] == "base model"
    assert professional["role"].startswith("professional model")
    assert "- professional model" in (tmp_path / "out/export/statement.md").read_text()
    path = str(tmp_path / "out/export/synthetic.parquet")
    loaded = datasets.load_dataset("parquet", data_files=path, split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.column_names == ["instruction", "response"]
    assert 0 < len(loaded) <= 4
    report = json.loads((tmp_path / "out/internal/report.json").read_text())
    wanted = {"responses.target_minus_dp_only.loss", "ifd.synthetic.q50", "fidelity.tfidf.frechet", "crossing.bytes"}
    wanted |= {"cut.train.instructions", "cut.train.responses", "cut.test.responses", "wins.shortened"}
    assert wanted <= report["metrics"].keys()
    facts = read_json(read_record(tmp_path / "out").synthetic)
    assert facts["cut"][""].keys() >= {"requests answered", "instructions scored", "responses scored"}
    assert "train" not in json.dumps(facts), "what is cut of private pairs stays in internal/"
    assert not [
        path for path in (tmp_path / "out/export").rglob("*") if path.is_file() and b"cut.train" in path.read_bytes()
    ]
    page = (tmp_path / "out/internal/report.html").read_text()
    assert "Held-out responses" in page
    assert "The same steps without a private pair" in page
    exported = {path.name for path in (tmp_path / "out/export").rglob("*")}
    assert not exported & {"payload.bin", "adapter.safetensors"}

    spent = Ledger.open().spent("ward")
    again, states = run(request)
    assert {states[name] for name in COMPUTED} == {"Cached"}
    assert (again.released, again.synthetic) == (first.released, first.synthetic)
    more, states = run(pairs_request("about=wards", samples=5))
    assert states["train"] == "Cached", "everything behind the adapter is post-processing"
    assert more.synthetic != first.synthetic
    assert Ledger.open().spent("ward") == spent == (3.0, pytest.approx(spent[1]))
    told: list[tuple[int, int]] = []
    drawn, rows = generate_more(tmp_path / "out", samples=2, progress=lambda *parts: told.append(parts))
    assert told
    assert pq.read_table(drawn).column_names == ["instruction", "response"]
    assert rows <= 2


def test_another_measurement_writes_and_tunes_nothing_again(run, pairs_request, tmp_path, monkeypatch):
    """A hub that is away when the harness is asked costs its own figures alone; examples are checked before it all."""
    run(pairs_request())
    monkeypatch.setattr(harness, "_manager", lambda tasks: SimpleNamespace(load=lambda names: {"tasks": {}}))
    asked = 'evaluation.harness_tasks=["arc_easy"]'

    def by_harness(*_, **__):
        raise ConnectionError("the hub is away")

    monkeypatch.setattr(harness, "by_harness", by_harness)
    _, states = run(pairs_request(asked))
    assert {name for name in COMPUTED if states[name] != "Cached"} == {"evaluate-pairs"}
    report = json.loads((tmp_path / "out/internal/report.json").read_text())
    assert "responses.target.loss" in report["metrics"]
    assert sum("the hub is away" in reason for reason in report["missing"]) == 4, "one of each model"
    with pytest.raises(InputError, match=r"evaluation\.shots=32: expected room"):
        validate(pairs_request("evaluation.shots=32", "evaluation.shots_from=sample:instructions"), METHOD)


def test_another_professional_model_in_the_server_zone_writes_pairs_anew(pairs_request, tmp_path, monkeypatch):
    """The client zone sends no digest of it: the server's own files say whether pairs are found again."""
    professional = write_random_model(tmp_path / "professional", positions=128)
    request = pairs_request(f"professional.model={professional}")
    monkeypatch.setenv("UNDERSTUDY_ZONE", "client")
    config = configure(request, METHOD)
    assert config.professional.model_digest == ""
    order = Signed.model_validate_json(ordered(WritePairs(bundle=None, charge="", config=config)).model_dump_json())
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    monkeypatch.setattr(ServerSide, "read", lambda self, order: self.steps.validate_json(order.content))

    def pairs() -> str:
        return json.loads(json.loads(server_side(order, return_state=True).message)["content"])["id"]

    first = pairs()
    assert pairs() == first
    weights = professional / "model.safetensors"
    tensors = load_file(weights)
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"].flip(0).contiguous()
    save_file(tensors, weights, metadata={"format": "pt"})
    assert pairs() != first


def test_synthesize_takes_and_gives_pairs_that_an_endpoint_answers(
    private_pairs, wide_model_folder, tmp_path, monkeypatch
):
    def answer(request):
        return {"choices": [{"text": f" answer {request['seed']}", "finish_reason": "stop"}]}

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    renamed = private_pairs.rename_columns(["ask", "answer"])
    with Completions(answer, faults=[(429, {"retry-after": "0"}, b"")]) as server:
        result = understudy.synthesize(
            renamed.append_column("system", pa.array(["be brief"] * 40)),
            source="ward",
            epsilon=3,
            budget=(8, 0.01),
            out=tmp_path / "out",
            method=METHOD,
            model=str(wide_model_folder),
            instruction_column="ask",
            response_column="answer",
            system_column="system",
            samples=2,
            overrides=(*SMALL_DISTILLATION, f"professional.url={server.url}", "measure.win_pairs=0"),
        )
    asked = {request["prompt"]: request["seed"] for request in server.requests}
    assert len(server.requests) == len(asked) + 1, "each instruction once, and the one that was refused again"
    for pair in result.synthetic.to_pylist():
        assert pair["response"] == f"answer {asked[plain_text(pair['instruction'])]}"
    private = [text for name in private_pairs.column_names for text in private_pairs[name].to_pylist()]
    assert not [text for text in private if any(text in prompt for prompt in asked)]
    assert f"the endpoint {server.url} sees released instructions" in result.statement["released"]
    assert result.synthetic.column_names == ["instruction", "response"]
    assert result.statement["unit"] == "example"
    assert "responses.target.loss" in result.metrics.values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("professional.template=chat", "template=plain"),
        ("professional.model=no-such-model", r"professional\.model: .*no-such-model"),
        ("professional.url=ftp://host", "http:// or https://"),
        ("train.max_length=16", r"train\.max_length=16: the template and a pair"),
        ("tune.max_length=4000", "the context of"),
        ("professional.sampling.max_new_tokens=120", r"professional\.sampling\.max_new_tokens"),
        ('lora.targets=["nothing"]', "no such layer"),
        ("instructions.examples=missing.csv", "instructions.examples=missing.csv"),
        ("seed.pairs=missing.csv", r"seed\.pairs=missing\.csv"),
        ("filters.against=missing.csv", r"filters\.against=missing\.csv"),
    ],
)
def test_what_would_fail_later_is_refused_before_the_charge(change, message, pairs_request):
    with pytest.raises(InputError, match=message):
        validate(pairs_request(change), METHOD)
    assert Ledger.open().sources() == ()


def test_an_endpoint_is_refused_where_the_instructions_stay_private(pairs_request):
    with pytest.raises(InputError, match=r"professional\.url=http://host/v1: .*--epsilon"):
        validate(pairs_request("professional.url=http://host/v1", epsilon=math.inf), METHOD)
    assert Ledger.open().sources() == ()


def test_a_private_model_s_instructions_never_reach_an_endpoint(pairs_request, home):
    """The task looks at the label by itself, whatever validation let through."""
    with Completions(lambda _: {}) as server:
        label = labels.private("ward")
        with store_for(label).write(kind="bundle", label=label, parents=["source:ward@charge"]) as draft:
            (draft.path / "payload.bin").write_bytes(b"sealed")
        config = configure(pairs_request(f"professional.url={server.url}"), METHOD)
        with pytest.raises(ZoneError, match=r"released adapter, found one that is private\(ward\)"):
            write_pairs["client"].fn(draft.ref, "charge", "client", config)
    assert server.requests == []


def test_rows_that_are_no_pairs_are_refused_before_the_charge(pairs_request, tmp_path):
    path = tmp_path / "turns.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}\n' * 12)
    with pytest.raises(InputError, match="multi-turn"):
        validate(pairs_request(data=str(path)), METHOD)
    path.write_text("\n".join(json.dumps({"instruction": "ask", "response": " "}) for _ in range(12)))
    with pytest.raises(InputError, match="row 0: expected text, found white space"):
        validate(pairs_request(data=str(path)), METHOD)

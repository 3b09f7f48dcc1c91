"""Every command in README and docs runs: in order, in one home, from an otherwise empty folder."""

import functools
import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.flow_under_replay import smaller
from quick_models import take_shallow

import understudy
from understudy.flows import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "results").glob("*.md"))]
# Run by tests/flows/test_worker.py, against a server of their own.
BY_THE_WORKER_TEST = {
    "prefect server",
    "prefect worker",
    "prefect --no-prompt",
    "prefect deployment",
    "prefect flow-run",
    "understudy deploy",
}
# What the texts and figures are worth is measured elsewhere: each step of a run is taken, none is taken often.
FEWER = {
    "conditional-generation": (
        "train.epochs=0.01",
        "train.batch_size=12",
        "train.learning_rate=0.001",
        "train.l2_clip_norm=0.1",
        "train.max_length=16",
        "generate.sampling.max_new_tokens=3",
        "selection.draws=2",
    ),
    "gradient-matching": (
        "max_length=16",
        "length=6",
        "matching.rounds=1",
        "matching.inner_steps=1",
        "matching.swap_sweeps=1",
        "matching.swap_width=2",
        "matching.batch_size=4",
    ),
    "knowledge-distillation": (
        "train.epochs=0.05",
        "train.batch_size=6",
        "train.max_length=48",
        "instructions.shots=1",
        "instructions.draws=1",
        "instructions.sampling.max_new_tokens=6",
        "professional.sampling.max_new_tokens=4",
        "tune.steps=2",
        "tune.batch_size=2",
        "tune.max_length=48",
        "measure.most_pairs=2",
        "measure.win_pairs=1",
    ),
    "trajectory-matching": (
        "experts.count=1",
        "experts.epochs=1",
        "experts.micro_batch=2",
        "distil.max_start=1",
        "distil.steps=2",
        "distil.inner_steps=2",
        "distil.batch_size=2",
        "max_length=56",
        "tuning.epochs=1",
        "tuning.questions=4",
    ),
    "preference-optimization": (
        "rounds=1",
        "candidates.prompts=4",
        "candidates.per_prompt=3",
        "candidates.seeds_per_prompt=1",
        "candidates.seed_tokens=4",
        "candidates.sampling.max_new_tokens=4",
        "preferences.rejected_rank=2",
        "preferences.epochs=1",
        "preferences.batch_size=2",
        "preferences.learning_rate=0.001",
    ),
}


def blocks(page: Path) -> list[str]:
    """Indented code blocks of a Markdown page, dedented."""
    found = re.findall(r"(?:^    .*\n(?:^ *\n(?=    ))?)+", page.read_text(), flags=re.M)
    return [re.sub(r"^    ", "", block, flags=re.M) for block in found]


def commands(page: Path) -> list[str]:
    """Shell commands of a page, continuation lines joined, comments dropped."""
    lines = [line for block in blocks(page) for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    known = ("understudy ", "make ", "prefect ", "python ")
    return [line.split("  #")[0].strip() for line in lines if line.startswith(known)]


def understudy_commands() -> list[str]:
    found = [command for page in PAGES for command in commands(page) if command.startswith("understudy ")]
    return [command for command in found if command not in BY_THE_WORKER_TEST]


def test_the_pages_hold_commands():
    assert len(understudy_commands()) >= 10


@pytest.mark.usefixtures("prefect_server")
def test_every_understudy_command_runs(tmp_path, monkeypatch, capsys, shallow_models, fixed_root_key):
    monkeypatch.chdir(tmp_path)
    smaller(monkeypatch)
    # Each canary of an audit is read with 64 candidates, three times over.
    monkeypatch.setattr("understudy.auditing.canary_secrets.MOST_READ", 4)
    n = 120_000  # 1e-5 must be below 1/n: the budget of the README fits tables up to that size
    assert 1 / (n - 1) * 1.3 > 1e-5
    texts = [f"{'a joy' if i % 2 else 'a bore'} from start to finish, take {i}" for i in range(60)]
    table = pa.table({"text": texts, "label": [i % 2 for i in range(60)]})
    pq.write_table(table, "train.parquet")
    pq.write_table(pa.table({"instruction": texts, "response": texts[::-1]}), "pairs.parquet")
    for command in understudy_commands():
        words = shlex.split(command)
        if "train.parquet" in words:
            # So few rows need a delta of their own; everything else is as printed.
            words[words.index("8,1e-5")] = "8,1e-2"
        compared = words[2].split(",") if words[1] == "compare" else []
        prefixes = {method: f"{method}." if compared else "" for method in FEWER if method in (*words, *compared)}
        words += [
            word
            for method, prefix in prefixes.items()
            for setting in FEWER[method]
            for word in ("--set", prefix + setting)
        ]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.MonkeyPatch.context() as patch:
            if words[1] != "doctor":  # which looks whether the shipped models are whole
                take_shallow(patch, shallow_models)
            with pytest.raises(SystemExit) as stop:
                cli.main()
        printed = capsys.readouterr()
        assert stop.value.code == 0, f"{command}\n{printed.out}\n{printed.err}"
        assert printed.out.strip(), f"{command} printed nothing"
    assert (tmp_path / "out/demo/export/synthetic-100-1.parquet").exists()
    assert (tmp_path / "out/reviews/export/statement.json").exists()
    matching = json.loads((tmp_path / "out/matching/internal/report.json").read_text())
    assert {"matching.loss.median", "audit.mia.positive_control.advantage"} <= matching["metrics"].keys()
    preferences = json.loads((tmp_path / "out/preferences/internal/report.json").read_text())
    assert {"rounds.recovery.round_1", "utility.next_token.synthetic.accuracy"} <= preferences["metrics"].keys()
    compared = json.loads((tmp_path / "out/compared/report.json").read_text())
    assert "comparison.conditional-generation-eps8.utility.synthetic.accuracy" in compared["metrics"]
    for name in ("trajectories-private", "matching-low", "preferences-low", "preferences-masked"):
        assert not (tmp_path / "out" / name).exists(), "a dry run left something"


def test_the_python_lines_of_the_readme_run(tmp_path, monkeypatch, prefect_server):
    monkeypatch.chdir(tmp_path)
    code = next(block for block in blocks(ROOT / "README.md") if block.startswith("import understudy"))
    texts = [f"answer {i}: {'very' if i % 2 else 'not'} satisfied" for i in range(40)]
    table = pa.table({"text": texts, "label": ["high" if i % 2 else "low" for i in range(40)]})
    names = {"table": table}
    fewer = functools.partial(understudy.synthesize, overrides=FEWER["conditional-generation"])
    monkeypatch.setattr(understudy, "synthesize", fewer)
    smaller(monkeypatch)
    exec(code.replace("1e-5", "1e-2"), names)
    assert names["result"].synthetic.num_rows == 100
    assert names["result"].statement["epsilon"] <= 3


def test_the_demo_of_the_makefile_is_the_command_of_the_guide():
    said = subprocess.run(
        ["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    demo = re.sub(r"\\\n\s*", " ", said).split("/understudy run ")[1].split("\n")[0]
    guide = next(command for command in understudy_commands() if "sample:ferry" in command)
    wanted = set(shlex.split(guide)) - {"understudy"}
    assert wanted <= set(shlex.split(demo)) | {"run"}


def test_the_guide_of_gradient_matching_repeats_what_a_dry_run_says():
    """The table of the three targets: numbers and bound of `--dry-run`, without its timings."""
    from understudy.methods.gradient_matching.config import GradientMatchingConfig
    from understudy.methods.gradient_matching.method import METHOD
    from understudy.methods.method import Promise

    page = (ROOT / "docs/gradient-matching.md").read_text()
    rows = pq.read_table(ROOT / "artifacts/samples/reviews.parquet").num_rows
    delta = 1 / (rows * math.log(rows))
    for kind in ("head", "label_rows", "sketch"):
        config = GradientMatchingConfig.model_validate({"target": {"kind": kind}})
        queries = METHOD.charge.queries(config, n=rows, epsilon=3, delta=delta)
        promise = Promise(queries, rows, 3.0, delta, ("negative", "positive"))
        said = METHOD.preparation.describe(config, promise).dry_run
        line = next(line for line in page.splitlines() if line.startswith(f"| `{kind}`"))
        assert line.endswith(f"| {said['target_dimension']:,} | {said['signal_to_noise_bound']} |")


def test_continuous_integration_runs_the_two_commands_of_the_readme_in_its_order():
    shown = next(block for block in blocks(ROOT / "README.md") if block.startswith("make "))
    wanted = [line.split("#")[0].strip() for line in shown.splitlines()]
    ran = [line for line in (ROOT / ".ci/run").read_text().splitlines() if not line.startswith(("#", "set ", "cd "))]
    assert ran == wanted == ["make demo", "make test"]


def test_every_other_command_is_run_by_a_test_that_is_named():
    others = {c for page in PAGES for c in commands(page) if c not in understudy_commands()}
    for command in others:
        if command.startswith("make "):
            target = command.split()[1]
            assert f"\n{target}:" in (ROOT / "Makefile").read_text(), command
        elif command.startswith("python "):
            assert (ROOT / command.split()[1]).is_file(), command
        else:
            assert " ".join(command.split()[:2]) in BY_THE_WORKER_TEST, command

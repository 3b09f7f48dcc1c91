"""Knowledge distillation against its baselines, on medical dialogues and on financial phrases asked as questions.

A half of each training set is declared public: the professional model is the base model, all of it fine-tuned on
`--public` of its pairs, and their instructions are the examples of every prompt. Of the other half, `--pairs` are the
client's. Pairs of more than `--characters` are left out everywhere, each by its own length. Each condition gives a
model, which is judged by the loss of held-out responses and, for the phrases, by accuracy and macro F1 of its answers;
an answer that cannot be read counts as neutral. Synthetic pairs are compared by MAUVE with real ones that nothing was
trained on, in sets of one size.

    base, professional      as they are
    non_private             an adapter tuned on the client's pairs like those of the other conditions on theirs
    dp_only                 the adapter trained by DP-SGD, for `--only-epochs`
    distilled               the method
    public_only             the method without the private half: the base model in the place of the DP model
    together, unranked      the method with the paper's `filters.rank_within=all`, and with `filters.rank=none`
    dp_instruct, dp_gene    pairs of the DP model itself, in two steps and in one; they tune the DP adapter
    self_instruct, icl, ... pairs of the base model; icl and the like show real pairs, so they are private

    python benchmarks/knowledge_distillation.py --data FOLDER --cache FOLDER --seeds 0 1
"""

from __future__ import annotations

import argparse
import math
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import cells
import pyarrow as pa
import pyarrow.parquet as pq
from knowledge_distillation_data import ABOUT, ANSWER_TOKENS, LABELS, Cell, Settings, halves, unread, unseen_public
from knowledge_distillation_tables import ALL_CONDITIONS, CONDITIONS, rows_of
from tables import print_table, write_figures

# Draws of equally many synthetic and real pairs that a MAUVE is the mean of.
MAUVE_SPLITS = 20
WITHOUT_ADAPTER = ("self_instruct", "icl", "self_instruct_icl", "public_only")
BY_THE_METHOD = ("distilled", "together", "unranked", "public_only")


def config_of(settings: Settings, cell: Cell) -> Any:
    """The method's settings of a cell."""
    from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig

    folder = professional_folder(settings, cell.data)
    epochs = settings.only_epochs if cell.condition == "dp_only" else settings.epochs
    answers = {"max_new_tokens": ANSWER_TOKENS[cell.data], "temperature": 0.7}
    return KnowledgeDistillationConfig.model_validate(
        {
            "model": settings.model,
            "samples": settings.samples,
            "about": ABOUT[cell.data],
            "public_seed": cell.seed,
            "train": {"max_length": settings.length, "epochs": float(epochs), "batch_size": 100, "micro_batch": 8},
            "tune": {"steps": settings.tune_steps, "max_length": settings.length, "batch_size": 8},
            "professional": {"model": str(folder), "sampling": answers},
            "filters": {
                "rank": "none" if cell.condition == "unranked" else "ifd",
                "rank_within": "all" if cell.condition == "together" else "responses",
            },
            "instructions": {
                "examples": str(examples_file(folder)),
                "sampling": {"max_new_tokens": 40, "temperature": 0.7, "top_p": 1.0},
            },
        }
    )


def professional_folder(settings: Settings, data: str) -> Path:
    """Where the professional model of a data set is kept."""
    names = ("model", "public", "characters", "length", "professional_steps", "professional_rate")
    digest = cells.short_digest({name: getattr(settings, name) for name in names})
    return settings.cache / f"professional-{data}-{digest}"


def examples_file(folder: Path) -> Path:
    """The public instructions beside a professional model."""
    return folder.with_suffix(".parquet")


def make_professional(settings: Settings, data: str) -> None:
    """The base model, all of it fine-tuned on the public half."""
    import torch

    from understudy.generation.instructions import PairEncoder
    from understudy.generation.scoring import sparse_response_losses
    from understudy.models.checkpoints import export_model
    from understudy.models.loading import load_model
    from understudy.models.tuning import Steps, tune

    folder = professional_folder(settings, data)
    if folder.exists():
        return
    public, _, _ = halves(settings, Cell(data, "professional", math.inf, 0))
    pq.write_table(pa.table({"instruction": [pair.instruction for pair in public]}), examples_file(folder))
    base = load_model(settings.model)
    rows = PairEncoder(base.tokenizer).encode(public, max_length=settings.length)
    base.model.requires_grad_(True)
    # Half precision for what is no part of the method and costs most of a run's time. A cache of the cast weights would
    # keep those of the first step.
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        tune(
            base.model,
            {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask, "loss_mask": rows.loss_mask},
            sparse_response_losses,
            plan=Steps(
                steps=settings.professional_steps,
                batch_size=16,
                learning_rate=settings.professional_rate,
                final_learning_rate=1e-5,
                seed=0,
            ),
        )
    with cells.temporary(folder, folder=True) as part:
        export_model(base.model, base.tokenizer, part)


def dp_adapter(settings: Settings, cell: Cell, config: Any) -> Any:
    """The client's adapter; of several conditions the same, so it is kept."""
    from understudy.methods.knowledge_distillation.base import shared_base
    from understudy.methods.knowledge_distillation.method import charged_settings
    from understudy.methods.knowledge_distillation.queries import Asked, queries_of, schedule_of
    from understudy.methods.knowledge_distillation.train import PrivatePairs, train_on_pairs
    from understudy.privacy.ledger.records import KeyMaterial
    from understudy.privacy.mechanisms import Mechanisms
    from understudy.tensor_files import load_tensors, save_tensors

    fixed, epsilon = charged_settings(config), cell.epsilon
    names = ("pairs", "characters")
    facts = {"charged": fixed.model_dump_json(), "data": cell.data, "epsilon": str(epsilon)}
    facts |= {name: getattr(settings, name) for name in names}
    path = settings.cache / f"adapter-{cells.short_digest(facts)}.safetensors"
    if not path.exists():
        _, private, _ = halves(settings, cell)
        n = len(private)
        queries = queries_of(fixed, n=n, epsilon=epsilon, delta=1 / (n * math.log(n)))
        mechanisms = Mechanisms(KeyMaterial(b"b" * 32, f"{cell.data}-{cell.seed}", b"t" * 32, queries))
        asked = Asked(fixed, schedule_of(queries), mechanisms)
        save_tensors(path, train_on_pairs(PrivatePairs(private), asked, base=shared_base(fixed)))
    return load_tensors(path)


def model_of(settings: Settings, cell: Cell, config: Any) -> tuple[Any, dict[str, Any]]:
    """The condition's model, and what is to be said of how it came about."""
    from understudy.methods.knowledge_distillation import distil
    from understudy.models.loading import load_model

    if cell.condition == "base":
        return distil.dp_model(config, None), {}
    if cell.condition == "professional":
        return load_model(config.professional.model), {}
    if cell.condition == "dp_only":
        return distil.dp_model(config, dp_adapter(settings, cell, config)), {}
    if cell.condition == "non_private":
        _, private, _ = halves(settings, cell)
        return distil.dp_model(config, distil.improve(distil.shared_base(config), None, private, config)), {}
    start = None if cell.condition in WITHOUT_ADAPTER else dp_adapter(settings, cell, config)
    pairs, facts = pairs_by(settings, cell, config, start)
    better = distil.improve(distil.shared_base(config), start, pairs, config)
    return distil.dp_model(config, better), facts


def pairs_by(settings: Settings, cell: Cell, config: Any, start: Any) -> tuple[list[Any], dict[str, Any]]:
    """The synthetic pairs of a condition."""
    from understudy.baselines.instruction_pairs import WAYS, Making, make_pairs
    from understudy.generation.instructions import pairs_of
    from understudy.methods.knowledge_distillation import distil

    model = distil.dp_model(config, start)
    if cell.condition in BY_THE_METHOD:
        made = distil.synthesise(model, config, answers=settings.cache / "answers")
        facts = {"dropped": made.facts["dropped"][""], "made": len(made.table), "answers": answer_scores(made.table)}
        pairs = [pair for pair in pairs_of(made.table) if pair is not None]
        return pairs, facts | nearness(settings, cell, pairs)
    way = WAYS[cell.condition]
    public, private, _ = halves(settings, cell)
    making = Making(
        count=settings.samples,
        about=config.about,
        public_seed=cell.seed,
        requests=config.instructions.sampling,
        answers=config.professional.sampling,
    )
    pairs = make_pairs(way, model, private if way.shots == "private" else public, making)
    return pairs, {"made": len(pairs), **nearness(settings, cell, pairs)}


def nearness(settings: Settings, cell: Cell, pairs: list[Any]) -> dict[str, Any]:
    """MAUVE of a condition's pairs to pairs that nothing was trained on, with that of real pairs, and the pairs.

    There is no MAUVE of fewer than two pairs; the condition's other figures are measured all the same.
    """
    from understudy.evaluation.texts import fidelity
    from understudy.evaluation.texts.encoder import embed, load_encoder

    mine, real = ([f"{one.instruction}\n{one.response}" for one in side] for side in (pairs, unread(settings, cell)))
    if len(mine) < 2:
        return {"texts": mine}
    encoder = load_encoder()
    sets = {"mine": embed(mine, encoder)}
    found = fidelity.compare(fidelity.MAUVE, sets, embed(real, encoder), seed=cell.seed, splits=MAUVE_SPLITS)
    estimates = {"mauve": found.sets["mine"], "mauve_ceiling": found.reference}
    return {name: [one.value, *one.interval] for name, one in estimates.items()} | {"texts": mine}


def answer_scores(table: pa.Table) -> dict[str, tuple[int, float]]:
    """How many responses are each of the fixed answers, and their mean IFD."""
    rows = table.to_pylist()
    found = {label: [row["ifd"] for row in rows if row["response"] == label] for label in LABELS}
    return {label: (len(scores), statistics.fmean(scores)) for label, scores in found.items() if scores}


def figures(settings: Settings, cell: Cell) -> cells.Value:
    """Loss of held-out responses; accuracy and F1 where answers are of a fixed set; the professional's choice too."""
    config = config_of(settings, cell)
    model, facts = model_of(settings, cell, config)
    _, _, test = halves(settings, cell)
    value = {**judged_on(test, model, settings=settings, config=config, data=cell.data), **facts}
    if cell.condition == "professional":
        unseen = unseen_public(settings, cell.data)
        found = judged_on(unseen, model, settings=settings, config=config, data=cell.data)
        value["unseen_public"] = {key: found[key] for key in ("loss", "accuracy", "macro_f1") if key in found}
    return value


def judged_on(test: list[Any], model: Any, *, settings: Settings, config: Any, data: str) -> cells.Value:
    """What a model makes of some pairs."""
    from understudy.evaluation.answers.answer_set import score_answers
    from understudy.evaluation.statistics.paired import mean_interval
    from understudy.generation.instructions import PairEncoder
    from understudy.generation.scoring import mean_response_losses
    from understudy.methods.knowledge_distillation.responses import write_responses

    losses = mean_response_losses(model.model, PairEncoder(model.tokenizer).encode(test, max_length=settings.length))
    loss = mean_interval(losses, seed=0)
    value: cells.Value = {"loss": [loss.value, loss.low, loss.high], "losses": losses.tolist()}
    if data == "financial_phrasebank":
        answering = config.professional.model_copy(
            update={"sampling": config.professional.sampling.model_copy(update={"max_new_tokens": 6, "top_p": 0.01})}
        )
        answers = write_responses(
            [pair.instruction for pair in test], model, config.model_copy(update={"professional": answering})
        )
        right = [LABELS.index(pair.response) for pair in test]
        scored = score_answers(answers, right, answers=LABELS, neutral=1)
        accuracy = mean_interval(scored.correct.astype(float), seed=0)
        value |= {"accuracy": [accuracy.value, accuracy.low, accuracy.high], "macro_f1": scored.macro_f1}
        value |= {"unparsed": scored.unparsed, "correct": scored.correct.astype(int).tolist()}
        value |= {"given": scored.given.tolist(), "right": right}
    return value


def shared(settings: Settings, waiting: list[Cell]) -> list[list[Any]]:
    """The professional models of the data sets that wait."""
    return [[partial(make_professional, settings, data) for data in sorted({cell.data for cell in waiting})]]


def digest(settings: Settings, cell: Cell) -> str:
    """Of the settings that a cell depends on."""
    facts = {name: str(value) for name, value in vars(settings).items() if name not in ("data", "cache")}
    return cells.short_digest(facts)


def main() -> None:
    parser: argparse.ArgumentParser = cells.arguments(__doc__)
    plain = Settings(Path(), Path())
    parser.add_argument("--model", default=plain.model)
    cells.add_numbers(parser, plain)
    parser.add_argument("--sets", nargs="+", default=list(ABOUT), choices=list(ABOUT))
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=list(ALL_CONDITIONS))
    parser.add_argument("--epsilon", type=float, default=8.0)
    options = cells.parse(parser)
    settings = cells.settings_from(Settings, options)
    every = [
        Cell(data, condition, options.epsilon, seed)
        for seed in options.seeds
        for data in options.sets
        for condition in options.conditions
    ]
    benchmark = cells.Benchmark(
        settings, figures, digest=digest, shared=shared, minutes=dict.fromkeys(ALL_CONDITIONS, 3.0)
    )
    found = cells.complete(benchmark, every, options)
    tables = {data: rows_of(found, data) for data in options.sets}
    for data, rows in tables.items():
        print_table(rows, title=f"{data}, epsilon {options.epsilon:g}")
    write_figures(options.figures, tables)


if __name__ == "__main__":
    main()

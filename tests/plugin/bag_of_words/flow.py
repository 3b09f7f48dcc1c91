"""The tasks, the flow and the report's section of `bag_of_words`."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
from prefect import flow

from bag_of_words.method import COUNTS, BagOfWordsConfig
from understudy.artifacts.access import TABLE, VALUE, ArtifactRef, path_of, read_table, store_for
from understudy.evaluation.config import EvaluationConfig
from understudy.flows.paid_run import paid_run
from understudy.privacy import labels
from understudy.runs.exported import Exported
from understudy.runs.request import RunRequest
from understudy.tasks.charge_receipt import ChargeReceipt, open_mechanisms, write_released
from understudy.tasks.charging import finalize
from understudy.tasks.engine.runtime import code_digest, progress, task
from understudy.tasks.evaluation import evaluate


def added(table, tokenizer, *, labels):
    """What each row adds to the counts; a null row keeps its slot and adds nothing."""
    import torch

    for text, label in zip(table["text"].to_pylist(), table["label"].to_pylist(), strict=True):
        counts = torch.zeros(labels, len(tokenizer), dtype=torch.float64)
        if text is not None:
            # Cut: of a longer text the tokenizer would say how long it is, in the log.
            ids = tokenizer(text, truncation=True, max_length=256)["input_ids"]
            own = torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=len(tokenizer)).double()
            counts[label] = own / own.norm().clamp(min=1.0)
        yield counts


@task(name="count-tokens")
def count_tokens(rows: ArtifactRef, receipt: ChargeReceipt, config: BagOfWordsConfig) -> ArtifactRef:
    """The noised counts: everything that the charge pays for."""
    from understudy.models.loading import load_base
    from understudy.tensor_files import save_tensors

    counts = sum(added(read_table(rows), load_base(config).tokenizer, labels=len(receipt.label_names)))
    mechanisms = open_mechanisms(receipt)
    noise = receipt.queries[0].noise_multiplier
    noised = mechanisms.gaussian_sum(
        {"counts": counts}, sensitivity=1.0, noise_multiplier=noise, step=0, purpose=COUNTS
    )
    with write_released(receipt, kind="counts") as draft:
        save_tensors(draft.path / "counts.safetensors", noised)
    return draft.ref


@task(name="draw-texts")
def draw_texts(counts: ArtifactRef, config: BagOfWordsConfig, names: tuple[str, ...]) -> ArtifactRef:
    """Texts whose tokens are drawn in proportion to the positive counts: post-processing."""
    import torch

    from understudy.models.loading import load_base
    from understudy.tensor_files import load_tensors

    tokenizer, generator = load_base(config).tokenizer, torch.Generator().manual_seed(config.public_seed)
    weights = load_tensors(path_of(counts) / "counts.safetensors")["counts"].clamp(min=0.0) + 1e-9
    of_texts = [row % len(names) for row in range(config.samples)]
    tokens = [torch.multinomial(weights[label], config.length, True, generator=generator) for label in of_texts]
    texts = [tokenizer.decode(drawn, skip_special_tokens=True).strip() or "-" for drawn in tokens]
    progress(config.samples, config.samples)
    label = labels.post_process(counts.label)
    facts = {"drawn": {"all": config.samples}, "dropped": {}, "shortfall": {}}
    with store_for(label).write(kind="synthetic", label=label, parents=[counts]) as draft:
        table = pa.table({"text": texts, "label": pa.array(of_texts, pa.int64())})
        pq.write_table(table, draft.path / TABLE)
        (draft.path / VALUE).write_text(json.dumps(facts))
    return draft.ref


@flow(name="bag-of-words", persist_result=True)
def bag_of_words(request: RunRequest) -> Exported:
    """Private labelled texts in, texts of independent tokens out."""
    with paid_run(request, BagOfWordsConfig, code_digest(count_tokens.fn)) as run:
        names, (rows, test_rows) = run.plan.label_names, run.rows
        counts = finalize(run.receipt, count_tokens(rows, run.receipt, run.charged))
        synthetic = draw_texts(counts, run.config, names)
        metrics = evaluate(synthetic, rows, test_rows, None, names, EvaluationConfig(profile=request.profile))
        return run.export(counts, synthetic, metrics)


def left_over(asked):
    """What an attacker of the counts, who knows every other row, is left with."""
    import torch

    from understudy.auditing.known_rows import seen_from
    from understudy.models.loading import load_base
    from understudy.tensor_files import load_tensors

    tokenizer, labels = load_base(asked.settings(BagOfWordsConfig)).tokenizer, len(asked.label_names)
    others, canaries = (torch.stack([*added(one, tokenizer, labels=labels)]) for one in (asked.others, asked.canaries))
    counts = load_tensors(asked.released.folder / "counts.safetensors")["counts"].double()
    left = counts - others.sum(0) - canaries.sum(0) / 2
    return seen_from(canaries.flatten(1), left.flatten(), deviation=asked.queries[0].noise_multiplier)


def sections(metrics, statement):
    """One section, after the common ones."""
    from understudy.reporting.view import MethodSections, Section

    noise = statement["mechanisms"][0]["noise_multiplier"]
    said = f"Every count was noised with {noise:.3g} times the norm of one text."
    return MethodSections(last=(Section("bag-of-words", "Token counts", (said,)),))

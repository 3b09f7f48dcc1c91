"""The tasks, the flow and the report's section of `bag_of_words`."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
from prefect import flow

from bag_of_words.method import COUNTS, BagOfWordsConfig
from understudy.artifacts.access import TABLE, VALUE, ArtifactRef, path_of, read_table, store_for
from understudy.evaluation.config import EvaluationConfig
from understudy.privacy import labels
from understudy.privacy.queries import Queries
from understudy.runs.exported import Exported
from understudy.runs.registration import registered
from understudy.runs.request import RunRequest
from understudy.tasks.charge_receipt import ChargeReceipt, open_mechanisms
from understudy.tasks.charging import charge, environment_digest, finalize
from understudy.tasks.engine.runtime import code_digest, progress, task
from understudy.tasks.engine.tracking import parent_run
from understudy.tasks.evaluation import evaluate
from understudy.tasks.export import export


@task(name="count-tokens")
def count_tokens(
    rows: ArtifactRef, receipt: ChargeReceipt, config: BagOfWordsConfig, names: tuple[str, ...], queries: Queries
) -> ArtifactRef:
    """The noised counts: everything that the charge pays for."""
    import torch

    from understudy.models.loading import load_base
    from understudy.tensor_files import save_tensors

    tokenizer, table = load_base(config).tokenizer, read_table(rows)
    counts = torch.zeros(len(names), len(tokenizer), dtype=torch.float64)
    for text, label in zip(table["text"].to_pylist(), table["label"].to_pylist(), strict=True):
        if text is not None:  # a null row keeps its slot and adds nothing
            # Cut: of a longer text the tokenizer would say how long it is, in the log.
            ids = tokenizer(text, truncation=True, max_length=256)["input_ids"]
            own = torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=len(tokenizer)).double()
            counts[label] += own / own.norm().clamp(min=1.0)
    mechanisms = open_mechanisms(receipt)
    noise = queries[0].noise_multiplier
    noised = mechanisms.gaussian_sum(
        {"counts": counts}, sensitivity=1.0, noise_multiplier=noise, step=0, purpose=COUNTS
    )
    with store_for(receipt.label).write(
        kind="counts", label=receipt.label, parents=[f"source:{receipt.source}@{receipt.charge_id}"]
    ) as draft:
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
    plan = registered(request, "bag-of-words")
    config, names, (rows, test_rows) = plan.settings(BagOfWordsConfig), plan.label_names, plan.stored_rows
    with parent_run(plan.key, "bag-of-words", parameters={"request": request, "config": config}):
        code = environment_digest(code_digest(count_tokens.fn))
        receipt = charge(plan, code=code, accept_new=request.accept_new_charge)
        counts = count_tokens(rows, receipt, plan.charged_settings(BagOfWordsConfig), names, plan.queries)
        counts = finalize(receipt, counts)
        synthetic = draw_texts(counts, config, names)
        metrics = evaluate(synthetic, rows, test_rows, None, names, EvaluationConfig(profile=request.profile))
        return export(plan, receipt, counts, synthetic, metrics, out=request.out)


def sections(metrics, statement):
    """One section, after the common ones."""
    from understudy.reporting.view import MethodSections, Section

    noise = statement["mechanisms"][0]["noise_multiplier"]
    said = f"Every count was noised with {noise:.3g} times the norm of one text."
    return MethodSections(last=(Section("bag-of-words", "Token counts", (said,)),))

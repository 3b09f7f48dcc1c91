"""Record and replay of preference optimisation: the real flow, from a file to its export."""

import numpy as np
import pytest
from contract import preference_rows
from contract.flow_under_replay import FlowRun, nothing_found, smaller
from contract.labelled_flow import OPTIONS, few_and_fifty
from contract.private_files import (
    CLIENT_KINDS,
    CLIENTS,
    NAMES,
    ROW_KINDS,
    ROWS,
    client_of,
    clients,
    row_of,
    without_row,
)

from understudy.privacy.testing.replay import replay_check

SMALL = (
    "public_seed=5",
    "rounds=2",
    "clients.sample_tokens=16",
    "candidates.prompts=4",
    "candidates.per_prompt=4",
    "candidates.seeds_per_prompt=1",
    "candidates.seed_tokens=4",
    "candidates.sampling.max_new_tokens=4",
    "candidates.sampling.top_p=1.0",
    "preferences.rejected_rank=3",
    "preferences.lora_rank=2",
    "preferences.epochs=1",
    "preferences.batch_size=4",
    "preferences.learning_rate=1e-3",
)
MASKED, SAMPLED = "scoring.aggregation=masked", "clients.sampling_probability=0.5"
VARIANTS = {
    "federated": (),
    "federated, sampled": (SAMPLED,),
    "federated, masked": (MASKED,),
    "federated, masked, sampled": (SAMPLED, MASKED),
    "federated, by norms": ("scoring.over=all", "candidates.prompts=5"),
    "federated, as in the paper": ("scoring.normalise=none",),
    "federated, histogram": ("scoring.scorer=histogram",),
    "central": ("variant=central",),
    "central, histogram": ("variant=central", "scoring.scorer=histogram"),
    "central_conditional": ("variant=central_conditional", "candidates.instruction=Texts, {label}:"),
    "central_conditional, masked": ("variant=central_conditional", "candidates.instruction=Texts, {label}:", MASKED),
}


def flow(variant, model, folder, places, patch, *settings):
    smaller(patch)
    seeds = folder / "seeds.csv"
    seeds.write_text("\n".join(["text", *preference_rows.SEEDS]) + "\n")
    options = {
        **OPTIONS,
        "units": CLIENTS if variant.startswith("federated") else ROWS,
        "model": str(model),
        "samples": 4,
        "overrides": (*SMALL, f"seeds={seeds}", *VARIANTS[variant], *settings),
    }
    if variant.startswith("central_conditional"):
        options["label_names"] = NAMES
    return FlowRun("preference-optimization", options, folder, places, patch)


def pair_of(variant, kind, unit):
    """A file with the unit, and one without it: clients are left out of the file, rows are null."""
    if variant.startswith("federated"):
        return client_of(kind, unit), clients(unit)
    names = ["text", "label"] if variant.startswith("central_conditional") else ["text"]
    return row_of(kind, unit).select(names), without_row(unit).select(names)


def check(variant, kind, number, model, folder, places, patch):
    run = flow(variant, model, folder, places, patch)
    unit = run.trained_client(number) if variant.startswith("federated") else run.trained_slot(number)
    data, neighbour = pair_of(variant, kind, unit)
    forced = "every" if "sampled" in variant else ()
    report = replay_check(run, data=data, neighbour=neighbour, forced=forced)
    nothing_found(run, report, f"{variant}, {kind} unit {unit}")
    largest = report.distance_forced if forced else report.distance_real
    if kind == "empty" and not variant.startswith("federated"):
        # An empty text has no scores: its row is the null record already, and the query does not move.
        assert largest == 0
        return
    # A standardised vector has norm 1 whatever it is of: the query moves by all of its sensitivity, and no further.
    assert (0.1 if variant == "federated, as in the paper" else 0.99) < largest <= 1 + report.tolerance


def fifty():
    for number in range(50):
        variant = list(VARIANTS)[number % len(VARIANTS)]
        kinds = CLIENT_KINDS if variant.startswith("federated") else ROW_KINDS
        yield variant, kinds[number // len(VARIANTS) % len(kinds)], number * 5


# Masked sums of sampled clients, and rows; `test_faults` replays sums that are trusted to the client zone.
FEW = [("federated, masked, sampled", "extreme"), ("central_conditional", "rare class")]


@pytest.mark.parametrize(("variant", "kind", "number"), few_and_fifty(FEW, list(fifty())))
def test_neighbours(variant, kind, number, surroundings):
    check(variant, kind, number, *surroundings)


def test_the_stand_in_encoder_reads_each_text_alone():
    texts = clients()["text"].to_pylist()
    alone = np.concatenate([preference_rows.stand_in_encoder().encode([text]) for text in texts])
    assert np.array_equal(preference_rows.stand_in_encoder().encode(texts), alone)
    assert np.linalg.matrix_rank(alone) > 5

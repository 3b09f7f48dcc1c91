"""Every fault that is planted into a real flow is found by its replay."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest
from contract import planted_faults as plant
from contract import test_replay as generation
from contract import test_replay_gradient_matching as matching
from contract import test_replay_preference_optimization as preferences
from contract.flow_under_replay import without_evaluation
from contract.private_files import client_of, clients, row_of, unrelated_clients, unrelated_rows, without_row


@dataclass(frozen=True)
class Planted:
    """A fault, the flow, neighbour and settings that can show it, and what the replay must say.

    Attributes:
        plant: changes the code.
        method: whose flow: `generation`, `matching` or `preferences`.
        says: part of a finding.
        variant: of the method.
        kind: of the unit that the neighbour lacks.
        settings: added to the variant's.
        far: also replay on a file that differs in every unit.
    """

    plant: Callable[[pytest.MonkeyPatch], None]
    method: object
    says: str
    variant: str
    kind: str = "plain"
    settings: tuple[str, ...] = ()
    far: bool = False


MOVED, SEEN, SCALE = "times its declared sensitivity", "visible output", "times what was declared"
# Every row in every batch.
WHOLE = ("train.batch_size=20", "train.epochs=2")
# One text of each label, one step: the faults lie before it.
FAST = ("samples=3", "matching.rounds=1", "matching.inner_steps=1", "filter.oversample=1.0")
ONE = ("rounds=1", "samples=2")
JOINT = "multitask, joint"
PLANTED = {
    "update divided by the drawn batch": Planted(
        plant.divided_by_the_drawn_batch, generation, "model.safetensors' differs", JOINT
    ),
    "empty batch skipped": Planted(plant.empty_batch_skipped, generation, "ReplayDiverged", JOINT),
    "head trained without noise": Planted(
        plant.without_noise("head"), generation, "heads.safetensors' differs", "naive + PPLM"
    ),
    "class means without noise": Planted(
        plant.without_noise("class-means"), generation, "class-means.safetensors' differs", JOINT
    ),
    "clip of training removed": Planted(
        plant.clip_of_training_removed, generation, MOVED, JOINT, "extreme", settings=WHOLE
    ),
    "checkpoints weighed by their private loss": Planted(
        plant.checkpoints_weighed_by_private_loss,
        generation,
        "model.safetensors' differs",
        JOINT,
        "extreme",
        settings=WHOLE,
    ),
    "class count read": Planted(
        plant.class_count_read, generation, "differs", "multitask, alternating, steered", "rare class"
    ),
    "topics of the rows' own words": Planted(
        plant.topics_of_the_rows_own_words, generation, "understudy.json' differs", "untrained, topics", "extreme"
    ),
    "null row dropped": Planted(plant.null_row_dropped, generation, "as charged, found", JOINT),
    "rows sorted by length before the split": Planted(
        plant.sorted_by_length_before_the_split, matching, MOVED, "sketch", settings=FAST
    ),
    "clip removed": Planted(plant.clip_removed, matching, MOVED, "sketch", "extreme", settings=FAST),
    "length taken from the rows": Planted(
        plant.length_taken_from_the_rows, matching, "length, step 0: charged 1", "sketch, length as in data"
    ),
    "noise not drawn": Planted(plant.noise_not_drawn, matching, SCALE, "sketch", "extreme", settings=FAST),
    "noised but not used": Planted(
        plant.noised_but_not_used, matching, "target.safetensors' differs", "sketch", settings=FAST
    ),
    "digest in the report": Planted(
        plant.digest_in_the_report, matching, "value.json' differs", "sketch", "extreme", settings=FAST
    ),
    "raw sums written to a temporary file": Planted(
        plant.sums_in_a_temporary_file, matching, "wrote outside", "sketch", "extreme", settings=FAST
    ),
    "digest logged": Planted(plant.digest_logged, matching, "'logged' differs", "sketch", "extreme", settings=FAST),
    "clients held out by their place": Planted(
        plant.clients_held_out_by_their_place, preferences, MOVED, "federated", settings=ONE, far=True
    ),
    "count of participants used": Planted(
        plant.count_of_participants_used, preferences, "scores.safetensors' differs", "federated, sampled"
    ),
    "pairs without noise": Planted(
        plant.pairs_from_scores_without_noise,
        preferences,
        "adapter.safetensors' differs",
        "federated",
        settings=ONE,
        far=True,
    ),
}
# Those that show in one pair of files and in different ways, planted together: a query that moves, noise of another
# scale, a log, a file elsewhere, and one artifact. Two artifacts do not go together: what one holds is in the names of
# those that are made of it. `make prove` plants each of them alone.
TOGETHER = (
    ("clip of training removed", "checkpoints weighed by their private loss"),
    ("rows sorted by length before the split", "noised but not used"),
    (
        "clip removed",
        "noise not drawn",
        "digest in the report",
        "raw sums written to a temporary file",
        "digest logged",
    ),
    ("clients held out by their place", "pairs without noise"),
)
ALONE = [(name,) for name in PLANTED if not any(name in names for names in TOGETHER)]
MORE = {
    "sums left by compiled code": Planted(
        plant.sums_left_by_compiled_code, matching, "wrote outside", "sketch", settings=FAST
    ),
    "noise x 2/3": Planted(plant.noise_times(2 / 3), matching, SCALE, "sketch", settings=FAST),
    "noise x 3/2": Planted(plant.noise_times(3 / 2), matching, SCALE, "sketch", settings=FAST),
    "digest beside the target": Planted(
        plant.digest_beside_the_target, matching, "exact.sha256' differs", "sketch", settings=FAST
    ),
    "texts begin at a real row": Planted(
        plant.texts_begin_at_a_real_row, matching, "synthetic.parquet' differs", "sketch", far=True
    ),
    "vectors not clipped": Planted(plant.vectors_not_clipped, preferences, MOVED, "federated", settings=ONE),
    "noisy mean over who is there": Planted(
        plant.noisy_sum_divided_by_who_is_there, preferences, "scores.safetensors' differs", "federated", settings=ONE
    ),
    "absent client has no slot": Planted(
        plant.absent_client_has_no_slot, preferences, "of 16 slots, found", "federated", settings=ONE
    ),
    "clients take part by their place": Planted(
        plant.clients_take_part_by_their_place, preferences, MOVED, "federated, sampled"
    ),
    "private text in a prompt": Planted(
        plant.private_text_as_seed, preferences, "differs", "federated", "extreme", settings=ONE
    ),
    "samples logged": Planted(plant.samples_logged, preferences, "'logged' differs", "federated", settings=ONE),
    "embedded in one batch": Planted(
        plant.embedded_in_one_batch, preferences, MOVED, "federated", "extreme", settings=ONE
    ),
}


def found_by(faults, model, folder, places, patch):
    """What one replay says of all of them; the evaluation stands aside, for all faults lie before it."""
    first = faults[0]
    assert {dataclasses.replace(one, plant=first.plant, says=first.says) for one in faults} == {first}
    run = first.method.flow(first.variant, model, folder, places, patch, *first.settings)
    without_evaluation(patch)
    if first.method is preferences:
        unit = run.first_client()
        data, neighbour, far = client_of(first.kind, unit), clients(unit), unrelated_clients()
    else:
        unit = run.trained_slot(3)
        data, neighbour, far = row_of(first.kind, unit), without_row(unit), unrelated_rows()
    for fault in faults:
        fault.plant(patch)
    return run.faults(data, neighbour, **({"unrelated": far} if first.far else {}))


def check(faults, model, folder, places, patch):
    """Each fault is found, and by what is said of no other one."""
    found = found_by(faults, model, folder, places, patch)
    for fault in faults:
        own = [one for one in found if fault.says in one]
        assert own, found
        assert not [one for one in own for other in faults if other is not fault and other.says in one], found


def named(names):
    return ", ".join(names)


@pytest.mark.parametrize("names", [*TOGETHER, *ALONE], ids=named)
def test_planted_faults_are_caught(names, random_model_folder, tmp_path, places, monkeypatch):
    check([PLANTED[name] for name in names], random_model_folder, tmp_path, places, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for names in TOGETHER for name in names])
def test_a_planted_fault_is_caught_alone(name, random_model_folder, tmp_path, places, monkeypatch):
    check([PLANTED[name]], random_model_folder, tmp_path, places, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_more_planted_faults_are_caught(name, random_model_folder, tmp_path, places, monkeypatch):
    check([MORE[name]], random_model_folder, tmp_path, places, monkeypatch)


def test_the_far_files_are_files_of_their_kind():
    for far, near in ((unrelated_rows(), row_of("plain")), (unrelated_clients(), clients())):
        assert isinstance(far, pa.Table)
        assert far.schema == near.schema
        assert not set(far["text"].to_pylist()) & set(near["text"].to_pylist())

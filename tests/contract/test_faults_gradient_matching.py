"""Every fault that is planted into gradient matching is found by its replay."""

import dataclasses
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow.compute as pc
import pytest
import torch
from contract.method_under_replay import MethodRun, neighbours, small_matching, unrelated

from understudy.gradient_matching import matched, release, synthesis
from understudy.privacy import mechanisms
from understudy.privacy.mechanisms import Gateway
from understudy.tasks import gradient_matching as tasks

Patch = pytest.MonkeyPatch


def clip_removed(patch: Patch) -> None:
    exact = release.clipped_sum
    patch.setattr(release, "clipped_sum", lambda *args, into: exact(*args[:-1], 1e3, into=into))


def clip_of_all_layers_removed(patch: Patch) -> None:
    exact = release.full_clipped_sum
    patch.setattr(release, "full_clipped_sum", lambda *args, into: exact(*args[:-1], 1e3, into=into))


def length_taken_from_the_rows(patch: Patch) -> None:
    def mean(text_tokens, valid, **_):
        return round(float(text_tokens[valid].double().mean()))

    patch.setattr(release, "_release_length", mean)


def length_of_texts_that_were_not_cut(patch: Patch) -> None:
    exact = release.encode_rows

    def encode(texts, *, tokenizer, **options):
        whole = torch.tensor([len(tokenizer.encode(text or "", verbose=False)) for text in texts])
        return dataclasses.replace(exact(texts, tokenizer=tokenizer, **options), text_tokens=whole)

    patch.setattr(release, "encode_rows", encode)


def null_row_dropped(patch: Patch) -> None:
    exact = tasks.read_table
    patch.setattr(tasks, "read_table", lambda ref: exact(ref).drop_null())


def empty_row_dropped(patch: Patch) -> None:
    exact = tasks.read_table

    def without_empty(ref):
        table = exact(ref)
        return (
            table.filter(pc.fill_null(pc.not_equal(table["text"], ""), True))
            if "label" in table.schema.names
            else table
        )

    patch.setattr(tasks, "read_table", without_empty)


def noise_for_every_micro_batch(patch: Patch) -> None:
    whole, part = release.release_target, release.clipped_sum
    gateways: list[Gateway] = []
    done: list[int] = []

    def held(*args, gateway, **options):
        gateways.append(gateway)
        done.clear()
        return whole(*args, gateway=gateway, **options)

    def noised(*args, into):
        query = {"sums": part(*args, into=into).float()}
        done.append(1)
        where = {"step": 0, "purpose": f"target/{len(done)}"}
        return gateways[-1].gaussian_sum(query, sensitivity=args[-1], noise_multiplier=1.0, **where)["sums"].double()

    patch.setattr(release, "release_target", held)
    patch.setattr(release, "clipped_sum", noised)


def mean_of_two_draws(patch: Patch) -> None:
    exact = Gateway.gaussian_sum

    def twice(self, query, *, step, **options):
        one, other = (exact(self, query, step=step + again, **options) for again in (0, 1))
        return {name: (one[name] + other[name]) / 2 for name in one}

    patch.setattr(Gateway, "gaussian_sum", twice)


def class_without_rows_left_out(patch: Patch) -> None:
    exact = release.release_target

    def branching(texts, row_labels, **options):
        target = exact(texts, row_labels, **options)
        rows = [row_labels.count(index) for index in range(len(target.label_names))]
        tensors = {
            n: t if count else torch.zeros_like(t) for (n, t), count in zip(target.tensors.items(), rows, strict=True)
        }
        return dataclasses.replace(target, tensors=tensors)

    patch.setattr(release, "release_target", branching)


def noise_not_drawn(patch: Patch) -> None:
    patch.setattr(mechanisms, "gaussian", lambda key, size, *, scale: torch.zeros(size))


def noise_times(factor: float) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        exact = mechanisms.gaussian
        patch.setattr(mechanisms, "gaussian", lambda key, size, *, scale: factor * exact(key, size, scale=scale))

    return plant


def noise_multiplier_times(factor: float) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        exact = Gateway.gaussian_sum

        def other(self, query, *, noise_multiplier, **options):
            return exact(self, query, noise_multiplier=factor * noise_multiplier, **options)

        patch.setattr(Gateway, "gaussian_sum", other)

    return plant


def noised_but_not_used(patch: Patch) -> None:
    exact = Gateway.gaussian_sum

    def unused(self, query, **options):
        exact(self, query, **options)
        return dict(query)

    patch.setattr(Gateway, "gaussian_sum", unused)


def _digest_of_exact_sums(patch: Patch) -> list[str]:
    """Where the digest of the last exact sums will be."""
    exact, digests = release._class_sums, [""]

    def hashed(*args, **options):
        sums = exact(*args, **options)
        digests[0] = hashlib.sha256(sums.numpy().tobytes()).hexdigest()
        return sums

    patch.setattr(release, "_class_sums", hashed)
    return digests


def digest_logged(patch: Patch) -> None:
    digests, exact = _digest_of_exact_sums(patch), release.save_target

    def logged(target, folder):
        logging.getLogger("understudy.gradient_matching.release").info("target %s", digests[0][:8])
        exact(target, folder)

    patch.setattr(release, "save_target", logged)


def digest_beside_the_target(patch: Patch) -> None:
    digests, exact = _digest_of_exact_sums(patch), release.save_target

    def beside(target, folder):
        exact(target, folder)
        (folder / "exact.sha256").write_text(digests[0])

    patch.setattr(release, "save_target", beside)


def digest_in_the_report(patch: Patch) -> None:
    digests, exact = _digest_of_exact_sums(patch), synthesis.write_selection

    def reported(selection, folder):
        figures = {**selection.matching, "target": digests[0]}
        exact(dataclasses.replace(selection, matching=figures), folder)

    patch.setattr(synthesis, "write_selection", reported)


def texts_begin_at_a_real_row(patch: Patch) -> None:
    exact, texts = release.release_target, []

    def held(rows, *args, **options):
        texts[:] = [text for text in rows if text]
        return exact(rows, *args, **options)

    def start(examples, label_names, *, length, allowed, public_seed):
        choices = allowed.nonzero()[:, 0]
        ids = torch.tensor([ord(letter) for letter in texts[0][-length:].rjust(length)])
        return choices[ids % len(choices)].expand(len(examples), -1)

    patch.setattr(release, "release_target", held)
    patch.setattr(matched, "starting_tokens", start)


@dataclass(frozen=True)
class Planted:
    """A fault, the neighbour and settings that can show it, and what the replay must say."""

    plant: Callable[[Patch], None]
    kind: str
    says: str
    settings: dict = dataclasses.field(default_factory=dict)


# One text of each label, one step: the faults lie before it.
FAST = {"samples": 3, "matching": {"rounds": 1, "inner_steps": 1, "swap_sweeps": 1}, "filter": {"oversample": 1.0}}
MOVED, SEEN = "times its declared sensitivity", "visible output"
LENGTH = {"length": "as_in_data"}
FULL = {"target": {"kind": "label_rows"}, "matching": FAST["matching"] | {"gradient": "full"}}
PLANTED = {
    "clip removed": Planted(clip_removed, "extreme", MOVED),
    "clip of all layers removed": Planted(clip_of_all_layers_removed, "plain", MOVED, FULL),
    "length taken from the rows' mean": Planted(length_taken_from_the_rows, "unrelated", SEEN, LENGTH),
    "the same, as the statement sees it": Planted(length_taken_from_the_rows, "plain", "length: stated are 1", LENGTH),
    "length of uncut texts": Planted(length_of_texts_that_were_not_cut, "extreme", MOVED, LENGTH),
    "null row dropped": Planted(null_row_dropped, "plain", "'progress' differs"),
    "empty row dropped": Planted(empty_row_dropped, "empty", "'progress' differs"),
    "noise for every micro-batch": Planted(noise_for_every_micro_batch, "plain", "target/1: called, but not stated"),
    "mean of two draws": Planted(mean_of_two_draws, "plain", "target: stated are 1 calls, made were 2"),
    "class without rows left out": Planted(class_without_rows_left_out, "rare class", SEEN),
    "noise not drawn": Planted(noise_not_drawn, "plain", "noise is 0 times what was declared"),
    "noise x 2/3": Planted(noise_times(2 / 3), "plain", "times what was declared"),
    "noise x 3/2": Planted(noise_times(3 / 2), "plain", "times what was declared"),
    "noise multiplier 0": Planted(noise_multiplier_times(0.0), "plain", "no noise"),
    "noise multiplier x 2/3": Planted(noise_multiplier_times(2 / 3), "plain", "noise is not what is stated"),
    "noised but not used": Planted(noised_but_not_used, "plain", "target.safetensors' differs"),
    "digest logged": Planted(digest_logged, "plain", "'logged' differs"),
    "digest beside the target": Planted(digest_beside_the_target, "plain", "exact.sha256' differs"),
    "digest in the report": Planted(digest_in_the_report, "plain", "value.json' differs"),
    "texts begin at a real row": Planted(texts_begin_at_a_real_row, "unrelated", "synthetic.parquet' differs"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_caught(name, random_model_folder, tmp_path, calibrations, monkeypatch):
    fault = PLANTED[name]
    pairs = {kind: (data, neighbour) for kind, _, data, neighbour in neighbours([3])}
    data, neighbour = pairs.get(fault.kind, (pairs["plain"][0], unrelated()))
    fault.plant(monkeypatch)
    config = small_matching(random_model_folder, **(FAST | fault.settings))
    found = MethodRun(config, tmp_path, calibrations, monkeypatch).faults(data, neighbour)
    assert any(fault.says in one for one in found), found

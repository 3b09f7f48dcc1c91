"""Faults to plant into a run, each of which a replay of the real flow must find."""

import dataclasses
import hashlib
import logging
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from contract import preference_rows
from safetensors.torch import save_file

from understudy.methods.conditional_generation import fitting
from understudy.methods.conditional_generation import train as training
from understudy.methods.gradient_matching import optimise, release, synthesis
from understudy.methods.preference_optimization import pool, rounds
from understudy.methods.preference_optimization import release as scores_release
from understudy.privacy import mechanisms as mechanisms_module
from understudy.privacy.dpsgd import training as dp_training
from understudy.privacy.grid import grid_of
from understudy.privacy.grid_sum import from_steps
from understudy.privacy.mechanisms import Mechanisms
from understudy.runs import split
from understudy.tasks import conditional_generation as generation_tasks

Patch = pytest.MonkeyPatch


# In training


def divided_by_the_drawn_batch(patch: Patch) -> None:
    poisson, update, drawn = Mechanisms.poisson, dp_training._State.update, []

    def noting(self, **options):
        drawn.append(poisson(self, **options))
        return drawn[-1]

    def divided(self, stream, gradient, *, learning_rate, divisor):
        update(self, stream, gradient, learning_rate=learning_rate, divisor=max(1, int(drawn[-1].sum())))

    patch.setattr(Mechanisms, "poisson", noting)
    patch.setattr(dp_training._State, "update", divided)


def empty_batch_skipped(patch: Patch) -> None:
    exact, asked, empty = dp_training._clipped_sum, Mechanisms.gaussian_sum, []

    def noting(sides, tapped, objective, batches, clip):
        empty.append(not batches)
        return exact(sides, tapped, objective, batches, clip)

    def skipping(self, query, **options):
        if empty and empty[-1]:
            return {name: value.float() for name, value in query.items()}
        return asked(self, query, **options)

    patch.setattr(dp_training, "_clipped_sum", noting)
    patch.setattr(Mechanisms, "gaussian_sum", skipping)


def without_noise(part: str) -> Callable[[Patch], None]:
    """Queries whose name begins with `part` are noised, and used as they were."""

    def plant(patch: Patch) -> None:
        exact = Mechanisms.gaussian_sum

        def unused(self, query, *, sensitivity, purpose, **options):
            noised = exact(self, query, sensitivity=sensitivity, purpose=purpose, **options)
            if not purpose.startswith(part):
                return noised
            return {name: from_steps(steps, grid=grid_of(sensitivity)) for name, steps in query.items()}

        patch.setattr(Mechanisms, "gaussian_sum", unused)

    return plant


def clip_of_training_removed(patch: Patch) -> None:
    exact = dp_training.clipped_gradient_sum
    patch.setattr(
        dp_training,
        "clipped_gradient_sum",
        lambda *args, l2_clip_norm, **options: exact(*args, l2_clip_norm=1e3, **options),
    )


def checkpoints_weighed_by_private_loss(patch: Patch) -> None:
    """A soft choice: which of a few checkpoints has the least loss may well be the same for two files."""
    exact = training.train

    def choosing(model, *, plan, objectives, data, course, **options):
        objective = objectives[plan.streams[0].name]
        kept = []

        def looking(done, steps):
            device = next(model.parameters()).device
            rows = {**data, "slot": torch.arange(plan.n), "step": torch.tensor(0)}
            batch = {name: value.to(device) for name, value in rows.items()}
            with torch.no_grad():
                loss = float(objective.loss(model, batch)[batch["valid"]].mean())
            kept.append((loss, {name: p.detach().clone() for name, p in objective.parameters.items()}))
            if course.progress is not None:
                course.progress(done, steps)

        watched = dataclasses.replace(course, progress=looking)
        exact(model, plan=plan, objectives=objectives, data=data, course=watched, **options)
        weights = torch.tensor([-loss for loss, _ in kept], dtype=torch.float64).softmax(0)
        with torch.no_grad():
            for name, parameter in objective.parameters.items():
                parameter.copy_(sum(w * state[name].double() for w, (_, state) in zip(weights, kept, strict=True)))

    patch.setattr(training, "train", choosing)


def class_count_read(patch: Patch) -> None:
    exact = Mechanisms.histogram

    def unused(self, counts, **options):
        exact(self, counts, **options)
        return counts

    patch.setattr(Mechanisms, "histogram", unused)


def topics_of_the_rows_own_words(patch: Patch) -> None:
    exact = fitting.train_on_table

    def own_words(private, asked, **options):
        words = Counter(word for text in private.valid_texts if text is not None for word in text.split())
        keywords = tuple((word,) for word, _ in words.most_common(3))
        topics = asked.config.topics.model_copy(update={"keywords": keywords})
        config = asked.config.model_copy(update={"topics": topics})
        return exact(private, dataclasses.replace(asked, config=config), **options)

    patch.setattr(fitting, "train_on_table", own_words)


def null_row_dropped(patch: Patch) -> None:
    exact = generation_tasks.read_table
    patch.setattr(generation_tasks, "read_table", lambda ref: exact(ref).drop_null())


# In reading and splitting


def sorted_by_length_before_the_split(patch: Patch) -> None:
    exact = split._checked

    def ordered(*args, **options):
        table, names = exact(*args, **options)
        lengths = pc.fill_null(pc.utf8_length(table["text"]), 0)
        return table.take(pc.sort_indices(pa.table({"n": lengths}), sort_keys=[("n", "descending")])), names

    patch.setattr(split, "_checked", ordered)


# In the release of a target


def clip_removed(patch: Patch) -> None:
    exact = release.clipped_sum
    patch.setattr(release, "clipped_sum", lambda *args, into: exact(*args[:-1], 1e3, into=into))


def length_taken_from_the_rows(patch: Patch) -> None:
    def mean(text_tokens, valid, **_):
        return round(float(text_tokens[valid].double().mean()))

    patch.setattr(release, "_release_length", mean)


def noise_not_drawn(patch: Patch) -> None:
    noise_times(0.0)(patch)


def noise_times(factor: float):
    def plant(patch: Patch) -> None:
        exact = mechanisms_module.each_block
        patch.setattr(
            mechanisms_module,
            "each_block",
            lambda key, size, *, scale, use: exact(key, size, scale=factor * scale, use=use),
        )

    return plant


def noised_but_not_used(patch: Patch) -> None:
    exact = Mechanisms.gaussian_sum

    def unused(self, query, *, sensitivity, **options):
        exact(self, query, sensitivity=sensitivity, **options)
        return {
            name: from_steps(value, grid=grid_of(sensitivity)) if value.dtype == torch.int64 else value.float()
            for name, value in query.items()
        }

    patch.setattr(Mechanisms, "gaussian_sum", unused)


def _exact_sums(patch: Patch) -> list[torch.Tensor]:
    """Where the last exact sums will be."""
    exact, held = release._class_sums, []

    def holding(*args, **options):
        held.append(exact(*args, **options))
        return held[-1]

    patch.setattr(release, "_class_sums", holding)
    return held


def _digest(sums: torch.Tensor) -> str:
    return hashlib.sha256(sums.cpu().numpy().tobytes()).hexdigest()


def sums_in_a_temporary_file(patch: Patch) -> None:
    """Which is gone a moment later."""
    exact = release._class_sums

    def written(*args, **options):
        sums = exact(*args, **options)
        with tempfile.NamedTemporaryFile() as file:
            np.save(file, sums.cpu().numpy())
        return sums

    patch.setattr(release, "_class_sums", written)


def sums_left_by_compiled_code(patch: Patch) -> None:
    exact = release._class_sums

    def written(*args, **options):
        sums = exact(*args, **options)
        save_file({"sums": sums}, Path(tempfile.gettempdir()) / "sums.safetensors")
        return sums

    patch.setattr(release, "_class_sums", written)


def digest_logged(patch: Patch) -> None:
    held, exact = _exact_sums(patch), release.save_target

    def logged(target, folder):
        logging.getLogger("understudy.methods.gradient_matching.release").info("target %s", _digest(held[-1])[:8])
        exact(target, folder)

    patch.setattr(release, "save_target", logged)


def digest_beside_the_target(patch: Patch) -> None:
    held, exact = _exact_sums(patch), release.save_target

    def beside(target, folder):
        exact(target, folder)
        (folder / "exact.sha256").write_text(_digest(held[-1]))

    patch.setattr(release, "save_target", beside)


def digest_in_the_report(patch: Patch) -> None:
    held, exact = _exact_sums(patch), synthesis.write_selection

    def reported(selection, folder):
        exact(dataclasses.replace(selection, matching={**selection.matching, "target": _digest(held[-1])}), folder)

    patch.setattr(synthesis, "write_selection", reported)


def texts_begin_at_a_real_row(patch: Patch) -> None:
    exact, texts = release.release_target, []

    def held(private, *args, **options):
        texts[:] = [text for text in private.texts if text]
        return exact(private, *args, **options)

    def start(examples, label_names, *, length, allowed, public_seed):
        choices = allowed.nonzero()[:, 0]
        ids = torch.tensor([ord(letter) for letter in texts[0][-length:].rjust(length)])
        return choices[ids % len(choices)].expand(len(examples), -1)

    patch.setattr(release, "release_target", held)
    patch.setattr(optimise, "starting_tokens", start)


# In the scores of clients


def _hold_clients(patch: Patch) -> list:
    held, exact = [], pool.embed_samples

    def holding(clients, *args, **options):
        held.append(clients)
        return exact(clients, *args, **options)

    patch.setattr(pool, "embed_samples", holding)
    return held


def vectors_not_clipped(patch: Patch) -> None:
    exact = scores_release.scores_without_noise
    patch.setattr(scores_release, "scores_without_noise", lambda *args, **options: 3 * exact(*args, **options))


def noisy_sum_divided_by_who_is_there(patch: Patch) -> None:
    exact = scores_release.release_scores

    def mean(clients, *args, **options):
        return exact(clients, *args, **options) / len(np.unique(clients.owner))

    patch.setattr(scores_release, "release_scores", mean)


def pairs_from_scores_without_noise(patch: Patch) -> None:
    sums, exact, pairs = [], scores_release.scores_without_noise, rounds.preference_pairs

    def holding(*args, **options):
        sums.append(exact(*args, **options))
        return sums[-1]

    patch.setattr(scores_release, "scores_without_noise", holding)
    patch.setattr(rounds, "preference_pairs", lambda scores, **options: pairs(sums[-1], **options))


def absent_client_has_no_slot(patch: Patch) -> None:
    exact = pool.build_pool
    patch.setattr(pool, "build_pool", lambda *args, slots, **options: exact(*args, slots=None, **options))


def clients_take_part_by_their_place(patch: Patch) -> None:
    exact = Mechanisms.poisson
    patch.setattr(Mechanisms, "poisson", lambda self, *, unit_ids, **options: exact(self, **options))


def clients_held_out_by_their_place(patch: Patch) -> None:
    """Every second one in the order of first appearance."""

    def by_place(whole, identifiers, kind, **_):
        out = set(identifiers[1::2])
        return pa.array([client in out for client in whole["client_id"].to_pylist()])

    patch.setattr(split, "held_out", by_place)


def count_of_participants_used(patch: Patch) -> None:
    scale, exact, whole = [], scores_release.scores_without_noise, scores_release.release_scores

    def counted(clients, candidates, mask, **options):
        scale.append(1 / max(1, mask.sum()))
        return exact(clients, candidates, mask, **options)

    patch.setattr(scores_release, "scores_without_noise", counted)
    patch.setattr(scores_release, "release_scores", lambda *args, **options: whole(*args, **options) * scale[-1])


def private_text_as_seed(patch: Patch) -> None:
    held, exact = _hold_clients(patch), rounds.propose
    patch.setattr(rounds, "propose", lambda policy, _, **options: exact(policy, [max(held[-1].samples)], **options))


def samples_logged(patch: Patch) -> None:
    exact = pool.embed_samples

    def logged(clients, *args, **options):
        logging.getLogger("understudy.methods.preference_optimization").info("%d samples", len(clients.samples))
        return exact(clients, *args, **options)

    patch.setattr(pool, "embed_samples", logged)


def embedded_in_one_batch(patch: Patch) -> None:
    """With an encoder whose embeddings depend, strongly here, on what else is in the batch."""
    exact = preference_rows.hashed_words

    def normalised(texts):
        rows = exact(texts)
        return rows - rows.sum(axis=0, keepdims=True) + rows[::-1].cumsum(axis=0)

    patch.setattr(preference_rows, "hashed_words", normalised)
    patch.setattr(pool, "embed_samples", lambda clients, encode, **_: encode(clients.samples))

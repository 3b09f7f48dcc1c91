"""The release: one noised sum, equal to a loop over single examples by autograd."""

import dataclasses
import math
import os

import pytest
import torch
from torch.nn import functional

from understudy.data.private_rows import PrivateRows
from understudy.errors import ArtifactDamaged, InputError, UnderstudyError
from understudy.generation.prompts import encode_text
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.optimise import match_shard
from understudy.methods.gradient_matching.queries import Asked, queries_of, schedule_of
from understudy.methods.gradient_matching.release import load_target, release_target, save_target, target_dimension
from understudy.methods.gradient_matching.targets import target_space
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.privacy.grid import charged_sensitivity
from understudy.privacy.grid_sum import GridSum
from understudy.privacy.testing.replay import Recording

KINDS = ["head", "label_rows", "sketch", "full"]
FAMILIES = ["gpt2", "llama", "opt", "phi"]
MAX_LENGTH = 12
NULLS = (3, 8)


def rows(count=14):
    """Texts from empty to longer than what is read; some slots are null, one has a text without a label."""
    words = ["bad", "good", "unsure", "film", "plot", "the", "slowly"]
    texts = [" ".join(words[(i * j) % 7] for j in range(1, 1 + (i * 5) % 19)) for i in range(count)]
    labels = [i % 3 for i in range(count)]
    texts[NULLS[0]] = labels[NULLS[0]] = labels[NULLS[1]] = None
    return texts, labels


def make_config(kind="head", *, micro_batch=5, clip=1.0, **changes):
    gradient = {"matching": {"gradient": "full"}} if kind == "full" else {}
    target = {"kind": "head" if kind == "full" else kind, "sketch_dimension": 24, "micro_batch": micro_batch}
    data = {"max_length": MAX_LENGTH, "length": 6, "target": {**target, "l2_clip_norm": clip}, **gradient, **changes}
    return GradientMatchingConfig.model_validate(data)


def release(base, label_names, make_mechanisms, config, *, data=None, epsilon=math.inf, recorder=None, **options):
    texts, labels = data or rows()
    planned = schedule_of(queries_of(config, n=len(texts), epsilon=epsilon, delta=1e-5))
    asked = Asked(config, planned, make_mechanisms(planned, recorder))
    return release_target(PrivateRows(texts, labels, label_names), asked, base=base, **options)


def by_a_loop(base, label_names, config):
    """Clipped gradients of single, unpadded examples by autograd through the real model, summed in float64."""
    texts, labels = rows()
    words = build_verbalizer(base.tokenizer, label_names, config.verbalizer)
    space = target_space(base.model, words, config.target, public_seed=config.public_seed)
    model, full = base.model.requires_grad_(True), config.matching.gradient == "full"
    weight, bias = model.lm_head.weight, model.lm_head.bias
    if full:
        untied = model.get_input_embeddings().weight is not weight
        embedding = model.get_input_embeddings().weight
        wanted = [p for _, p in sorted(model.named_parameters()) if not (untied and p is embedding)]
    else:
        wanted = [weight] if bias is None else [weight, bias]
    sums = None
    for text, label in zip(texts, labels, strict=True):
        if text is None or label is None:
            continue
        kept = encode_text(base.tokenizer, text)[: config.max_length]
        ids = torch.tensor([[base.tokenizer.bos_token_id, *kept, *words.template_ids.tolist()]])
        embedded = model.get_input_embeddings()(ids).detach()
        logits = model(inputs_embeds=embedded, use_cache=False).logits[0, -1]
        over_labels = config.target.kind == "label_rows"
        chosen, truth = (logits[words.token_ids], label) if over_labels else (logits, words.token_ids[label])
        loss = functional.cross_entropy(chosen[None], torch.as_tensor(truth)[None])
        found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        if full:
            gradient = torch.cat([part.flatten() for part in found]).double()
        else:
            gradient = (found[0] if bias is None else torch.cat([found[0], found[1][:, None]], dim=1)).double()
            gradient = gradient[words.token_ids] if over_labels else gradient
            if space.sketch is not None:
                a, b = (part.double() for part in space.sketch)
                gradient = ((a @ gradient) * b).sum(1) / math.sqrt(len(a))
        scaled = gradient * min(1.0, config.target.l2_clip_norm / float(gradient.norm()))
        sums = torch.zeros(len(label_names), *scaled.shape, dtype=torch.float64) if sums is None else sums
        sums[label] += scaled
    return sums


CASES = [(family, kind) for family in FAMILIES for kind in KINDS if kind != "full" or family in ("gpt2", "llama")]


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_without_noise_the_target_is_a_loop_over_single_examples(make_base, make_mechanisms, label_names, family, kind):
    base = make_base(family, bias=family == "phi", tied=family != "opt")
    config = make_config(kind, clip=0.5)
    found = release(base, label_names, make_mechanisms, config)
    expected = by_a_loop(base, label_names, config)
    assert found.kind == kind
    assert found.label_names == label_names
    assert found.stacked.dtype == torch.float32
    error = (found.stacked.double() - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    # Norms of all layers' gradients have a bound on their rounding added: sums may be a little shorter, never longer.
    assert error.max() < (5e-5 if kind == "full" else 1e-5)
    along = (found.stacked.double() * expected).flatten(1).sum(1) / expected.flatten(1).square().sum(1)
    assert along.max() < 1 + 1e-6
    assert expected.flatten(1).norm(dim=1).min() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_does_not_depend_on_the_micro_batch(make_base, make_mechanisms, label_names, kind):
    base = make_base("gpt2")
    one, other = (
        release(base, label_names, make_mechanisms, make_config(kind, micro_batch=size)).stacked for size in (3, 64)
    )
    assert float((one - other).norm() / one.norm()) < 1e-5


@pytest.mark.parametrize("kind", ["head", "sketch", "full"])
@pytest.mark.parametrize("micro_batch", [1, 3])
def test_rows_that_were_rounded_to_the_grid_are_not_added_again(
    make_base, make_mechanisms, label_names, monkeypatch, kind, micro_batch
):
    """Whoever was in an earlier part of the sum would count twice, at twice the sensitivity."""
    base, config = make_base("gpt2"), make_config(kind, micro_batch=micro_batch)
    whole = release(base, label_names, make_mechanisms, config).stacked
    monkeypatch.setattr("understudy.methods.gradient_matching.release._ROWS_IN_FLOATS", 4)
    in_parts = release(base, label_names, make_mechanisms, config).stacked
    assert float((whole - in_parts).norm() / whole.norm()) < 1e-5


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 5, 64])
def test_the_grid_is_told_of_every_slot_that_a_sum_was_held_over_in_floats(
    make_base, make_mechanisms, label_names, monkeypatch, micro_batch
):
    """Null ones count: how many rows are there is private. Of large passes fewer were told of than were in them."""
    told, add = [], GridSum.add
    monkeypatch.setattr("understudy.methods.gradient_matching.release._ROWS_IN_FLOATS", 4)
    monkeypatch.setattr(GridSum, "add", lambda grid, sums, *, units: (told.append(units), add(grid, sums, units=units)))
    release(make_base("gpt2"), label_names, make_mechanisms, make_config("sketch", micro_batch=micro_batch))
    assert sum(told) == len(rows()[0])
    assert max(told) < 4 + micro_batch
    assert len(told) == 1 if micro_batch == 64 else len(told) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_null_rows_add_nothing_whatever_they_hold(make_base, make_mechanisms, label_names, kind):
    base, config = make_base("llama"), make_config(kind)
    with_nulls = release(base, label_names, make_mechanisms, config)
    texts, labels = rows()
    texts[NULLS[1]] = "a text without a label"
    texts[NULLS[0]], labels[NULLS[0]] = None, 2
    again = release(base, label_names, make_mechanisms, config, data=(texts, labels))
    assert torch.equal(with_nulls.stacked, again.stacked)
    kept = [i for i in range(len(texts)) if i not in NULLS]
    data = [texts[i] for i in kept], [labels[i] for i in kept]
    without = release(base, label_names, make_mechanisms, config, data=data)
    torch.testing.assert_close(with_nulls.stacked, without.stacked, rtol=1e-4, atol=1e-6)
    nothing = release(base, label_names, make_mechanisms, config, data=([None] * 4, [None] * 4))
    assert not nothing.stacked.any()


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_one_query_whose_neighbours_are_at_most_c_apart(make_base, make_mechanisms, label_names, kind):
    base, config = make_base("gpt2"), make_config(kind, clip=0.7)
    texts, labels = rows()
    queries = []
    for null in (None, 4):
        texts_now = [None if i == null else text for i, text in enumerate(texts)]
        recording = Recording()
        released = release(
            base, label_names, make_mechanisms, config, data=(texts_now, labels), epsilon=2.0, recorder=recording
        )
        (call,) = recording.calls
        assert (call.mechanism.kind, call.mechanism.purpose, call.mechanism.step) == ("gaussian_sum", "target", 0)
        assert call.mechanism.sensitivity == charged_sensitivity(0.7)
        planned = schedule_of(queries_of(config, n=len(texts), epsilon=2.0, delta=1e-5))
        assert call.mechanism.scale == planned.noise_multiplier * charged_sensitivity(0.7)
        assert len(call.query) == 3
        assert torch.equal(released.stacked, torch.stack([call.output[name] for name in sorted(call.output)]))
        queries.append(torch.cat([call.query[name].flatten() for name in sorted(call.query)]).double())
    distance = float((queries[0] - queries[1]).norm())
    assert distance <= 0.7 * (1 + 1e-5)
    assert distance > 0.69, "the example is one that clipping shortens"


def test_noise_has_the_planned_scale(make_base, make_mechanisms, label_names):
    base, config = make_base("gpt2"), make_config("head", clip=0.5)
    noised = release(base, label_names, make_mechanisms, config, epsilon=1.0).stacked
    exact = release(base, label_names, make_mechanisms, config).stacked
    noise = (noised - exact).flatten()
    scale = schedule_of(queries_of(config, n=14, epsilon=1.0, delta=1e-5)).noise_multiplier * charged_sensitivity(0.5)
    assert float(noise.std()) == pytest.approx(scale, rel=0.01)
    assert abs(float(noise.mean())) < 5 * scale / math.sqrt(len(noise))


def test_the_mean_length_is_one_query_of_two_numbers(make_base, make_mechanisms, label_names):
    base, config = make_base("llama"), make_config("label_rows", length="as_in_data")
    texts, labels = rows()
    counts = [
        min(MAX_LENGTH, len(encode_text(base.tokenizer, text)))
        for text, label in zip(texts, labels, strict=True)
        if text is not None and label is not None
    ]
    recording = Recording()
    found = release(base, label_names, make_mechanisms, config, recorder=recording)
    target, length = recording.calls
    assert (target.mechanism.purpose, length.mechanism.purpose) == ("target", "length")
    assert length.mechanism.sensitivity == charged_sensitivity(math.sqrt(2))
    assert length.query["count"].tolist() == [len(counts)]
    assert length.query["length"].item() == pytest.approx(
        sum(counts) / MAX_LENGTH, rel=0, abs=length.mechanism.grid / 2
    )
    assert found.length == round(sum(counts) / len(counts))
    neighbour = Recording()
    longest = counts.index(MAX_LENGTH)
    slot = [i for i in range(len(texts)) if i not in NULLS][longest]
    texts[slot] = None
    release(base, label_names, make_mechanisms, config, data=(texts, labels), recorder=neighbour)
    moved = [length.query[name] - neighbour.calls[1].query[name] for name in ("length", "count")]
    assert math.hypot(*(float(part) for part in moved)) == pytest.approx(math.sqrt(2), rel=1e-5)


def test_target_and_length_are_released_once(make_base, make_mechanisms, label_names, tmp_path):
    """With other rows, or other last digits, neither gets noise of its own under the same charge."""
    base, config = make_base("llama"), make_config("label_rows", length="as_in_data")
    texts, labels = rows()
    planned = schedule_of(queries_of(config, n=len(texts), epsilon=3.0, delta=1e-5))

    def released(texts):
        mechanisms = make_mechanisms(planned, None)
        mechanisms.release_log = tmp_path
        return release_target(PrivateRows(texts, labels, label_names), Asked(config, planned, mechanisms), base=base)

    first, again = released(texts), released(texts)
    assert torch.equal(first.stacked, again.stacked)
    assert first.length == again.length
    with pytest.raises(UnderstudyError, match=r"purpose='target'.* a second release"):
        released(["film", *texts[1:]])
    (tmp_path / "gaussian_sum.0.target.safetensors").unlink()
    with pytest.raises(UnderstudyError, match=r"purpose='length'.* a second release"):
        released(["film plot the slowly", *texts[1:]])


@pytest.mark.parametrize(("noise", "expected"), [((-1e6, 0.0), 1), ((1e6, 0.0), MAX_LENGTH), ((0.0, -1e6), MAX_LENGTH)])
def test_a_length_lost_in_noise_stays_within_bounds(make_base, make_mechanisms, label_names, noise, expected):
    class Shifted:
        def observe(self, mechanism, query, draw):
            output = draw()
            if mechanism.purpose == "length":
                output = {"length": query["length"] + noise[0], "count": query["count"] + noise[1]}
            return output

    config = make_config("label_rows", length="as_in_data")
    found = release(make_base("llama"), label_names, make_mechanisms, config, recorder=Shifted())
    assert found.length == expected


def test_progress_counts_rows_and_the_null_ones_too(make_base, make_mechanisms, label_names):
    seen = []
    release(
        make_base("gpt2"),
        label_names,
        make_mechanisms,
        make_config("sketch", micro_batch=6),
        progress=lambda *step: seen.append(step),
    )
    assert seen == [(6, 14), (12, 14), (14, 14)]


def test_a_model_that_overflows_adds_nothing_instead_of_poisoning_the_sum(make_base, make_mechanisms, label_names):
    base = make_base("llama", tied=False)
    token = base.tokenizer.encode(" plot", add_special_tokens=False)[0]
    base.model.get_input_embeddings().weight.data[token] = math.inf
    texts, labels = ["a good film", "the plot"], [0, 0]
    config = make_config("sketch")
    both = release(base, label_names, make_mechanisms, config, data=(texts, labels)).stacked
    first = release(base, label_names, make_mechanisms, config, data=(["a good film", None], [0, None])).stacked
    assert both.isfinite().all()
    assert torch.equal(both, first)
    assert first.any()


def test_saved_targets_are_read_back_and_have_one_form(make_base, make_mechanisms, label_names, tmp_path):
    config = make_config("sketch", length="as_in_data")
    found = release(make_base("gpt2"), label_names, make_mechanisms, config, epsilon=3.0)
    for folder in ("one", "two"):
        save_target(found, tmp_path / folder)
    files = [{p.name: p.read_bytes() for p in (tmp_path / folder).iterdir()} for folder in ("one", "two")]
    assert files[0] == files[1]
    assert set(files[0]) == {"target.safetensors", "target.json"}
    again = load_target(tmp_path / "one")
    assert list(again.tensors) == list(label_names)
    assert torch.equal(again.stacked, found.stacked)
    assert dataclasses.replace(again, tensors={}) == dataclasses.replace(found, tensors={})
    os.truncate(tmp_path / "one" / "target.json", 20)
    (tmp_path / "two" / "target.safetensors").unlink()
    for folder in ("one", "two"):
        with pytest.raises(ArtifactDamaged):
            load_target(tmp_path / folder)


def test_a_saved_target_says_nothing_of_where_the_model_lies_and_is_matched_all_the_same(
    make_base, make_mechanisms, label_names, tmp_path
):
    matching = {"rounds": 1, "inner_steps": 1, "swap_sweeps": 1}
    model = {"model": str(tmp_path / "models" / "own"), "model_digest": "a" * 64}
    config = make_config("sketch", **model, matching=matching, projection={"k": 20})
    base = make_base("gpt2")
    found = release(base, label_names, make_mechanisms, config, epsilon=3.0)
    save_target(found, tmp_path / "target")
    assert not [path for path in (tmp_path / "target").iterdir() if bytes(tmp_path) in path.read_bytes()]
    again = load_target(tmp_path / "target")
    assert (again.settings.model, again.settings.model_digest, again.model_digest) == ("own", "a" * 64, base.digest)
    assert again.settings.model_copy(update={"model": config.model}) == found.settings == config
    wanted = {"config": config, "examples": [(0, 0), (2, 0)], "public_seed": 1}
    assert match_shard(base, again, **wanted) == match_shard(base, found, **wanted)
    with pytest.raises(InputError, match="load the charged one"):
        match_shard(dataclasses.replace(base, digest="f" * 64), again, **wanted)


def test_what_does_not_fit_is_refused_before_the_gateway(make_base, make_mechanisms, label_names):
    base, config = make_base("gpt2"), make_config("head")
    recording = Recording()
    texts, labels = rows()
    planned = schedule_of(queries_of(config, n=len(texts), epsilon=math.inf, delta=1e-5))
    mechanisms = make_mechanisms(planned, recording)
    wrong = [
        ("clip norm or length differ", texts, labels, make_config("head", clip=0.3), label_names),
        ("clip norm or length differ", texts, labels, make_config("head", length="as_in_data"), label_names),
        ("null rows keep their slots", texts[:-1], labels[:-1], config, label_names),
        ("row 1: expected a label index from 0 to 2", texts, [0, 3, *labels[2:]], config, label_names),
        ("expected at most", texts, labels, make_config("head", max_length=95), label_names),
        ("same token", texts, labels, config, ("good", "good one", "bad")),
    ]
    for message, texts_now, labels_now, settings, names in wrong:
        with pytest.raises(InputError, match=message):
            release_target(PrivateRows(texts_now, labels_now, names), Asked(settings, planned, mechanisms), base=base)
    assert not recording.calls


@pytest.mark.parametrize("kind", KINDS)
def test_the_dimension_for_the_bound_is_that_of_the_tensors(make_base, make_mechanisms, label_names, kind):
    base, config = make_base("llama", tied=False, bias=True), make_config(kind)
    found = release(base, label_names, make_mechanisms, config)
    words = build_verbalizer(base.tokenizer, label_names, config.verbalizer)
    space = target_space(base.model, words, config.target, public_seed=0)
    assert target_dimension(base.model, space, config) == found.stacked[0].numel()

"""What a dry run says of time and memory, for variants with one training, two, and none."""

import dataclasses

import pytest
from tests_support import write_random_model

from understudy.evaluation.texts.encoder import load_encoder
from understudy.methods.conditional_generation import estimate
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.memory import resolve
from understudy.methods.conditional_generation.method import METHOD
from understudy.methods.method import Promise

SIZES = {"max_length": 20, "batch_size": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_random_model(tmp_path_factory.mktemp("models") / "random"))


@pytest.fixture(scope="module")
def encoder(small_encoder):
    """How long a run would take is asked, and not how well it is read."""
    return load_encoder(str(small_encoder))


@pytest.mark.parametrize("variant", ["multitask", "naive_pplm", "untrained"])
def test_time_of_every_part_and_a_predicted_peak(variant, model, encoder, monkeypatch):
    monkeypatch.setattr(estimate, "load_encoder", lambda **_: encoder)
    read, seconds = [], estimate._loss_seconds
    monkeypatch.setattr(
        estimate, "_loss_seconds", lambda *asked: read.append(asked[2].n) or 600.0 + 0 * seconds(*asked)
    )
    # Rows are read for the class means whatever is trained, and how long that takes on this machine is no matter here.
    reading = estimate._reading_seconds
    monkeypatch.setattr(estimate, "_reading_seconds", lambda: 0 * reading())
    sampling = {"max_new_tokens": 6}
    config = ConditionalGenerationConfig(
        variant=variant,
        model=model,
        samples=4,
        train={**SIZES, "epochs": 4000.0},
        generate={"sampling": sampling},
    )
    config = resolve(config)
    queries = METHOD.charge.queries(config, n=40, epsilon=8.0, delta=1e-3)
    found = METHOD.preparation.estimate(config, Promise(queries, 40, 8.0, 1e-3, ("bad", "good")))
    assert (found["expected_training_minutes"] > 0) == config.trains
    assert found["expected_generation_minutes"] >= 0
    assert read == ([40] if config.trains else []), "held-out rows are read where there is a model to read them"
    assert (found["expected_evaluation_minutes"] >= 10) == config.trains
    # The interpreter with torch and the model takes some 300 MiB, the training of so few rows hardly more.
    assert 200 < found["expected_peak_memory_mib"] < 4000


@pytest.mark.parametrize("draws", [1, 2])
def test_as_many_texts_are_expected_to_be_embedded_as_an_evaluation_embeds(draws, encoder, monkeypatch):
    """By an encoder of which each text takes a second; to select among draws the rows were embedded before."""
    seconds, exact = [0.0], encoder.encode

    def slow(texts):
        seconds[0] += len(texts)
        return exact(texts)

    monkeypatch.setattr(estimate.time, "perf_counter", lambda: seconds[0])
    monkeypatch.setattr(estimate, "load_encoder", lambda **_: dataclasses.replace(encoder, encode=slow))
    config = ConditionalGenerationConfig(variant="naive", samples=50, selection={"draws": draws})
    for n, trained_on, tested in ((1000, 1000, 200), (10_000_000, 50_000, 50_000)):
        found = estimate._evaluation_seconds(config, Promise((), n, 8.0, 1e-9, ("bad", "good")))
        few = 24  # texts that are measured once, to see how long everything else takes
        assert found == few + (draws == 1) * trained_on + tested + 2 * 50

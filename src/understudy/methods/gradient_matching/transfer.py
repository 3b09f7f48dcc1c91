"""Target models fine-tuned on synthetic, prompt-only and real rows: accuracy, gradient error, membership inference.

Paper: gradient matching (GRADMM), sections 5.1 and 5.3, Tables 1 and 2 (transfer), appendix D, Figures 8 and 9
(gradient error). One fine-tuning serves all three: the run's own model, tuned on synthetic rows, is tested on real
rows, its gradient is compared on its way, and it is attacked.

*Deviations*. The real rows are a random part of the training rows, which are also the audit's members and its positive
control; the null control is the model tuned on prompt-only text (untuned where there is none), which never met them.

Models that were tuned or tested on real rows are evaluation models and internal, as are the figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from transformers import AutoConfig

from understudy.auditing.membership import FEWEST_ROWS, Attack, loss_attack, membership_scores
from understudy.errors import InputError
from understudy.evaluation.audit_metrics import MIA_CONDITIONS
from understudy.evaluation.metrics import Metrics, merge
from understudy.evaluation.names import short_name
from understudy.evaluation.rows import Conditions, LabelledTexts
from understudy.evaluation.statistics.intervals import Interval, accuracy_interval, is_told_apart
from understudy.evaluation.utility.accuracy import score
from understudy.evaluation.utility.label_model import LabelModel, predict
from understudy.evaluation.utility.transfer import Callback, TransferConfig, WordsOf, fine_tune, load_label_model
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.methods.gradient_matching.gradients import all_gradients, head_gradient, relative_distance
from understudy.methods.gradient_matching.metric_names import METRIC_NAMES
from understudy.models.folders import model_folder
from understudy.quantities import rounded_up

Named = dict[str, float]
Intervals = dict[str, tuple[float, float]]

_OTHER_ROWS = "matching.gradient_error.real_rows"


def measure_transfer(
    conditions: Conditions,
    test: LabelledTexts,
    *,
    own: str,
    label_words: WordsOf,
    config: MatchingEvaluationConfig,
    device: str = "cpu",
) -> Metrics:
    """Fine-tune the run's own model and further ones in each condition, test on real rows; attack and compare its own.

    Args:
        conditions: synthetic rows, private rows, prompt-only rows or None.
        test: real rows that the method never saw.
        own: name or folder of the run's base model.
        label_words: builds the verbaliser for a tokenizer.
        config: sizes and constants.
        device: torch device.

    Returns:
        Figures of every target model that can be used; of one that cannot, why.
    """
    members, *_ = disjoint_rows(conditions.real, config.real_rows, seed=config.public_seed)
    small = Conditions(conditions.synthetic, members, conditions.prompt_only)
    tested = sample_rows(test, config.test_rows, seed=config.public_seed)
    found = [Metrics(values={"utility.transfer.real_rows": float(len(members.texts))})]
    seen: set[str] = set()
    for number, model in enumerate(target_models(own, config)):
        name = short_name(model)
        try:
            if name in seen:
                raise InputError(f"another target model is called {name!r} too")
            settings = _settings(model, config)
            callback, errors = _record_errors(conditions, config) if number == 0 else (None, None)
            tuned = _tuned(small, label_words, settings, callback, device=device, seed=config.public_seed)
        except InputError as error:
            found.append(Metrics(missing=(f"accuracy of the target model {name}: {error}",)))
            continue
        seen.add(name)
        found.append(_accuracies(name, tuned, tested, config))
        if errors is not None:
            untuned = load_label_model(label_words=label_words, config=settings, device=device)
            compared = Metrics(values=errors, missing=_fewer_others(conditions, errors), declared=METRIC_NAMES)
            found += [compared, _membership(tuned, untuned, members, test, config)]
    return merge(*found)


def target_models(own: str, config: MatchingEvaluationConfig) -> list[str]:
    """The run's own model, then the config's, each once, at most `most_models`."""
    return list(dict.fromkeys([own, *config.transfer_models]))[: config.most_models]


def sample_rows(rows: LabelledTexts, most: int, *, seed: int) -> LabelledTexts:
    """At most so many rows, drawn without replacement by a public seed."""
    return disjoint_rows(rows, most, seed=seed)[0]


def disjoint_rows(rows: LabelledTexts, *sizes: int, seed: int) -> list[LabelledTexts]:
    """Disjoint random parts of at most the sizes asked for, the last ones shorter or empty where rows run out."""
    order, labels = np.random.default_rng(seed).permutation(len(rows.texts)), np.asarray(rows.labels)
    bounds = np.cumsum([0, *sizes])
    parts = [order[start:end] for start, end in pairwise(bounds)]
    return [LabelledTexts([rows.texts[i] for i in part], labels[part], rows.label_names) for part in parts]


def detectable_epsilon(null: Interval, *, rows: int, level: float = 0.95) -> float | None:
    """Least epsilon whose largest possible advantage, (e^epsilon - 1) / (e^epsilon + 1), could be told from guessing.

    What guessing reaches by chance is half the width of the null control's interval, and no less than that of coins
    tossed for all rows: the interval is narrow where the best threshold calls nobody a member. None where it is 1 or
    more.

    Args:
        null: advantage of the null control.
        rows: members, and as many others.
        level: confidence.

    >>> round(detectable_epsilon(Interval(0.1, -0.1, 0.3), rows=100), 4)  # ln(1.2 / 0.8)
    0.4055
    """
    from scipy.stats import norm

    tossed = float(norm.ppf((1 + level) / 2)) / math.sqrt(2 * rows)
    half = max((null.high - null.low) / 2, tossed)
    return math.log((1 + half) / (1 - half)) if half < 1 else None


def _record_errors(conditions: Conditions, config: MatchingEvaluationConfig) -> tuple[Callback, Named]:
    """A callback for `fine_tune` that compares gradients with real rows' on the way, and what it found; internal."""
    rows = len(conditions.real.texts)
    # The reference gives way to them until it has half of the rows.
    compared = min(len(conditions.synthetic.texts), max(rows // 2, rows - config.gradient_rows))
    reference = min(config.gradient_rows, rows - compared)
    real, others = disjoint_rows(conditions.real, reference, compared, seed=config.public_seed)
    sides = {"": conditions.synthetic, "prompt_only.": conditions.prompt_only, "real.": others}
    values: Named = {_OTHER_ROWS: float(compared)}

    def callback(step: int, target: LabelModel) -> None:
        wanted = [head_gradient(target, real)]
        found = {
            side: relative_distance([head_gradient(target, rows)], wanted)
            for side, rows in sides.items()
            if rows is not None and len(rows.texts)
        }
        if config.full_gradient:
            gradients = (all_gradients(target, rows) for rows in (conditions.synthetic, real))
            found["full."] = relative_distance(*gradients)
        # Infinite where the real rows are fitted so well that their gradient vanishes.
        values.update(
            {f"matching.gradient_error.{side}step_{step}": x for side, x in found.items() if math.isfinite(x)}
        )

    return callback, values


def _fewer_others(conditions: Conditions, errors: Named) -> tuple[str, ...]:
    """That fewer other real rows than synthetic ones were compared; empty where they are as many."""
    synthetic, others = len(conditions.synthetic.texts), int(errors[_OTHER_ROWS])
    if others == synthetic:
        return ()
    return (
        f"gradient error of as many other real rows as synthetic ones: {others} stand beside {synthetic} synthetic "
        "rows, for the rest of the real rows are the reference",
    )


def _settings(model: str, config: MatchingEvaluationConfig) -> TransferConfig:
    """Constants of one target model; a share of its layers is frozen."""
    layers = AutoConfig.from_pretrained(model_folder(model), trust_remote_code=False).num_hidden_layers
    return TransferConfig(
        base=model,
        steps=config.steps,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        max_length=config.max_length,
        frozen_lower_layers=min(rounded_up(config.frozen_share * layers), layers - 1),
        measure_every=config.measure_every,
    )


def _tuned(
    conditions: Conditions,
    label_words: WordsOf,
    settings: TransferConfig,
    callback: Callback | None,
    *,
    device: str,
    seed: int,
) -> dict[str, LabelModel]:
    """Condition -> the model tuned on it; the callback follows the synthetic one."""
    return {
        condition: fine_tune(
            rows,
            label_words=label_words,
            config=settings,
            seed=seed,
            device=device,
            callback=callback if condition == "synthetic" else None,
        )
        for condition, rows in conditions.named().items()
    }


def _accuracies(
    name: str, tuned: Mapping[str, LabelModel], test: LabelledTexts, config: MatchingEvaluationConfig
) -> Metrics:
    values: Named = {}
    intervals: Intervals = {}
    for condition, target in tuned.items():
        correct = score(predict(target, test.texts), test.labels).correct
        found = accuracy_interval(correct, seed=config.public_seed, replicates=config.replicates, level=config.level)
        _put(values, intervals, f"utility.transfer.{name}.{condition}.accuracy", found)
    return Metrics(values=values, intervals=intervals)


def _membership(
    tuned: Mapping[str, LabelModel],
    untuned: LabelModel,
    members: LabelledTexts,
    test: LabelledTexts,
    config: MatchingEvaluationConfig,
) -> Metrics:
    """The attack on the synthetic condition between its controls."""
    others = sample_rows(test, len(members.texts), seed=config.public_seed)
    rows = min(len(members.texts), len(others.texts))
    if rows < FEWEST_ROWS:
        return Metrics(missing=(f"membership inference: {rows} rows per side; {FEWEST_ROWS} are the least",))
    members = sample_rows(members, rows, seed=config.public_seed)
    attacked = {"": tuned["synthetic"], "positive_control.": tuned["real"]}
    attacked["null_control."] = tuned.get("prompt_only", untuned)
    found: dict[str, Attack] = {
        condition: loss_attack(
            membership_scores(attacked[condition], members, others),
            seed=config.public_seed,
            replicates=config.replicates,
            level=config.level,
        )
        for condition in MIA_CONDITIONS
    }
    values: Named = {"audit.mia.rows": float(rows)}
    intervals: Intervals = {}
    for condition, attack in found.items():
        _put(values, intervals, f"audit.mia.{condition}advantage", attack.advantage)
        _put(values, intervals, f"audit.mia.{condition}auc", attack.auc)
    null = found["null_control."].advantage
    # Where the null control is told apart, members and others differ by more than membership.
    if not is_told_apart(*(intervals[f"audit.mia.null_control.{name}"] for name in ("advantage", "auc"))):
        least = detectable_epsilon(null, rows=rows, level=config.level)
        values |= {} if least is None else {"audit.mia.detectable_epsilon": least}
    return Metrics(values=values, intervals=intervals)


def _put(values: Named, intervals: Intervals, name: str, found: Interval) -> None:
    values[name] = found.value
    intervals[name] = (found.low, found.high)

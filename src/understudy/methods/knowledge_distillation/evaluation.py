"""What a finished run is worth: responses, pairs, answers; all of it internal.

The figures are: the loss of held-out responses under the base, the DP and the distilled model, and under the control,
which is distilled without the private half; where held-out responses are of a fixed set, such as labels, accuracy and
F1 of each model's own answers; where they are asked for, multiple choice behind public examples and tasks of
lm-evaluation-harness; MAUVE and Frechet distance of the pairs under three encoders that need no download (a
sentence encoder, mean states of the base model, TF-IDF with SVD); the distribution of IFD scores; a pairwise comparison
of answers by a judge that sees both orders; how many texts were cut. The held-out pairs that are scored are chosen by
the public seed. No figure is used for a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from understudy.compute import ON_CPU, Compute
from understudy.errors import InputError
from understudy.evaluation.answers.answer_set import Answered, score_answers
from understudy.evaluation.answers.multiple_choice import Question, questions_of
from understudy.evaluation.answers.pairwise import compare_answers, count_shortened, preference_judge
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.measure import (
    Embedder,
    measure_diversity,
    measure_fidelity,
    measure_identifiers,
    measure_memorization,
)
from understudy.evaluation.metrics import Metrics, merge
from understudy.evaluation.statistics.intervals import accuracy_interval, paired_bootstrap
from understudy.evaluation.statistics.paired import mean_difference, mean_interval
from understudy.evaluation.texts.encoder import FloatArray
from understudy.evaluation.texts.language_model import mean_hidden_states
from understudy.evaluation.texts.term_vectors import term_vectors
from understudy.frozen import Profile
from understudy.generation.instructions import EncodedPairs, Pair, PairEncoder
from understudy.generation.prompts import row_seeds
from understudy.generation.scoring import Floats, mean_response_losses
from understudy.methods.knowledge_distillation.choices import Chosen, choose, measure_chosen
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.filters import answer_tokens
from understudy.methods.knowledge_distillation.metric_names import METRIC_NAMES, SETS
from understudy.methods.knowledge_distillation.ranking import ifd_scores
from understudy.methods.knowledge_distillation.responses import count_cut_requests, load_professional, write_responses
from understudy.models.loading import LoadedModel
from understudy.progress import Progress

_TERMS = 32
# Of an answer of a fixed set: tokens beyond those of the longest one, and the nucleus, which is the likeliest token.
_BESIDE, _LIKELIEST = 4, 0.01


@dataclass(frozen=True)
class EvaluationInputs:
    """What is measured.

    Attributes:
        synthetic: pairs that are exported.
        prompt_only: pairs of the same steps with the base model.
        train: the client's pairs, private.
        test: held-out pairs, private.
        models: base, public_only, dp_only and target, each loaded when it is called.
        sent_bytes: size of the sealed adapter.
    """

    synthetic: Sequence[Pair] = field(repr=False)
    prompt_only: Sequence[Pair] = field(repr=False)
    train: Sequence[Pair] = field(repr=False)
    test: Sequence[Pair] = field(repr=False)
    models: Mapping[str, Callable[[], LoadedModel]] = field(repr=False)
    sent_bytes: int = 0


def evaluate_run(
    inputs: EvaluationInputs,
    *,
    config: KnowledgeDistillationConfig,
    profile: Profile,
    embedder: Embedder,
    compute: Compute = ON_CPU,
    progress: Progress | None = None,
) -> Metrics:
    """Every figure of a run.

    Args:
        inputs: pairs and models.
        config: of the run.
        profile: sizes of the evaluation.
        embedder: sentence encoder.
        compute: where the judge goes.
        progress: called with (parts measured, parts).
    """
    settings = EvaluationConfig(profile=profile)
    test = chosen_pairs(inputs.test, config)
    losses: dict[str, Floats] = {}
    answers: dict[str, list[str]] = {}
    choices: dict[str, Answered] = {}
    chosen: dict[str, Chosen] = {}
    questions = fixed_questions(test, inputs.test)
    parts = [Metrics(values={"crossing.bytes": float(inputs.sent_bytes)}, declared=METRIC_NAMES)]
    asked = [pair.instruction for pair in test[: config.measure.win_pairs]]
    for done, (name, load) in enumerate(inputs.models.items()):
        # One model at a time: two copies of a large one may not fit.
        model = load()
        encoder = PairEncoder(model.tokenizer, config.template)
        rows = encoder.encode(test, max_length=config.tune.max_length)
        losses[name] = mean_response_losses(model.model, rows)
        if questions:
            choices[name] = answer_questions(questions, model, config)
        chosen[name] = choose(questions, model, config)
        if name in ("dp_only", "target") and asked:
            answers[name] = write_responses(asked, model, _answering(config, model))
        if name == "dp_only":
            parts.append(measure_ifd(inputs, model, config))
        if name == "base":
            parts.append(measure_encoders(inputs, model, embedder, settings))
            parts.append(measure_cut(inputs.train, rows, asked, model=model, config=config))
        del model  # before the next one, or the judge, is loaded
        if progress is not None:
            progress(done + 1, len(inputs.models) + 1)
    parts.append(measure_responses(losses, settings))
    parts += [measure_choices(choices, settings), measure_chosen(chosen, settings)]
    if asked:
        parts.append(measure_wins(asked, answers, config, compute))
    texts = {name: [_text(pair) for pair in getattr(inputs, name)] for name in ("synthetic", "train", "test")}
    if texts["synthetic"]:
        parts.append(measure_diversity(texts["synthetic"], texts["test"], seed=settings.public_seed))
        compared = (texts["synthetic"], texts["train"], texts["test"])
        parts.append(measure_memorization(*compared, seed=settings.public_seed, level=settings.level))
        parts.append(measure_identifiers(*compared, level=settings.level))
    else:
        parts.append(Metrics(missing=("everything about the synthetic pairs: none was kept",)))
    if progress is not None:
        progress(len(inputs.models) + 1, len(inputs.models) + 1)
    return merge(*parts)


def chosen_pairs(pairs: Sequence[Pair], config: KnowledgeDistillationConfig) -> list[Pair]:
    """At most `measure.most_pairs` pairs by the public seed, in an order of its own: their file may be sorted."""
    (seed,) = row_seeds(config.public_seed, [0], purpose="distillation/measured")
    order = np.random.default_rng(seed).permutation(len(pairs))
    return [pairs[place] for place in order[: config.measure.most_pairs]]


def measure_cut(
    train: Sequence[Pair],
    scored: EncodedPairs,
    asked: Sequence[str],
    *,
    model: LoadedModel,
    config: KnowledgeDistillationConfig,
) -> Metrics:
    """How many private texts are cut: in training, where held-out responses are scored, and where answers are written.

    Args:
        train: the client's pairs.
        scored: the held-out pairs as they are scored.
        asked: held-out instructions that are answered.
        model: the base; all models cut alike.
        config: widths and templates.
    """
    encoder = PairEncoder(model.tokenizer, config.template)
    instructions, responses = encoder.count_cut(train, max_length=config.train.max_length)
    counts = {
        "train.instructions": instructions,
        "train.responses": responses,
        "test.instructions": scored.cut_instructions,
        "test.responses": scored.cut_responses,
    }
    if asked:
        counts["asked.instructions"] = count_cut_requests(asked, model, _answering(config, model))
    return Metrics(values={f"cut.{name}": float(count) for name, count in counts.items()}, declared=METRIC_NAMES)


def measure_responses(losses: Mapping[str, Floats], settings: EvaluationConfig) -> Metrics:
    """Losses of held-out responses by each model, and the distilled model's beside the others', pair by pair."""
    found = {f"responses.{name}.loss": mean_interval(values, **settings.bootstrap) for name, values in losses.items()}
    for other in (name for name in losses if name != "target"):
        found[f"responses.target_minus_{other}.loss"] = mean_difference(
            losses["target"], losses[other], **settings.bootstrap
        )
    return Metrics(
        values={name: one.value for name, one in found.items()} | {"responses.pairs": float(len(losses["target"]))},
        intervals={name: (one.low, one.high) for name, one in found.items()},
        declared=METRIC_NAMES,
    )


def fixed_questions(pairs: Sequence[Pair], held_out: Sequence[Pair]) -> list[Question]:
    """The pairs whose responses are of a fixed set, that of all held-out pairs; none where those do not repeat."""
    candidates = next((question.candidates for question in questions_of(held_out)), ())
    return questions_of(pairs, candidates=candidates)


def answer_questions(
    questions: Sequence[Question], model: LoadedModel, config: KnowledgeDistillationConfig
) -> Answered:
    """A model's answers in its own words, read against the fixed set; one that cannot be read is wrong."""
    answers = questions[0].candidates
    tokens = max(len(model.tokenizer.encode(answer, add_special_tokens=False)) for answer in answers)
    settings = _answering(config, model)
    professional = settings.professional
    room = min(tokens + _BESIDE, professional.sampling.max_new_tokens)
    sampling = professional.sampling.model_copy(update={"max_new_tokens": room, "top_p": _LIKELIEST})
    settings = settings.model_copy(update={"professional": professional.model_copy(update={"sampling": sampling})})
    texts = write_responses([question.instruction for question in questions], model, settings)
    return score_answers(texts, [question.answer for question in questions], answers=answers)


def measure_choices(choices: Mapping[str, Answered], settings: EvaluationConfig) -> Metrics:
    """Accuracy and F1 of each model's answers of the fixed set, and the distilled model's beside the others'."""
    if not choices:
        return Metrics()
    ours = choices["target"].correct
    found = {
        f"answers.{name}.accuracy": accuracy_interval(one.correct, **settings.bootstrap)
        for name, one in choices.items()
    }
    for name, one in choices.items():
        if name != "target":
            found[f"answers.target_minus_{name}.accuracy"] = paired_bootstrap(ours, one.correct, **settings.bootstrap)
    values = {name: one.value for name, one in found.items()} | {"answers.questions": float(len(ours))}
    for name, one in choices.items():
        values[f"answers.{name}.macro_f1"] = one.macro_f1
        values[f"answers.{name}.unread"] = one.unparsed / len(one.correct)
    intervals = {name: (one.low, one.high) for name, one in found.items()}
    return Metrics(values=values, intervals=intervals, declared=METRIC_NAMES)


def measure_ifd(inputs: EvaluationInputs, model: LoadedModel, config: KnowledgeDistillationConfig) -> Metrics:
    """The distribution of IFD scores of each set, by one model."""
    encoder = PairEncoder(model.tokenizer, config.template)
    sets = {"synthetic": inputs.synthetic, "prompt_only": inputs.prompt_only, "real": inputs.test}
    values: dict[str, float] = {}
    missing = []
    for name, pairs in sets.items():
        if not pairs:
            missing.append(f"IFD of {SETS[name]}: there are none")
            continue
        scores = ifd_scores(list(pairs), model, encoder=encoder, max_length=config.tune.max_length)
        values[f"ifd.{name}.mean"] = float(scores.mean())
        for percent in (10, 50, 90):
            values[f"ifd.{name}.q{percent}"] = float(np.quantile(scores, percent / 100))
    return Metrics(values=values, missing=tuple(missing), declared=METRIC_NAMES)


def measure_encoders(
    inputs: EvaluationInputs, base: LoadedModel, embedder: Embedder, settings: EvaluationConfig
) -> Metrics:
    """MAUVE and Frechet distance to held-out pairs under three encoders."""
    sets = [[_text(pair) for pair in pairs] for pairs in (inputs.synthetic, inputs.test, inputs.prompt_only)]
    if not sets[0]:
        return Metrics(missing=("MAUVE and Frechet distance: no synthetic pair was kept",))

    def states(texts: Sequence[str]) -> FloatArray:
        return mean_hidden_states(base, texts)

    found = [measure_fidelity(*(embedder(texts) for texts in sets), config=settings)]
    terms = term_vectors(sets[1], dimensions=_TERMS)
    for name, encode in (("states", states), ("tfidf", terms)):
        measured = measure_fidelity(encode(sets[0]), encode(sets[1]), config=settings)
        found.append(_renamed(measured, name))
    return merge(*found)


def _renamed(measured: Metrics, encoder: str) -> Metrics:
    """The same figures under the name of another encoder; how many rows there were is said once."""
    names = {
        name: name.replace("fidelity.", f"fidelity.{encoder}.", 1) for name in measured.values if "rows" not in name
    }
    return Metrics(
        values={new: measured.values[old] for old, new in names.items()},
        intervals={names[old]: pair for old, pair in measured.intervals.items() if old in names},
        missing=measured.missing,
        declared=METRIC_NAMES,
    )


def measure_wins(
    asked: Sequence[str], answers: Mapping[str, Sequence[str]], config: KnowledgeDistillationConfig, compute: Compute
) -> Metrics:
    """How often the professional model prefers the distilled model's answers; it sees each pair in both orders.

    It belongs in the server zone, so a client's machine may lack it, and the charge is paid by then.
    """
    if config.professional.url is not None:
        return Metrics(
            missing=("the comparison of answers: the professional model is served, and judges nothing there",)
        )
    try:
        judge = load_professional(config.professional, compute)
    except InputError as error:
        return Metrics(missing=(f"the comparison of answers, which the professional model judges: {error}",))
    encoder = PairEncoder(judge.tokenizer, config.professional.template)
    both = answers["target"], answers["dp_only"]
    try:
        compared = compare_answers(asked, *both, judge=preference_judge(judge, encoder, answer_tokens(judge)))
    except InputError as error:
        return Metrics(missing=(f"the comparison of answers: {error}",))
    return Metrics(
        values={
            "wins.target_over_dp_only": compared.rate,
            "wins.undecided": compared.undecided,
            "wins.pairs": float(len(asked)),
            "wins.shortened": float(count_shortened(judge, encoder, asked, *both)),
        },
        intervals={"wins.target_over_dp_only": compared.interval},
        declared=METRIC_NAMES,
    )


def _answering(config: KnowledgeDistillationConfig, model: LoadedModel) -> KnowledgeDistillationConfig:
    """Settings by which a model of ours answers: in its own template, within its context."""
    context = int(getattr(model.model.config, "max_position_embeddings", 0) or 4096)
    sampling = config.professional.sampling
    room = min(sampling.max_new_tokens, context // 2)
    own = config.professional.model_copy(
        update={"template": config.template, "sampling": sampling.model_copy(update={"max_new_tokens": room})}
    )
    return config.model_copy(update={"professional": own})


def _text(pair: Pair) -> str:
    return f"{pair.instruction}\n{pair.response}"

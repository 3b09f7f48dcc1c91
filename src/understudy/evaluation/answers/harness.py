"""Accuracy of a model on tasks of lm-evaluation-harness (Gao et al. 2024), which the extra `harness` brings.

A task's data are public and come from the hub, unless they lie in its cache. They are fetched where the tasks are
checked, before anything is charged. A metric that is a program on the hub is not fetched and not run: no task that has
an accuracy needs one.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from understudy.errors import InputError
from understudy.evaluation.answers.config import AnswersConfig
from understudy.evaluation.names import short_name

_BATCH = 16
_MISSING = (
    "lm-evaluation-harness is missing: expected the extra `harness`; install it with `pip install "
    "'understudy[harness]'`, or leave evaluation.harness_tasks out"
)


def by_harness(
    model: Any, tokenizer: Any, tasks: Sequence[str], *, shots: int = 0, limit: int | None = None
) -> dict[str, float]:
    """Accuracy of tasks, normalised by length where a task has that.

    Args:
        model: causal language model.
        tokenizer: of the model.
        tasks: names such as `arc_easy` and `mmlu`, or paths of task files.
        shots: answered questions of the task's own before each one.
        limit: questions of each task, at most.

    Returns:
        Task -> accuracy, with those of a group's parts; a task that is measured by something else is left out.

    Raises:
        InputError: the extra is not installed.
    """
    manager = _manager(tasks)
    with _quietly():
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM

        found = simple_evaluate(
            model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=_BATCH),
            tasks=list(tasks),
            num_fewshot=shots,
            limit=limit,
            task_manager=manager,
            bootstrap_iters=0,
            log_samples=False,
            # The harness would set the seeds of the whole process.
            random_seed=None,
            numpy_random_seed=None,
            torch_random_seed=None,
        )
    results = (found or {}).get("results", {})
    accuracies = {task: values.get("acc_norm,none", values.get("acc,none")) for task, values in results.items()}
    return {task: float(value) for task, value in accuracies.items() if value is not None}


def measured_by_harness(model: Any, tokenizer: Any, settings: AnswersConfig) -> tuple[dict[str, float], str | None]:
    """Accuracy by the task's short name, and what kept the measurement from its end.

    A run has paid by then, so a hub that is away ends no evaluation: the reason takes the place of the figures.
    """
    if not settings.harness_tasks:
        return {}, None
    try:
        found = by_harness(
            model, tokenizer, settings.harness_tasks, shots=settings.shots, limit=settings.harness_questions
        )
    # Whatever the harness raises on tasks, data and models that it was not written for.
    except Exception as error:
        return {}, _in_one_line(error)
    if not found:
        return {}, "none of the tasks has an accuracy"
    return {short_name(task): value for task, value in found.items()}, None


def check_tasks(settings: AnswersConfig) -> None:
    """Load the tasks and their data, before anything is charged.

    Raises:
        InputError: the extra is missing, or a task is unknown or its data are neither here nor to be had.
    """
    if not settings.harness_tasks:
        return
    manager = _manager(settings.harness_tasks)
    for task in settings.harness_tasks:
        try:
            with _quietly():
                manager.load([task])
        # Whatever the harness and the library of data sets raise: KeyError, ConnectionError and many more.
        except Exception as error:
            raise InputError(
                f"evaluation.harness_tasks: expected a task of lm-evaluation-harness whose data are here or can be "
                f"fetched, found {task!r} ({_in_one_line(error)}); check the name and the network, or leave it out"
            ) from error


def harness_digest(settings: AnswersConfig) -> str:
    """What identifies the tasks: names, contents of task files, the harness's version; empty without any.

    Raises:
        InputError: the extra is missing.
    """
    if not settings.harness_tasks:
        return ""
    try:
        facts = [version("lm_eval"), *((task, _content(task)) for task in settings.harness_tasks)]
    except PackageNotFoundError as error:
        raise InputError(_MISSING) from error
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _content(task: str) -> str:
    path = Path(task)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _manager(tasks: Sequence[str]) -> Any:
    """Knows the tasks; the index of those that come with the harness, which takes long, only where one is named."""
    try:
        with _quietly():
            from lm_eval.tasks import TaskManager

            return TaskManager(include_defaults=not all(Path(task).is_file() for task in tasks))
    except ImportError as error:
        raise InputError(_MISSING) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings of a library that imports much, and without programs of the hub."""
    import evaluate

    asked: list[str] = []

    def not_run(metric: str, *_: object, **__: object) -> NoReturn:
        asked.append(metric)
        raise InputError(f"metric {metric!r}: a program on the hub, which is not run")

    loads = evaluate.load
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluate.load = not_run
        try:
            yield
        finally:
            evaluate.load = loads
            # The harness takes the error for a metric that there is not, and goes on to another error.
            if asked:
                not_run(asked[0])


def _in_one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {textwrap.shorten(words, width=160, placeholder=' ...')}"

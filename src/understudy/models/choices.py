"""What was chosen on public text before a charge, kept so that the same question has the same answer the next time.

A choice is a function of public values, but its last bits hang on how a processor rounds. A run that is repeated must
find the settings that it was charged for, so the first answer stays, in a file named by the question.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy.durable import write_atomically
from understudy.frozen import MethodSettings
from understudy.models.folders import folder_digest, model_folder

_log = logging.getLogger(__name__)


def question_of(settings: MethodSettings, label_names: Sequence[str], *, of: str, version: int) -> dict[str, Any]:
    """The part of a question that every choice about labels on a model's own texts has in common.

    Args:
        settings: base model, words about the rows, public seed.
        label_names: every label, public.
        of: what is chosen, in words.
        version: of the way it is chosen.
    """
    return {
        "of": of,
        "version": version,
        "model": folder_digest(model_folder(settings.model)),
        "labels": list(label_names),
        "about": settings.about,
        "seed": settings.public_seed,
    }


def remembered(question: Mapping[str, Any], make: Callable[[], dict[str, Any]], *, folder: Path) -> dict[str, Any]:
    """The answer to a question about public values; asked once, and said before, for it can take minutes.

    Args:
        question: everything that the answer depends on, as JSON values, public; under `of` what is chosen, in words.
        make: finds the answer, as JSON values.
        folder: where answers are kept.
    """
    asked = json.dumps(question, sort_keys=True)
    place = folder / f"{hashlib.sha256(asked.encode()).hexdigest()}.json"
    try:
        kept = json.loads(place.read_text())
    except (OSError, ValueError):
        kept = {}
    if isinstance(kept, dict) and kept.get("question") == json.loads(asked):
        answer: dict[str, Any] = kept["answer"]
        return answer
    _log.info("choosing %s on texts that the model itself writes; kept for later runs of it", question["of"])
    answer = json.loads(json.dumps(make()))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(place, (json.dumps({"question": json.loads(asked), "answer": answer}, indent=1) + "\n").encode())
    return answer

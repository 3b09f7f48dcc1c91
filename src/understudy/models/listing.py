"""The named base models as `understudy models list` and `understudy doctor` show them. No torch, no network."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from understudy.errors import InputError, system_error_in_words
from understudy.models.named import NAMED_MODELS, WEIGHTS, HubOrigin, NamedModel, Origin, PackageOrigin
from understudy.models.stored import check_files, find_named


class ListedModel(BaseModel):
    """A named model and its state on this machine.

    Attributes:
        name: as given to `--model`.
        parameters: numbers in its weights.
        licence: SPDX name.
        training_data: in a few words.
        origins: where it can be had from, in words.
        weights: kind of origin -> sha256 (hex) of the weights that it gives.
        state: where the files on this machine came from, `no` where there are none, or what is wrong with them.
        folder: where the files are; None where there are none, or damaged ones.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    parameters: int
    licence: str
    training_data: str
    origins: tuple[str, ...]
    weights: dict[str, str]
    state: str
    folder: str | None


def listed_models() -> list[ListedModel]:
    """Every named model; the files that are here are read and checked."""
    return [_listed(model) for model in NAMED_MODELS.values()]


def _listed(model: NamedModel) -> ListedModel:
    state, folder = "no", None
    try:
        found = find_named(model)
        if found is not None:
            check_files(found[0], found[1].files, model)
            state, folder = found[1].kind, str(found[0])
    except InputError as error:
        state = str(error)
    except OSError as error:
        state = f"{system_error_in_words(error)}; fix it or set UNDERSTUDY_MODELS to another folder"
    return ListedModel(
        name=model.name,
        parameters=model.parameters,
        licence=model.licence,
        training_data=model.training_data,
        origins=tuple(map(_in_words, model.origins)),
        weights={origin.kind: origin.files[WEIGHTS] for origin in model.origins},
        state=state,
        folder=folder,
    )


def _in_words(origin: Origin) -> str:
    if isinstance(origin, HubOrigin):
        return f"hub {origin.repository}"
    if isinstance(origin, PackageOrigin):
        return f"package {origin.package}"
    return "shipped"

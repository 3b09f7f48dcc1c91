"""Bounds of settings: pydantic keeps one bound of each kind of a field, so that none may name two."""

import importlib
import pkgutil
from collections import Counter

import pytest
from pydantic import BaseModel

import understudy
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.quantities import rounded_up


def models():
    """Every pydantic model of the package."""
    for module in pkgutil.walk_packages(understudy.__path__, "understudy."):
        importlib.import_module(module.name)
    found, new = set(), {BaseModel}
    while new:
        new = {sub for model in new for sub in model.__subclasses__()} - found
        found |= new
    return [model for model in found if model.__module__.startswith("understudy.")]


def test_no_field_names_two_bounds_of_one_kind():
    twice, bounded = [], 0
    for model in models():
        for name, field in model.model_fields.items():
            kinds = Counter(type(part).__name__ for part in field.metadata)
            bounded += bool(kinds)
            twice += [f"{model.__name__}.{name}: {kind}" for kind, count in kinds.items() if count > 1]
    assert twice == []
    assert bounded > 100, "no bounds were found: the check would be vacuous"


@pytest.mark.parametrize("wrong", [{"real_rows": 1}, {"splits": 101}, {"replicates": 99}, {"steps": 0}])
def test_bounds_hold_on_both_sides(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MatchingEvaluationConfig(**wrong)


@pytest.mark.parametrize("n", [1, 3, 25, 100, 1000, 12345])
def test_a_share_of_rows_is_rounded_up_as_if_it_were_exact(n):
    """Of every share in hundredths, by whole numbers; in floats many of the products lie above the exact ones."""
    assert [rounded_up(hundredths / 100 * n) for hundredths in range(1, 101)] == [
        -(-hundredths * n // 100) for hundredths in range(1, 101)
    ]

"""A request has room for names and paths, not for rows, and a refusal does not repeat what it refuses."""

import math
import re

import jsonschema
import numpy as np
import pytest
from pydantic import ValidationError

from understudy.errors import InputError
from understudy.privacy.accounting import default_delta
from understudy.runs.evaluations.request import EvaluateRequest
from understudy.runs.request import (
    LEAST_EPSILON,
    LONGEST_TEXT,
    MOST_EPSILON,
    RunRequest,
    check_delta,
    check_epsilon,
    checked_request,
    request_of,
)

CANARY = "patient zibby has an ailment"
GOOD = {"data": "rows.csv", "source": "ward", "out": "out", "epsilon": 3.0}


@pytest.mark.parametrize(
    "field", ["data", "out", "test", "source", "text_column", "label_column", "client_column", "system_column"]
)
@pytest.mark.parametrize(
    "value",
    [
        "",
        "  ",
        f"{CANARY}\n{CANARY}",
        f"{CANARY}\r{CANARY}",
        f"{CANARY}\u2028{CANARY}",
        f"{CANARY}\0",
        CANARY * 200,
        [CANARY],
        {CANARY: CANARY},
        CANARY.encode() * 200,
    ],
    ids=["empty", "blank", "lines", "returns", "separators", "nul", "long", "list", "dict", "bytes"],
)
def test_what_is_no_name_is_refused_without_being_shown(field, value):
    with pytest.raises(InputError, match=f"--{field.replace('_', '-')}: ") as refused:
        request_of(GOOD | {field: value})
    assert "zibby" not in repr(refused.value)
    assert refused.value.__context__ is None, "nor in what a traceback shows"
    with pytest.raises(ValidationError) as raw:
        RunRequest.model_validate(GOOD | {field: value})
    assert "zibby" not in str(raw.value)


@pytest.mark.parametrize("kind", [RunRequest, EvaluateRequest])
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({0: "bad", 1: "good"}, {"0": "bad", "1": "good"}),
        ({np.int64(0): "bad", "1": "good"}, {"0": "bad", "1": "good"}),
        ({False: "bad", True: "good"}, {"False": "bad", "True": "good"}),
        (["bad", "good"], {"bad": "bad", "good": "good"}),
        ((0, 1), {"0": "0", "1": "1"}),
        (None, None),
    ],
)
def test_values_of_labels_may_be_numbers_and_booleans(kind, given, kept):
    places = {"synthetic": "a.csv", "real": "b.csv", "test": "c.csv", "out": "out"}
    fields = GOOD if kind is RunRequest else places
    assert checked_request(kind, fields | {"label_names": given}).label_names == kept


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("bad,good", "value in the label column -> name.*for example"),
        ([0.0, 1.0], "text, whole numbers or booleans"),
        (["bad", "bad"], "each value once.*leave one"),
        ({0.0: "bad", 1.0: "good"}, "text, whole numbers or booleans"),
        ({0: "bad", "0": "good"}, "each value once.*leave one"),
    ],
)
def test_label_names_of_another_kind_are_refused_with_an_example(given, told):
    with pytest.raises(InputError, match=f"--label-names: .*{told}"):
        request_of(GOOD | {"label_names": given})


@pytest.mark.parametrize(
    "fields",
    [
        {"label_names": {f"{CANARY} {i}": "x" for i in range(2000)}},
        {"overrides": [CANARY * 200]},
        {"overrides": [CANARY] * 1000},
        {"rows": CANARY},
        {CANARY: 1},
        {"units": CANARY},
        {"epsilon": CANARY},
    ],
    ids=["labels", "long override", "overrides", "unknown", "unknown row", "units", "epsilon"],
)
def test_no_other_field_holds_rows(fields):
    with pytest.raises(InputError) as refused:
        request_of(GOOD | fields)
    assert "zibby" not in str(refused.value)


@pytest.mark.parametrize("field", ["data", "out", "test", "model"])
@pytest.mark.parametrize("value", ["x" * 5000, "/".join(["folder"] * 800), "a" * 256, "~nobody-of-this-name/rows.csv"])
def test_paths_that_no_file_system_takes_are_refused(field, value):
    with pytest.raises(InputError, match=f"--{field}: expected"):
        request_of(GOOD | {field: value})


@pytest.mark.parametrize(
    "value", ["/".join(["f" * 99] * 40), "a b/c (1).csv", "sample:reviews", "owner/name#test", "ü"]
)
def test_paths_and_names_are_kept_as_they_are(value):
    assert request_of(GOOD | {"data": value}).data == value
    assert len(value) < LONGEST_TEXT


@pytest.mark.parametrize("epsilon", [1e-300, 9e-5, 100.1, 1e5, 1e308])
def test_an_epsilon_that_no_accountant_bears_is_refused(epsilon):
    with pytest.raises(InputError, match=re.escape(f"--epsilon {epsilon:g}: expected at ")):
        check_epsilon(epsilon)


@pytest.mark.parametrize("epsilon", [LEAST_EPSILON, 0.1, 8.0, MOST_EPSILON, math.inf])
def test_any_other_epsilon_is_taken(epsilon):
    assert check_epsilon(epsilon) == epsilon


def test_prefect_takes_every_epsilon_that_a_request_is_written_with():
    """Prefect checks a deployment's parameters against the schema, and JSON has no infinite number."""
    schema = RunRequest.model_json_schema()
    for epsilon in (3.0, math.inf, None):
        written = RunRequest(**GOOD | {"epsilon": epsilon}).model_dump(mode="json")
        jsonschema.validate(written, schema)
        assert RunRequest.model_validate(written).epsilon == epsilon
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(GOOD | {"epsilon": [3]}, schema)


@pytest.mark.parametrize(
    ("given", "epsilon"), [("3", 3.0), ("1e-1", 0.1), ("inf", math.inf), ("three", None), ("", None)]
)
def test_an_epsilon_in_quotes_is_read_and_refused_in_our_own_words(given, epsilon):
    """Of any that was not "inf", the answer of Prefect was "'inf' was expected"."""
    jsonschema.validate(GOOD | {"epsilon": given}, RunRequest.model_json_schema())
    if epsilon is not None:
        assert RunRequest.model_validate(GOOD | {"epsilon": given}).epsilon == epsilon
    else:
        with pytest.raises(InputError, match=r'--epsilon: expected a number from 0.0001 to 100, or "inf"'):
            request_of(GOOD | {"epsilon": given})


@pytest.mark.parametrize("given", [["bad", "good"], [0, 1], [False, True], {"0": "bad", "1": "good"}, None])
def test_prefect_takes_label_names_in_each_way_that_a_request_does(given):
    """It checks a deployment's parameters first, and said of a list that it is not valid under any given schema."""
    found = RunRequest.model_validate(GOOD | {"label_names": given})
    schema = RunRequest.model_json_schema()
    for written in (given, found.model_dump(mode="json")["label_names"]):
        jsonschema.validate(GOOD | {"label_names": written}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(GOOD | {"label_names": [["bad"]]}, schema)


@pytest.mark.parametrize(("delta", "fits"), [(1e-9, True), (9e-4, True), (9e-10, False), (1e-3, False), (0.0, False)])
def test_delta_is_below_one_over_n_and_above_what_rounding_counts_for(delta, fits):
    """At 1e-14 epsilon of a hundred thousand steps would be stated 6 % too low."""
    if fits:
        assert check_delta(delta, n=1000) == delta
    else:
        with pytest.raises(InputError, match="1e-09 <= delta < 1/n"):
            check_delta(delta, n=1000)


def test_the_default_delta_of_many_rows_is_one_that_is_accepted():
    for n in (3, 1000, 10**8, 9 * 10**8):
        assert check_delta(default_delta(n), n=n) == default_delta(n)

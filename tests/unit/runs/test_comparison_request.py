"""What a comparison may be asked, and the runs that it makes of it."""

import math
from itertools import product

import pytest

from understudy.errors import InputError
from understudy.runs.comparisons.cells import cells_of
from understudy.runs.comparisons.request import MOST_RUNS, compare_request_of

METHODS = ("conditional-generation", "gradient-matching")


def request(**changed):
    run = {"data": "sample:reviews", "source": "reviews", "out": "out", "budget": {"epsilon": 50, "delta": 1e-4}}
    fields = {"methods": METHODS, "epsilons": (1, 0.5), "seeds": (0, 7), "run": run | changed.pop("run", {})}
    return compare_request_of(fields | changed)


def test_every_combination_is_one_run_with_a_folder_and_a_seed_of_its_own():
    cells = cells_of(request(epsilons=(1.0, 0.5, math.inf)))
    assert [(cell.method, cell.epsilon, cell.seed) for cell in cells] == list(
        product(METHODS, (1.0, 0.5, math.inf), (0, 7))
    )
    assert len({cell.request.out for cell in cells}) == len(cells)
    cell = cells[3]
    assert (cell.name, cell.group) == ("conditional-generation-eps0.5-seed7", "conditional-generation-eps0_5")
    assert cell.request.out == f"out/{cell.name}"
    assert cell.request.epsilon == 0.5
    assert cell.request.overrides == ("public_seed=7",)
    assert cells[4].name == "conditional-generation-epsinf-seed0"
    assert all(cell.request.budget is None for cell in cells), "the same run whether --budget was given or not"


def test_a_setting_that_begins_with_a_methods_name_is_for_that_method_alone():
    cells = cells_of(request(run={"overrides": ("samples=9", "gradient-matching.matching.rounds=3")}))
    assert {cell.method: cell.request.overrides[:-1] for cell in cells} == {
        "conditional-generation": ("samples=9",),
        "gradient-matching": ("samples=9", "matching.rounds=3"),
    }


REFUSED = {
    "METHOD .*twice": {"methods": ("gradient-matching", "gradient-matching")},
    "method='other'": {"methods": ("other",)},
    "METHOD: ": {"methods": ()},
    "--epsilon: ": {"epsilons": ()},
    "--epsilon 1,1: .*twice": {"epsilons": (1, 1.0)},
    "--epsilon 0: ": {"epsilons": (0,)},
    "--epsilon nan: ": {"epsilons": (math.nan,)},
    "--seeds: ": {"seeds": ()},
    "--seeds: .*greater than or equal to 0": {"seeds": (-1,)},
    "--seeds: .*less than 1000000": {"seeds": (1_000_000,)},
    "--seeds 3,3: .*3 twice": {"seeds": (3, 3)},
    f"at most {MOST_RUNS} runs .*104": {"seeds": tuple(range(26))},
    "--set public_seed=3: .*--seeds": {"run": {"overrides": ("public_seed=3",)}},
    "--set gradient-matching.public_seed=3: .*--seeds": {"run": {"overrides": ("gradient-matching.public_seed=3",)}},
    "--set knowledge-distillation.samples=3: .*method that is compared": {
        "run": {"overrides": ("knowledge-distillation.samples=3",)}
    },
    "run.epsilon": {"run": {"epsilon": 3}},
    "run.share_real_rows": {"run": {"share_real_rows": True}},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_makes_no_comparison_is_refused_by_the_option(message):
    with pytest.raises(InputError, match=message) as refused:
        cells_of(request(**REFUSED[message]))
    assert "\n" not in str(refused.value)


def test_a_refusal_does_not_repeat_the_value():
    with pytest.raises(InputError) as refused:
        request(seeds=("secret words",))
    assert "secret" not in str(refused.value)

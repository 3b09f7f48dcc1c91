"""A small private table, a random base model, and the request that every flow test runs."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests_support import SMALL, write_random_model

from understudy.requests import Budget, RunRequest


@pytest.fixture(scope="session")
def random_model_folder(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("model") / "random")


@pytest.fixture(scope="session")
def private_rows():
    """Rows with words that occur nowhere else, so that a leak is a leak."""
    texts = [
        f"patient zq{i}x met doctor vw{i * 7}k on ward {i % 9} about the {'dreadful' if i % 2 else 'lovely'} ailment "
        f"number {i} and was told to rest"
        for i in range(60)
    ]
    return pa.table({"text": texts, "label": ["bad" if i % 2 else "good" for i in range(60)]})


@pytest.fixture
def data(tmp_path, private_rows):
    path = tmp_path / "rows.parquet"
    pq.write_table(private_rows, path)
    return path


@pytest.fixture
def request_of(tmp_path, data, random_model_folder):
    """Make a request with some fields changed."""

    def make(**given) -> RunRequest:
        fields = {
            "data": str(data),
            "source": "ward",
            "out": str(tmp_path / "out"),
            "epsilon": 3.0,
            "budget": Budget(epsilon=8, delta=0.01),
            "model": str(random_model_folder),
            "samples": 12,
            "overrides": SMALL,
        }
        return RunRequest.model_validate(fields | given)

    return make

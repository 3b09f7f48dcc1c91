"""What an evaluation is asked: public values, described for a form, refused without a value that may be private."""

import pytest
from pydantic import ValidationError

from understudy.errors import InputError, ZoneError
from understudy.runs.evaluations.inputs import check_evaluation
from understudy.runs.evaluations.request import EvaluateRequest
from understudy.runs.request import checked_request

FIELDS = {"synthetic": "made.csv", "real": "real.csv", "test": "test.csv", "out": "out"}


def test_a_form_describes_every_field_and_takes_no_other():
    schema = EvaluateRequest.model_json_schema()
    assert schema["additionalProperties"] is False
    assert all(field["description"] for field in schema["properties"].values())
    assert set(schema["required"]) == FIELDS.keys()


def test_a_request_cannot_be_changed_and_comes_back_from_json():
    request = checked_request(EvaluateRequest, FIELDS | {"label_names": {"0": "no", "1": "yes"}})
    assert EvaluateRequest.model_validate_json(request.model_dump_json()) == request
    with pytest.raises(ValidationError, match="frozen"):
        request.out = "other"


@pytest.mark.parametrize(
    ("given", "option"),
    [({"real": ["zibby"]}, "--real"), ({"label_names": {"zibby": 7}}, "--label-names"), ({"zibby": 1}, "zibby")],
)
def test_a_refusal_names_the_option_and_no_value(given, option):
    with pytest.raises(InputError, match=option) as refused:
        checked_request(EvaluateRequest, FIELDS | given)
    assert "zibby" not in str(refused.value) or option == "zibby"


@pytest.mark.parametrize("field", ["synthetic", "real", "test", "out", "text_column", "label_column"])
@pytest.mark.parametrize("given", ["", " ", "a\nb", "x" * 5000])
def test_what_names_nothing_is_refused_as_of_a_run(field, given):
    with pytest.raises(InputError, match=f"--{field.replace('_', '-')}: expected a path or a name"):
        checked_request(EvaluateRequest, FIELDS | {field: given})


@pytest.mark.parametrize("place", ["~no-such-user-here/out", "out/" + "x" * 300])
def test_a_folder_that_can_be_no_path_is_refused(place):
    with pytest.raises(InputError, match="--out: expected "):
        checked_request(EvaluateRequest, FIELDS | {"out": place})


def test_the_server_zone_reads_no_real_rows(monkeypatch, tmp_path):
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    with pytest.raises(ZoneError, match="client zone"):
        check_evaluation(checked_request(EvaluateRequest, FIELDS | {"out": str(tmp_path / "out")}))
    assert not (tmp_path / "out").exists()


def test_no_evaluation_begins_in_the_folder_that_a_run_hands_over(tmp_path):
    export = tmp_path / "run" / "export"
    export.mkdir(parents=True)
    (export / "statement.json").write_text("{}")
    with pytest.raises(InputError, match=r"--out .*choose one outside of it"):
        check_evaluation(checked_request(EvaluateRequest, FIELDS | {"out": str(export)}))

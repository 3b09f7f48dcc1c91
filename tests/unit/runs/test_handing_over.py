import pytest

from understudy.runs.handing_over import waiting


def test_what_waits_is_there_within_and_gone_after_it_whoever_took_it():
    among: dict[str, int] = {"other": 1}
    with waiting(among, "key", 2) as found:
        assert (found, among) == (2, {"other": 1, "key": 2})
    with waiting(among, "key", 2):
        assert among.pop("key") == 2, "taken once"
    assert among == {"other": 1}


def test_nothing_is_left_where_the_flow_fails():
    among: dict[str, int] = {}
    with pytest.raises(ValueError, match="flow"), waiting(among, "key", 2):
        raise ValueError("flow")
    assert among == {}

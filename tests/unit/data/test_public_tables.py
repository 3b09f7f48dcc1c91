import pytest

from understudy.data.public_tables import check_as_begun, pairs_digest, read_pairs
from understudy.errors import InputError


@pytest.mark.parametrize("setting", ["carriers", "seed.pairs"])
def test_pairs_are_those_that_the_run_began_with(setting, tmp_path):
    """They were searched for private rows before the charge; a run reads them again when its experts are trained."""
    public = tmp_path / "public.csv"
    public.write_text("instruction,response\na film,good\n")
    digest = pairs_digest(str(public), setting=setting)
    assert read_pairs(str(public), setting=setting, digest=digest).num_rows == 1
    public.write_text("instruction,response\na private text,good\n")
    assert read_pairs(str(public), setting=setting).num_rows == 1
    with pytest.raises(InputError, match=rf"^{setting}={public}: expected the pairs that the run began with"):
        read_pairs(str(public), setting=setting, digest=digest)


def test_a_table_that_cannot_be_read_is_told_by_its_setting(tmp_path):
    with pytest.raises(InputError, match=r"^carriers=.*none\.csv: "):
        read_pairs(str(tmp_path / "none.csv"), setting="carriers")


def test_what_a_run_did_not_look_at_is_not_compared():
    check_as_begun("ab", of="texts", named="seeds=x", begun="")
    check_as_begun("ab", of="texts", named="seeds=x", begun="ab")
    with pytest.raises(InputError, match=r"^seeds=x: expected the texts .*\(sha256 cd\.\.\.\), found others \(ab"):
        check_as_begun("ab", of="texts", named="seeds=x", begun="cd")

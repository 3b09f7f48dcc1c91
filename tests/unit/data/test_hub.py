"""Data sets of the hub: where their rows lie once they are fetched, and what is told when they cannot be read."""

import subprocess
import sys

import pytest
from data_set_hub import DataSetHub
from full_disk import files_of_at_most
from homes import bare_environment, home_environment

from understudy.data.readers import check_source, read_source
from understudy.errors import InputError

SECRET = "the patient is Zibby"
FILES = {"train.csv": f"text,label\n{SECRET},0\nfine,1\n".encode(), "test.csv": b"text,label\nlater,1\n"}
READ = "from understudy.data.readers import read_source; assert read_source('hub:someone/rows').num_rows == 2"


@pytest.fixture
def hub(monkeypatch):
    with DataSetHub(dict(FILES)) as hub:
        for name, value in hub.environment.items():
            monkeypatch.setenv(name, value)
        yield hub


def test_what_is_fetched_lies_under_the_private_root_alone_and_closed_to_others(hub, home, tmp_path):
    user = tmp_path / "user"
    user.mkdir()
    # The libraries' default places, whatever this session says of them.
    kept = {
        name: value for name, value in bare_environment().items() if not name.startswith(("HF_", "HUGGING", "XDG_"))
    }
    environment = kept | home_environment(home) | hub.environment | {"HOME": str(user)}
    subprocess.run([sys.executable, "-c", READ], env=environment, check=True, timeout=100)
    rows = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert rows
    private = home / "private"
    assert [path for path in rows if not path.is_relative_to(private)] == []
    assert [path for path in user.rglob("*") if path.is_file()] == []
    assert [path for path in (*rows, *private.rglob("*/")) if path.stat().st_mode & 0o077] == []


def test_a_split_is_read_and_later_without_the_hub(hub, monkeypatch):
    assert read_source("hub:someone/rows#test").to_pylist() == [{"text": "later", "label": 1}]
    asked = len(hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    assert read_source("hub:someone/rows").to_pylist() == [{"text": SECRET, "label": 0}, {"text": "fine", "label": 1}]
    assert len(hub.requests) == asked


def test_rows_that_cannot_be_read_are_refused_without_their_text(hub, capfd):
    hub.files["README.md"] = b"---\ndataset_info:\n  features:\n  - {name: text, dtype: int64}\n---\n"
    with pytest.raises(InputError, match=r"hub:someone/rows: .* found \w*Error; .*Parquet") as caught:
        read_source("hub:someone/rows")
    assert "Zibby" not in str(caught.value)
    assert "Zibby" not in "".join(capfd.readouterr())


def test_a_full_disk_is_not_told_as_a_wrong_name(hub, home):
    with files_of_at_most(100), pytest.raises(InputError, match=r"hub:someone/rows: .*private.*make room") as caught:
        read_source("hub:someone/rows")
    assert "spelling" not in str(caught.value)
    assert read_source("hub:someone/rows").num_rows == 2


def test_a_file_of_the_working_directory_is_not_taken_for_a_library(hub, tmp_path):
    (tmp_path / "datasets.py").write_text("raise SystemExit('the wrong datasets')")
    assert read_source("hub:someone/rows").num_rows == 2


@pytest.mark.parametrize("has_folder", [False, True])
@pytest.mark.parametrize("spec", ["clinic/berlin", "clinic/berlin#train", "clinic/berlin.v2", "someone/rows"])
def test_a_name_without_the_prefix_is_told_to_nobody(hub, tmp_path, spec, has_folder):
    """A path with a slip in it may hold a name that is nobody's business."""
    if has_folder:
        (tmp_path / spec.partition("/")[0]).mkdir()
    for read in (check_source, read_source):
        with pytest.raises(InputError, match=rf"found no such file in .*; check the path, or write hub:{spec} if"):
            read(spec)
    assert hub.requests == []


@pytest.mark.parametrize(
    "spec", ["clinic_of_berlin", "clinic_of_berlin#train", "a/b/c", "clinic/berlin.csv", "./clinic/x"]
)
def test_what_can_only_be_a_path_is_not_taken_for_a_forgotten_prefix(hub, spec):
    with pytest.raises(InputError, match=r"expected a file, sample:NAME or hub:OWNER/NAME, found no such .*the path$"):
        read_source(spec)
    assert hub.requests == []


@pytest.mark.parametrize("spec", ["hub:", "hub:rows", "hub:../rows", "hub:someone/rows/train", "hub:someone/rows#"])
def test_what_is_no_data_set_of_the_hub_is_refused_before_it_is_asked(hub, spec):
    for read in (check_source, read_source):
        with pytest.raises(InputError, match=rf"{spec}: expected hub:OWNER/NAME or hub:OWNER/NAME#SPLIT"):
            read(spec)
    assert hub.requests == []


def test_a_data_set_that_the_hub_has_not_is_asked_of_it(hub):
    check_source("hub:clinic/berlin")
    assert hub.requests == []
    with pytest.raises(
        InputError, match=r"hub:clinic/berlin: expected a data set that the hub .* gives, found \w+Error"
    ):
        read_source("hub:clinic/berlin")
    assert any("clinic/berlin" in path for path in hub.requests)

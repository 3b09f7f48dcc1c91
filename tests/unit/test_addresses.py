import pytest

from understudy.addresses import exchange_address, ledger_address, public_address, tracking_address


@pytest.mark.parametrize(
    "address",
    ["file:///shared/store", "file://localhost/shared/store", "s3://bucket/store", "simplecache::s3://bucket/store"],
)
def test_urls_of_stores_that_last_stay_as_they_are(address):
    assert exchange_address(address) == address


@pytest.mark.parametrize(
    ("address", "said"),
    [
        # Of this one fsspec makes /store, and of the other two a folder of the working directory.
        ("file://shared/store", "file:///ABSOLUTE/FOLDER"),
        ("file:/shared/store", "file:///ABSOLUTE/FOLDER"),
        ("file:store", "file:///ABSOLUTE/FOLDER"),
        ("memory://box", "ends with the process"),
        ("simplecache::memory://box", "ends with the process"),
        ("s3://user:word@bucket", "without a password"),
        ("simplecache::s3://user:word@bucket", "without a password"),
        ("s3://bucket/store?secret=word", "without a password or query"),
    ],
)
def test_addresses_that_mean_another_place_or_none_that_lasts_are_refused(address, said):
    with pytest.raises(ValueError, match=said):
        exchange_address(address)


def test_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert exchange_address("store") == str(tmp_path / "store")
    assert tracking_address("sqlite:///runs.db") == f"sqlite:///{tmp_path}/runs.db"
    assert tracking_address("http://tracking:5000") == "http://tracking:5000"
    assert ledger_address("sqlite:////home/ledger.db") == "sqlite:////home/ledger.db"
    with pytest.raises(ValueError, match="relative path"):
        ledger_address("sqlite:///ledger.db")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:word@tracking:5000/x?token=word", "https://tracking:5000/x"),
        ("postgresql://me:a/word?@host/ledger?password=word", "postgresql://host/ledger"),
        ("mssql+pyodbc:///?odbc_connect=PWD=word", "mssql+pyodbc:///"),
        ("simplecache::s3://me:word@bucket/store", "simplecache::s3://bucket/store"),
        ("me:word@host/v1", "host/v1"),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
        ("/home/what?/a:b@c", "/home/what?/a:b@c"),
    ],
)
def test_an_address_is_shown_without_user_password_and_query(address, shown):
    assert public_address(address) == shown

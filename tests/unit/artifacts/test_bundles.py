"""What crosses between zones: only the right receiver opens it, and only what was sealed for this exchange."""

import hashlib
import json

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from understudy.artifacts.bundles import HEADER, PAYLOAD, seal, unseal
from understudy.artifacts.manifest import canonical_json
from understudy.artifacts.zone_keys import OwnKey, own_key, public_key, trust
from understudy.errors import InputError, ZoneError
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.crossing import to_client
from understudy.methods.knowledge_distillation.method import charged_settings
from understudy.privacy import labels

CLIENT, SERVER, STRANGER = OwnKey("client", b"c" * 32), OwnKey("server", b"s" * 32), OwnKey("client", b"x" * 32)
FILES = {"statement.json": b'{"epsilon": 8}', "adapter.safetensors": bytes(range(256))}


@pytest.fixture
def sealed(tmp_path):
    def make(name="bundle", files=FILES, **given):
        folder = tmp_path / name
        folder.mkdir()
        options = {"sender": CLIENT, "receiver": SERVER.public, "exchange": "charge/adapter", "label": labels.public()}
        seal(files, folder, **options | given)
        return folder

    return make


def opened(folder, **given):
    options = {"receiver": SERVER, "sender": CLIENT.public, "exchange": "charge/adapter", "label": labels.public()}
    return unseal(folder, **options | {"received": folder.parent / "received"} | given)


def test_the_receiver_gets_the_files_and_nothing_is_readable_on_the_way(sealed):
    folder = sealed()
    assert opened(folder) == FILES
    assert opened(folder) == FILES, "a step that was killed opens it again"
    assert FILES["adapter.safetensors"][:32] not in (folder / PAYLOAD).read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == sorted([HEADER, PAYLOAD])


def test_the_same_content_seals_to_the_same_bytes_and_another_shares_no_key(sealed):
    one, same, other = sealed("one"), sealed("same"), sealed("other", {**FILES, "statement.json": b'{"epsilon": 9}'})
    read = {folder.name: (folder / PAYLOAD).read_bytes() for folder in (one, same, other)}
    assert read["one"] == read["same"]
    header = [json.loads((folder / HEADER).read_bytes())["header"]["one_time"] for folder in (one, same, other)]
    assert header[0] == header[1] != header[2]


@pytest.mark.parametrize("name", [HEADER, PAYLOAD])
def test_one_flipped_byte_is_refused(name, sealed):
    folder = sealed()
    whole = (folder / name).read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ZoneError, match=r"bundle"):
            opened(folder)
    (folder / name).write_bytes(whole)
    assert opened(folder) == FILES, "none of the others was taken"


@given(st.binary(max_size=40), st.integers(0, 2**16))
@hypothesis_settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_other_payload_is_refused(tmp_path_factory, extra, place):
    folder = tmp_path_factory.mktemp("bundle")
    options = {"sender": CLIENT, "receiver": SERVER.public, "exchange": "charge/adapter", "label": labels.public()}
    seal(FILES, folder, **options)
    whole = (folder / PAYLOAD).read_bytes()
    cut = place % len(whole)
    (folder / PAYLOAD).write_bytes(whole[:cut] + extra + whole[cut + 1 :] + b"!")
    with pytest.raises(ZoneError, match="signature"):
        opened(folder)


def test_an_old_bundle_sent_again_is_refused(sealed):
    old = sealed(exchange="an earlier charge/adapter")
    with pytest.raises(ZoneError, match="an old bundle"):
        opened(old)


def test_a_second_content_of_one_exchange_is_refused(sealed):
    first, second = sealed("first"), sealed("second", {"adapter.safetensors": b"other"})
    assert opened(first) == FILES
    with pytest.raises(ZoneError, match="taken before") as caught:
        opened(second)
    # A charge whose code and versions are the same is found again, whatever the command says about a new one.
    assert "--accept-new-charge" not in str(caught.value)


def test_what_comes_back_with_another_number_of_samples_has_an_exchange_of_its_own(sealed):
    """It is the remedy that the refusal names; the charge is that of before."""
    plain = KnowledgeDistillationConfig(samples=10)
    more = plain.model_copy(update={"samples": 11})
    assert charged_settings(plain) == charged_settings(more)
    ways = [f"charge/{to_client('pairs', config)}" for config in (plain, more)]
    assert to_client("other pairs", plain) != to_client("pairs", plain), "one tuned on these is not taken for it"
    first, second = sealed("first", exchange=ways[0]), {"adapter.safetensors": b"other"}
    opened(first, exchange=ways[0])
    with pytest.raises(ZoneError, match="--samples"):
        opened(sealed("again", second, exchange=ways[0]), exchange=ways[0])
    assert opened(sealed("second", second, exchange=ways[1]), exchange=ways[1]) == second


def test_a_bundle_with_another_label_is_refused(sealed):
    with pytest.raises(ZoneError, match="label private"):
        opened(sealed(), label=labels.private("ward"))


def test_a_bundle_for_another_key_is_refused(sealed):
    with pytest.raises(ZoneError, match=r"for the key .* of this server zone"):
        opened(sealed(receiver=OwnKey("server", b"o" * 32).public))


def test_a_bundle_of_a_stranger_is_refused(sealed):
    with pytest.raises(ZoneError, match="keys trust"):
        opened(sealed(sender=STRANGER))


@pytest.mark.parametrize("one_time", ["", "no digits", "ab", "00" * 32])
def test_a_signed_header_with_no_key_in_it_is_refused(one_time, sealed):
    folder = sealed()
    told, payload = json.loads((folder / HEADER).read_bytes()), (folder / PAYLOAD).read_bytes()
    header = {**told["header"], "one_time": one_time}
    content = canonical_json([hashlib.sha256(part).hexdigest() for part in (canonical_json(header), payload)])
    signature = CLIENT.sign(content, purpose="bundle")
    (folder / HEADER).write_bytes(canonical_json({"header": header, "signature": signature}))
    with pytest.raises(ZoneError, match="one-time key of 64 hexadecimal digits"):
        opened(folder)
    assert not (folder.parent / "received").exists()


def test_a_signature_counts_for_its_purpose_only():
    signature = CLIENT.sign(b"content", purpose="order")
    CLIENT.public.verify(signature, b"content", purpose="order")
    for content, purpose in ((b"contents", "order"), (b"content", "reply"), (b"rcontent", "orde")):
        with pytest.raises(ZoneError, match="signature"):
            CLIENT.public.verify(signature, content, purpose=purpose)


def test_a_zone_knows_its_own_key_and_the_one_it_was_told(home, monkeypatch):
    both = {zone: public_key(zone) for zone in ("client", "server")}
    assert both["client"] != both["server"]
    assert (home / "zone-key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("UNDERSTUDY_ZONE", "client")
    assert own_key("client").public == both["client"]
    with pytest.raises(ZoneError, match="UNDERSTUDY_ZONE=client"):
        own_key("server")
    with pytest.raises(InputError, match="understudy keys trust"):
        public_key("server")
    trust(SERVER.public.text)
    assert public_key("server") == SERVER.public
    with pytest.raises(InputError, match="this machine's own"):
        trust(own_key("client").public.text)
    with pytest.raises(InputError, match="128 hexadecimal digits"):
        trust("abc")


def test_a_secret_in_the_environment_is_taken_and_shown_nowhere(home, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_ZONE_KEY", "k" * 40)
    key = own_key("client")
    assert not (home / "zone-key").exists()
    assert "kkk" not in repr(key)
    monkeypatch.setenv("UNDERSTUDY_ZONE_KEY", "k" * 8)
    with pytest.raises(InputError, match=r"UNDERSTUDY_ZONE_KEY: .*32 bytes"):
        own_key("client")

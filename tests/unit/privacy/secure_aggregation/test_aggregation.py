"""Secure aggregation: exact sums, dropouts, uniform messages, noise of the right scale, aborts and refusals."""

import itertools
import math
import sys

import numpy as np
import pytest
from scipy import stats

from understudy.errors import InputError, UnderstudyError
from understudy.privacy.noise import derive_key
from understudy.privacy.secure_aggregation import client as secure_client
from understudy.privacy.secure_aggregation import server as secure_server
from understudy.privacy.secure_aggregation.aggregation import SecureSettings, masked_sum
from understudy.privacy.secure_aggregation.client import REVEALED, Client
from understudy.privacy.secure_aggregation.fixed_point import decode, encode, from_words, to_words
from understudy.privacy.secure_aggregation.masks import add_pair_mask, agree, unseal
from understudy.privacy.secure_aggregation.noise import share_noise
from understudy.privacy.secure_aggregation.round import UnmaskRequest, plan_round
from understudy.privacy.secure_aggregation.shares import PRIME, reconstruct

BITS = 12
SILENT = ("keys", "shares", "masked", "unmask")


def secret(i):
    return derive_key(b"secure aggregation, for tests", charge_id="", salt=b"", step=i, purpose="client")


def score_vectors(n, d, seed=0):
    rows = np.random.default_rng(seed).standard_normal((n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def settings(n, **changes):
    return SecureSettings(
        **{"bits": BITS, "noise_multiplier": 1.0, "smallest_surviving": max(4, 3 * n // 5), **changes}
    )


def aggregate(rows, config=None, **changes):
    n, d = rows.shape
    options = {"participating": np.ones(n, bool), "d": d, "client_secret": secret, "step": 0, **changes}
    return masked_sum(rows, config or settings(n), **options)


def thirty_percent(n, kind, seed=0):
    return {int(i): kind for i in np.random.default_rng(seed).choice(n, int(0.3 * n), replace=False)}


def in_sum(n, silent):
    return [i for i in range(n) if silent.get(i, "unmask") == "unmask"]


def encoded_sum(rows, who):
    """Exact, in Python's integers."""
    return [sum(column) for column in zip(*(encode(rows[i], bits=BITS).tolist() for i in who), strict=True)]


def noise_of(plan, rows, i):
    return share_noise(client_key(plan, rows, i, "noise"), plan.d, scale=plan.share_scale)


def client_key(plan, rows, i, purpose):
    return secure_client._key(plan, secret(i), encode(rows[i], bits=plan.bits).astype(np.int32), purpose)


SCENES = {
    "all stay": {},
    "30 % before their vector": thirty_percent(40, "masked"),
    "30 % after their vector": thirty_percent(40, "unmask"),
    "at every point": dict(zip(range(0, 40, 3), itertools.cycle(SILENT), strict=False)),
}


@pytest.mark.parametrize("degree", [20, 39])
@pytest.mark.parametrize("silent", SCENES.values(), ids=SCENES)
def test_the_sum_is_exact_whoever_drops_out(degree, silent):
    rows = score_vectors(40, 30)
    config = settings(40, noise_multiplier=0.0, degree=degree, threshold=4, smallest_surviving=24)
    result = aggregate(rows, config, silent_from=silent)
    who = in_sum(40, silent)
    assert result.survivors == len(who)
    assert result.values.dtype == np.float32
    assert result.values.tolist() == [value / 2**BITS for value in encoded_sum(rows, who)]
    # Fixed point is as good as its step.
    assert np.abs(result.values - rows[who].sum(0)).max() <= len(who) * 2.0**-BITS


@pytest.mark.parametrize("silent", SCENES.values(), ids=SCENES)
def test_with_noise_the_sum_is_vectors_plus_the_survivors_shares(silent):
    rows = score_vectors(40, 30)
    result = aggregate(rows, settings(40, degree=20, threshold=4), silent_from=silent)
    expected = np.array(encoded_sum(rows, in_sum(40, silent)))
    for i in in_sum(40, silent):
        expected += noise_of(result.plan, rows, i)
    assert result.values.tolist() == (expected / 2**BITS).astype(np.float32).tolist()
    assert np.abs(result.values - rows[in_sum(40, silent)].sum(0)).max() > 0.1


def test_wide_words_carry_large_sums():
    rows = score_vectors(6, 11)
    assert aggregate(rows, settings(6, bits=24)).plan.width == 32
    result = aggregate(rows, settings(6, bits=24, noise_multiplier=30.0), silent_from={2: "masked"})
    assert result.plan.width == 64
    total = sum(
        encode(rows[i], bits=24) + share_noise(key, 11, scale=result.plan.share_scale)
        for i, key in ((i, client_key(result.plan, rows, i, "noise")) for i in (0, 1, 3, 4, 5))
    )
    assert result.values.tolist() == decode(total, bits=24).tolist()


@pytest.mark.parametrize("factor", [2 / 3, 1.0, 3 / 2])
def test_noise_has_the_scale_of_the_smallest_surviving_set(monkeypatch, factor):
    exact = secure_client.share_noise
    monkeypatch.setattr(secure_client, "share_noise", lambda key, size, scale: exact(key, size, scale=factor * scale))
    n, d, z = 12, 3000, 2.0
    rows = score_vectors(n, d)
    silent = {0: "masked", 5: "masked", 7: "unmask"}
    result = aggregate(rows, settings(n, noise_multiplier=z, smallest_surviving=8), silent_from=silent)
    residual = result.values - rows[in_sum(n, silent)].sum(0)
    # Ten shares answer where eight were needed: the variance is 10/8 of the declared.
    squares = (residual**2).sum() / (z**2 * 10 / 8)
    chance = 2 * min(stats.chi2.cdf(squares, d), stats.chi2.sf(squares, d))
    assert (chance > 1e-4) == (factor == 1.0)
    if factor == 1.0:
        assert stats.kstest(residual / (z * math.sqrt(10 / 8)), "norm").pvalue > 1e-4


def test_colluders_are_made_up_for():
    plain = plan_round(settings(20), n=20, d=5, step=0, attempt=b"")
    sized = plan_round(settings(20, colluding=3), n=20, d=5, step=0, attempt=b"")
    assert sized.share_scale == pytest.approx(plain.share_scale * math.sqrt(12 / 9))


def chance_of_uniform(words):
    """Least p-value over the bytes of words, of a chi-square test against the uniform distribution."""
    columns = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 4).T
    return min(stats.chisquare(np.bincount(column, minlength=256)).pvalue for column in columns)


def masked_words(result):
    return {m.sender: np.frombuffer(m.payload, "<u4") for m in result.transcript.messages if m.kind == "masked"}


def test_masked_vectors_of_any_clients_are_uniform():
    """Alone, in pairs, and all of them: equal vectors without noise show nothing while a self mask is on."""
    rows = np.full((16, 2500), 1 / 50)
    result = aggregate(rows, settings(16, noise_multiplier=0.0), record=True)
    words = masked_words(result)
    assert len(words) == 16
    for size in (1, 2, 9, 15, 16):
        for who in itertools.islice(itertools.combinations(range(16), size), 6):
            assert chance_of_uniform(sum(words[i] for i in who)) > 1e-5
    # The test sees what is not masked.
    assert chance_of_uniform(to_words(encode(rows[0], bits=BITS), 32)) < 1e-300


def test_colluding_clients_below_the_threshold_see_uniform_words():
    """The server and threshold - 1 clients take off every mask that they know; what stays is uniform."""
    rows = np.full((14, 8000), 1 / math.sqrt(8000))
    config = settings(14, noise_multiplier=0.0, smallest_surviving=9)
    result = aggregate(rows, config, record=True)
    plan, words = result.plan, masked_words(result)
    colluders, victim = range(plan.threshold - 1), 9
    keys = {m.sender: m.payload for m in result.transcript.messages if m.kind == "keys"}
    left = words[victim].copy()
    for i in colluders:
        pair = secure_client.start(plan, i, rows[i], secret=secret(i)).mask_key
        add_pair_mask(left, agree(pair, keys[victim][:32], purpose=plan.session + b"mask"), own=i, other=victim)
    assert chance_of_uniform(left) > 1e-5
    # Even with its self mask off, as when the server was told that it survived.
    left -= secure_client.expand(client_key(plan, rows, victim, "self"), d=plan.d, width=32)
    assert chance_of_uniform(left) > 1e-5
    for i in set(range(14)) - {victim, *colluders}:
        pair = secure_client.start(plan, i, rows[i], secret=secret(i)).mask_key
        add_pair_mask(left, agree(pair, keys[victim][:32], purpose=plan.session + b"mask"), own=i, other=victim)
    # With every pairwise mask off as well the vector is there: nothing else hid it.
    assert left.tolist() == to_words(encode(rows[victim], bits=BITS), 32).tolist()


def test_shares_of_fewer_than_the_threshold_are_uniform_over_rounds():
    rows = np.full((8, 4), 0.5)
    shares = []
    for step in range(60):
        result = aggregate(rows, settings(8, threshold=3), step=step, record=True)
        held = revealed_by_owner(result)
        shares += [share for records in held.values() for share in itertools.islice(records.values(), 2)]
    counts = np.bincount([share >> 252 for share in shares], minlength=16)
    assert len(shares) == 60 * 8 * 2
    assert stats.chisquare(counts).pvalue > 1e-4


def revealed_by_owner(result):
    held = {}
    for message in result.transcript.messages:
        if message.kind == "unmask":
            for owner, _, share in REVEALED.iter_unpack(message.payload):
                held.setdefault(owner, {})[message.sender + 1] = int.from_bytes(share)
    return held


def replay_server(result):
    """What a server makes of the recorded messages, with nothing else in hand but the public plan."""
    plan, sent = result.plan, {kind: {} for kind in SILENT}
    for message in result.transcript.messages:
        sent[message.kind][message.sender] = message.payload
    secure_server.check_keys(plan, sent["keys"])
    masked, survivors = secure_server.add_masked(plan, sent["masked"].items())
    request = secure_server.request_unmasking(plan, sent["shares"], survivors)
    revealed = secure_server.collect(plan, request, sent["unmask"])
    return secure_server.unmask(plan, masked, request, keys=sent["keys"], revealed=revealed)


def test_the_server_works_from_the_messages_alone_and_never_holds_the_sum_without_noise():
    rows = score_vectors(12, 24)
    silent = {1: "masked", 4: "masked", 6: "unmask"}
    result = aggregate(rows, settings(12, threshold=3), silent_from=silent, record=True)
    plan, who = result.plan, in_sum(12, silent)
    forbidden = {"the sum": np.array(encoded_sum(rows, who))}
    for i in range(12):
        forbidden[f"vector {i}"] = encode(rows[i], bits=BITS)
        forbidden[f"noisy vector {i}"] = forbidden[f"vector {i}"] + noise_of(plan, rows, i)
    forbidden = {to_words(value, 32).tobytes(): name for name, value in forbidden.items()}
    seen = set()

    def watch(frame, event, argument):
        if "understudy" not in frame.f_code.co_filename:
            return None
        values = [*frame.f_locals.values(), *(argument if isinstance(argument, tuple) else [argument])]
        for value in values:
            if isinstance(value, np.ndarray) and value.shape == (24,) and value.dtype.kind in "iu":
                seen.add(to_words(value.astype(np.int64), 32).tobytes())
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        noisy = replay_server(result)
    finally:
        sys.settrace(before)
    assert decode(noisy, bits=BITS).tolist() == result.values.tolist()
    assert to_words(noisy, 32).tobytes() in seen
    assert len(seen) > 20
    assert not [forbidden[value] for value in seen & forbidden.keys()]


def test_no_client_has_both_kinds_of_its_shares_revealed():
    rows = score_vectors(12, 5)
    silent = {1: "masked", 4: "masked", 6: "unmask"}
    result = aggregate(rows, settings(12, threshold=3), silent_from=silent, record=True)
    kinds = {}
    for message in result.transcript.messages:
        if message.kind == "unmask":
            for owner, survived, _ in REVEALED.iter_unpack(message.payload):
                kinds.setdefault(owner, set()).add(survived)
    assert kinds == {i: {i not in (1, 4)} for i in range(12)}
    held = revealed_by_owner(result)
    assert reconstruct(held[1], threshold=3) == client_key(result.plan, rows, 1, "mask")
    assert reconstruct(held[6], threshold=3) == client_key(result.plan, rows, 6, "self")


@pytest.mark.parametrize("kind", ["keys", "shares", "masked"])
def test_a_round_aborts_below_the_smallest_surviving_set(kind):
    rows = score_vectors(20, 5)
    enough = {i: kind for i in range(8)}
    assert aggregate(rows, settings(20, threshold=4), silent_from=enough).survivors == 12
    # Too few keys end it before anybody shares a secret.
    missing = "12 clients, 11 advertised keys" if kind == "keys" else "at least 12"
    with pytest.raises(UnderstudyError, match=missing):
        aggregate(rows, settings(20, threshold=4), silent_from={**enough, 8: kind})


def test_a_round_aborts_when_too_few_answer_to_unmask():
    rows = score_vectors(20, 5)
    silent = {i: "unmask" for i in range(15)}
    assert aggregate(rows, settings(20, threshold=4), silent_from=silent).survivors == 20
    with pytest.raises(UnderstudyError, match="threshold=4 shares"):
        aggregate(rows, settings(20, threshold=4), silent_from={**silent, 15: "unmask"})


def test_who_takes_no_part_adds_nothing_and_cannot_be_told():
    rows = score_vectors(10, 3000)
    part = np.arange(10) % 3 > 0
    quiet = aggregate(rows, settings(10, noise_multiplier=0.0), participating=part)
    assert quiet.survivors == 10
    assert quiet.values.tolist() == [v / 2**BITS for v in encoded_sum(rows, np.flatnonzero(part))]
    result = aggregate(rows, settings(10), participating=part, record=True)
    sizes = {}
    for message in result.transcript.messages:
        sizes.setdefault((message.sender, message.kind), []).append(len(message.payload))
    assert all(sizes[0, kind] == sizes[1, kind] for kind in SILENT)
    assert all(chance_of_uniform(words) > 1e-5 for words in masked_words(result).values())


def test_a_round_is_a_function_of_secrets_vectors_and_plan():
    rows = score_vectors(8, 6)
    one, again = (aggregate(rows, record=True) for _ in range(2))
    assert one.transcript.messages == again.transcript.messages
    assert one.values.tolist() == again.values.tolist()
    moved = rows.copy()
    moved[3] = -moved[3]
    others = {
        "step": aggregate(rows, step=1, record=True),
        "dropouts": aggregate(rows, silent_from={2: "unmask"}, record=True),
        "settings": aggregate(rows, settings(8, noise_multiplier=1.1), record=True),
        "secret": aggregate(rows, client_secret=lambda i: secret(i + 100), record=True),
    }
    first = {(m.sender, m.kind, m.receiver): m.payload for m in one.transcript.messages}
    for name, other in others.items():
        shared = [m for m in other.transcript.messages if first.get((m.sender, m.kind, m.receiver)) == m.payload]
        assert shared == [], name
    other = aggregate(moved, record=True)
    same = {(m.sender, m.kind) for m in other.transcript.messages if first[m.sender, m.kind, m.receiver] == m.payload}
    # Another vector: new keys of its client, whose masks with all others change their vectors too. What it reveals
    # are others' shares, which stay.
    assert (3, "unmask") in same
    assert not any((sender == 3 and kind != "unmask") or kind == "masked" for sender, kind in same)


def test_one_clients_vector_cannot_be_had_by_subtracting_two_tries():
    """The noise is of the vector's own key: a second try on another vector does not repeat it."""
    rows = score_vectors(8, 400)
    moved = rows.copy()
    moved[3] = 0
    change = aggregate(rows).values - aggregate(moved).values
    assert np.abs(change - rows[3]).max() > 0.05


def test_the_transcript_counts_every_byte():
    rows = score_vectors(10, 7)
    result = aggregate(rows, settings(10, degree=4, threshold=2, smallest_surviving=10), record=True)
    counted = dict.fromkeys(SILENT, 0)
    for message in result.transcript.messages:
        counted[message.kind] += len(message.payload)
    assert result.transcript.upload_bytes == counted
    assert counted == {"keys": 640, "shares": 10 * 4 * (66 + 16), "masked": 280, "unmask": 10 * 4 * 38}
    assert aggregate(rows).transcript.messages == []


def test_vectors_may_come_one_by_one_and_must_be_n():
    rows = score_vectors(8, 6)
    assert masked_sum(
        iter(rows), settings(8), participating=np.ones(8, bool), d=6, client_secret=secret, step=0
    ).values.tolist() == (aggregate(rows).values.tolist())
    for wrong in (rows[:7], np.concatenate([rows, rows[:1]])):
        with pytest.raises(InputError, match="n=8 vectors"):
            aggregate(wrong, settings(8), participating=np.ones(8, bool))
    with pytest.raises(UnderstudyError, match="d=5"):
        aggregate(rows, settings(8), d=5)


def test_a_client_out_of_range_is_refused():
    rows = score_vectors(8, 6)
    rows[2] *= 1.01
    with pytest.raises(InputError, match="norm at most 1"):
        aggregate(rows)


@pytest.mark.parametrize(
    "changes",
    [
        {"smallest_surviving": 3, "threshold": 2},
        {"smallest_surviving": 21},
        {"threshold": 1},
        {"threshold": 20},
        {"colluding": 6},
        {"bits": 0},
        {"bits": 4, "noise_multiplier": 0.1},
        {"degree": 4, "threshold": 2},
    ],
)
def test_settings_that_would_not_protect_are_refused(changes):
    with pytest.raises(InputError, match=r"expected|fall apart|bits"):
        plan_round(settings(20, **changes), n=20, d=5, step=0, attempt=b"")


def test_colluders_count_among_those_whose_loss_may_split_the_graph():
    """As many as one less than the threshold may collude: with more of them a graph is refused that was fine."""
    few, many = (settings(100, degree=30, smallest_surviving=60, threshold=threshold) for threshold in (2, 5))
    assert plan_round(few, n=100, d=5, step=0, attempt=b"").threshold == 2
    with pytest.raises(InputError, match="degree=30 may fall apart"):
        plan_round(many, n=100, d=5, step=0, attempt=b"")


# Refusals of the server and of an honest client, on a real round's messages.


@pytest.fixture(scope="module")
def scene():
    rows = score_vectors(8, 6)
    result = aggregate(rows, settings(8, threshold=3), silent_from={5: "masked"}, record=True)
    sent = {kind: {} for kind in SILENT}
    for message in result.transcript.messages:
        sent[message.kind].setdefault(message.sender, message.payload)
    sealed = {m.sender: m.payload for m in result.transcript.messages if m.receiver == 0}
    return result.plan, sent, sealed, rows


def test_masked_vectors_of_wrong_length_or_twice_are_refused(scene):
    plan, sent, _, _ = scene
    good = list(sent["masked"].items())
    total, survivors = secure_server.add_masked(plan, good)
    assert survivors == set(range(8)) - {5}
    assert len(from_words(total, plan.width)) == 6
    with pytest.raises(UnderstudyError, match="3 sent a masked vector"):
        secure_server.add_masked(plan, good[:3])
    bad = {"length": (7, b"\0" * 23), "twice": good[0], "unknown": (8, bytes(24)), "long": (7, bytes(28))}
    for name, message in bad.items():
        with pytest.raises(UnderstudyError, match="refused"):
            secure_server.add_masked(plan, [*good[:-1], message])
        assert name


def test_keys_of_wrong_length_are_refused(scene):
    plan, sent, _, _ = scene
    for bad in ({0: bytes(63)}, {8: bytes(64)}):
        with pytest.raises(UnderstudyError, match="64 bytes of keys"):
            secure_server.check_keys(plan, {**sent["keys"], **bad})


def record(owner, survived, share=1):
    return REVEALED.pack(owner, survived, share.to_bytes(33))


@pytest.mark.parametrize(
    "payload",
    [
        record(5, True),
        record(2, False),
        record(2, True)[:-1],
        record(2, True) + record(2, True),
        record(0, True),
        record(7, True) + record(7, False),
    ],
    ids=["self of a dropped", "key of a survivor", "cut short", "twice", "own", "both kinds"],
)
def test_the_server_refuses_shares_it_must_not_hold(scene, payload):
    plan, _, _, _ = scene
    request = UnmaskRequest(frozenset(range(8)) - {5}, frozenset({5}))
    assert secure_server.collect(plan, request, {0: record(2, True)}).self_shares == {2: {1: 1}}
    with pytest.raises(UnderstudyError, match="refused"):
        secure_server.collect(plan, request, {0: payload})
    with pytest.raises(UnderstudyError, match="refused"):
        secure_server.collect(plan, request, {5: record(2, True)})


def test_the_server_refuses_a_request_for_both_kinds(scene):
    plan, sent, _, _ = scene
    with pytest.raises(UnderstudyError, match="both kinds"):
        secure_server.collect(plan, UnmaskRequest(frozenset(range(8)), frozenset({5})), {})
    with pytest.raises(UnderstudyError, match="without having shared"):
        secure_server.request_unmasking(plan, set(range(7)), frozenset(range(8)))
    with pytest.raises(UnderstudyError, match="round aborted"):
        secure_server.request_unmasking(plan, set(range(8)), frozenset({0, 1}))
    assert sent["masked"].keys() == set(range(8)) - {5}


def test_a_wrong_share_is_noticed(scene):
    plan, sent, _, _ = scene
    masked, survivors = secure_server.add_masked(plan, sent["masked"].items())
    request = secure_server.request_unmasking(plan, range(8), survivors)

    def unmasked(owner):
        payloads = dict(sent["unmask"])
        records = {o: (s, int.from_bytes(v)) for o, s, v in REVEALED.iter_unpack(payloads[0])}
        if owner is not None:
            records[owner] = (records[owner][0], (records[owner][1] + 1) % PRIME)
        payloads[0] = b"".join(record(o, s, v) for o, (s, v) in records.items())
        revealed = secure_server.collect(plan, request, payloads)
        return secure_server.unmask(plan, masked, request, keys=sent["keys"], revealed=revealed)

    assert np.abs(unmasked(None)).max() <= plan.largest_total
    with pytest.raises(UnderstudyError, match=r"advertised|wrong"):
        unmasked(5)
    with pytest.raises(UnderstudyError, match=r"cancel|wrong"):
        unmasked(2)


@pytest.fixture
def holder(scene):
    plan, sent, _, rows = scene
    client = secure_client.start(plan, 0, rows[0], secret=secret(0))
    neighbours = {i: key for i, key in sent["keys"].items() if i != 0}
    return secure_client.distribute(plan, client, neighbours)[0]


def test_a_client_answers_one_request_and_repeats_it(scene, holder):
    plan, sent, sealed, _ = scene
    request = UnmaskRequest(frozenset(range(8)) - {5}, frozenset({5}))
    answered, payload = secure_client.reveal(plan, holder, request, sealed)
    assert payload == sent["unmask"][0]
    assert secure_client.reveal(plan, answered, request, sealed)[1] == payload
    with pytest.raises(UnderstudyError, match="second, different request"):
        secure_client.reveal(plan, answered, UnmaskRequest(frozenset(range(8)), frozenset()), sealed)


@pytest.mark.parametrize(
    ("survivors", "dropped", "match"),
    [
        (range(8), {5}, "survivors or dropped"),
        (range(1, 8), {0}, "this one a survivor"),
        ({0, 1, 2}, {3, 4, 5, 6, 7}, "nothing revealed"),
    ],
)
def test_a_client_refuses_a_request_that_would_unmask_someone(scene, holder, survivors, dropped, match):
    plan, _, sealed, _ = scene
    with pytest.raises(UnderstudyError, match=match):
        secure_client.reveal(plan, holder, UnmaskRequest(frozenset(survivors), frozenset(dropped)), sealed)


def test_a_share_sealed_for_another_is_refused(scene, holder):
    plan, _, sealed, _ = scene
    request = UnmaskRequest(frozenset(range(8)), frozenset())
    with pytest.raises(UnderstudyError, match="altered"):
        secure_client.reveal(plan, holder, request, {**sealed, 3: sealed[4]})


def test_what_two_clients_seal_for_each_other_shares_no_key(scene):
    """Every envelope has the nonce zero: under one key, the server would have the difference of their shares."""
    plan, sent, _, rows = scene
    talking = {}
    for i in (0, 1):
        client = secure_client.start(plan, i, rows[i], secret=secret(i))
        talking[i] = secure_client.distribute(plan, client, {j: key for j, key in sent["keys"].items() if j != i})
    (there, sealed), (back, answer) = talking[0], talking[1]
    assert there.channels[1] == back.channels[0]
    keys = [secure_client._one_way(there.channels[1], sender) for sender in (0, 1)]
    texts = [unseal(key, text, context=plan.session) for key, text in zip(keys, (sealed[1], answer[0]), strict=True)]
    shown = [a ^ b for a, b in zip(sealed[1], answer[0], strict=True)][: len(texts[0])]
    assert shown != [a ^ b for a, b in zip(*texts, strict=True)]


def test_a_client_with_too_few_neighbours_says_nothing(scene):
    plan, sent, _, rows = scene
    client = secure_client.start(plan, 0, rows[0], secret=secret(0))
    few = {i: sent["keys"][i] for i in (1, 2)}
    for act in (secure_client.distribute, secure_client.masked_input):
        with pytest.raises(UnderstudyError, match="at least 3 neighbours"):
            act(plan, client, few)


def test_nothing_private_shows_in_a_repr():
    plan = plan_round(settings(8), n=8, d=6, step=0, attempt=b"")
    client = secure_client.start(plan, 0, score_vectors(8, 6)[0], secret=secret(0))
    assert repr(client) == "Client(index=0, answered=None)"
    assert isinstance(client, Client)

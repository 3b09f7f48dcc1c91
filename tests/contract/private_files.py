"""Small private files, and their neighbours in one unit."""

import pyarrow as pa
from contract.preference_rows import text_of

NAMES = {"0": "negative", "1": "positive", "2": "rare"}
ROWS, CLIENTS = 20, 16
# A place that the keyed hash of the pinned key does not hold out.
SLOT = 3


def labelled(slot: int = SLOT, text: str | None = "as it is", label: str | None = None) -> pa.Table:
    """Labelled rows, two labels of three in use, of which one row may be changed."""
    texts = [text_of(i, words=3 + i * 7 % 11) for i in range(ROWS)]
    labels = [str(1 - i % 2) for i in range(ROWS)]
    if text != "as it is":
        texts[slot] = text
        labels[slot] = label
    elif label is not None:
        labels[slot] = label
    return pa.table({"text": pa.array(texts, pa.string()), "label": pa.array(labels, pa.string())})


def without_row(slot: int = SLOT) -> pa.Table:
    """The null record in a slot."""
    return labelled(slot, None, None)


def row_of(kind: str, slot: int = SLOT) -> pa.Table:
    """A file whose row in the slot is of some kind."""
    return {
        "plain": lambda: labelled(slot),
        "extreme": lambda: labelled(slot, "zzyzx " * 200, "0"),
        "empty": lambda: labelled(slot, "", "0"),
        "rare class": lambda: labelled(slot, label="2"),
        "other label": lambda: labelled(slot, label=str(slot % 2)),
    }[kind]()


ROW_KINDS = ("plain", "extreme", "empty", "rare class", "other label")


def clients(missing: int | None = None, texts: tuple[str, ...] | None = None) -> pa.Table:
    """Documents of clients, one to three each; one client may be left out of the file, or speak otherwise."""
    rows = []
    for client in range(CLIENTS):
        if client == missing and texts is None:
            continue
        own = [text_of(10 * client + row, words=8 + 4 * row) for row in range(1 + client % 3)]
        rows += [(f"client {client}", text) for text in (texts if client == missing and texts else own)]
    owners, documents = zip(*rows, strict=True)
    return pa.table({"client_id": pa.array(owners), "text": pa.array(documents)})


def unrelated_rows() -> pa.Table:
    """Rows with wholly different content, longer and of one class."""
    return pa.table({"text": ["quux " * (5 + row) for row in range(ROWS)], "label": ["0"] * ROWS})


def unrelated_clients() -> pa.Table:
    """The same clients with wholly different documents."""
    texts = [f"quux {'plugh ' * (3 + client)}" for client in range(CLIENTS)]
    return pa.table({"client_id": [f"client {client}" for client in range(CLIENTS)], "text": texts})


def pairs(slot: int = SLOT, pair: tuple[str | None, str | None] | None = None) -> pa.Table:
    """Instructions with responses, of which one row may be changed."""
    rows = [(f"tell me of {text_of(i, words=3 + i % 4)}", text_of(i + 7, words=3 + i * 5 % 9)) for i in range(ROWS)]
    if pair is not None:
        rows[slot] = pair
    asked, answered = zip(*rows, strict=True)
    return pa.table({"instruction": pa.array(asked, pa.string()), "response": pa.array(answered, pa.string())})


def without_pair(slot: int = SLOT) -> pa.Table:
    """The null record in a slot."""
    return pairs(slot, (None, None))


def pair_of(kind: str, slot: int = SLOT) -> pa.Table:
    """A file whose pair in the slot is of some kind."""
    return {
        "plain": lambda: pairs(slot),
        "long response": lambda: pairs(slot, ("say it", "zzyzx " * 400)),
        "long instruction": lambda: pairs(slot, ("zzyzx " * 400, "so be it")),
        "end of turn": lambda: pairs(slot, ("stop <|endoftext|>", "<|endoftext|><|endoftext|> go on")),
        "one letter": lambda: pairs(slot, ("a", "b")),
    }[kind]()


PAIR_KINDS = ("plain", "long response", "long instruction", "end of turn", "one letter")


CLIENT_KINDS = ("plain", "extreme", "repeated")


def client_of(kind: str, client: int) -> pa.Table:
    """The file with the client's documents of some kind; `clients(client)` is the file without the client."""
    spoken = {"plain": None, "extreme": ("zzyzx " * 400,) * 3, "repeated": (text_of(40),) * 3}[kind]
    return clients() if spoken is None else clients(client, spoken)

"""Secrets of canaries: the last word of each, one of 64 candidates, which an attacker of the model guesses.

It stands for what personal data in a text is to an attacker: one of a list that is known, behind words that are known.
The candidates are whole words of the base model's vocabulary, and a public function of the source's name and a seed.
Which of them it is, is drawn by the ledger's key for each canary alone. Each is one token, so the mean losses of a
text's versions compare candidates alone, whatever the method reads before them. A canary ends with words at random
anyhow, so that one of them is a secret changes nothing for those who guess coins.

The attacker reads each text with every candidate, by the public model and by the released one, and takes the candidate
that became likelier by the most. Whoever never met the text is right with probability 1 / 64 exactly, for the draw is
uniform and has no part in anything else. PII reconstruction with candidates: Lukas et al. 2023 (arXiv 2302.00539).
*Deviations*: they take the candidate that the released model alone finds the likeliest, which is more often one that is
likely everywhere. KnowledgeSG (section 4.6) decodes with top-k 40; every candidate is read here, so there is no k.

Coins and secrets have nothing to do with each other: the attackers of `attack.py` are told the secrets, and this one
the coins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from understudy.auditing.canaries import INCLUDED
from understudy.auditing.reconstruction import CANDIDATES, Floats, Reconstruction, guessed
from understudy.data.columns import text_columns

# Columns of the stored canaries.
SECRET, OTHERS = "secret", "candidates"
# Those that are no part of a canary's row.
BESIDE_ROWS = (INCLUDED, OTHERS, SECRET)
# So many canaries are read with all their candidates, in the rows or left out; the time of an audit grows with them.
MOST_READ = 64


def candidates_of(rows: pa.Table, *, words: Sequence[str], named: str) -> list[list[str]]:
    """Of each canary, the words that its secret may be, none of which it has otherwise; public.

    Args:
        rows: of the canaries, before their last words became secrets.
        words: of the base model's vocabulary.
        named: what the choice is a function of.
    """
    seed = int.from_bytes(hashlib.sha256(f"candidates\0{named}".encode()).digest()[:8])
    random, column = np.random.default_rng(seed), text_columns(rows)[-1]
    found = []
    for text in rows[column].to_pylist():
        used = set(text.split())
        drawn = random.choice(len(words), size=CANDIDATES + len(used), replace=False).tolist()
        found.append([words[place] for place in drawn if words[place] not in used][:CANDIDATES])
    return found


def drawn_places(names: Sequence[bytes], keyed: Callable[[bytes], bytes]) -> list[int]:
    """Which candidate is the secret of each canary; a function of what names it and the key alone.

    The number of candidates divides 256, so all are equally likely.
    """
    return [keyed(name)[0] % CANDIDATES for name in names]


def with_last_words(rows: pa.Table, last: Sequence[str]) -> pa.Table:
    """The rows with another last word in each; of pairs, of the response."""
    name = text_columns(rows)[-1]
    bare = (text.rpartition(" ")[0] for text in rows[name].to_pylist())
    texts = [f"{text} {word}" for text, word in zip(bare, last, strict=True)]
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), pa.array(texts, pa.string()))


def versions(rows: pa.Table, candidates: Sequence[Sequence[str]]) -> pa.Table:
    """Each canary with every candidate in the place of its secret, canary after canary."""
    each = [row for row, words in enumerate(candidates) for _ in words]
    return with_last_words(rows.take(pa.array(each, pa.int64())), [word for words in candidates for word in words])


def guessed_secrets(before: Floats, after: Floats, places: Sequence[int]) -> Reconstruction:
    """How often the right candidate became likelier by the most.

    Args:
        before: (secrets, candidates) losses of the versions under the public model.
        after: the same under what the run released.
        places: (secrets,) of the right ones.
    """
    return guessed(after - before, places)

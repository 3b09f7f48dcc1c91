"""What crosses the boundary: an adapter with its statement, sealed for one zone and bound to one charge and direction.

Nobody but the receiver can read it, and the receiver reads nothing but what the sender signed. A run in one process
seals and opens it, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from understudy.artifacts.bundles import seal, unseal
from understudy.artifacts.zone_keys import PublicKey, Zone, own_key, parse_key, public_key
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.models.adapters import Adapter
from understudy.privacy.labels import Label
from understudy.settings import private_directory, settings

ADAPTER, STATEMENT = "adapter.safetensors", "statement.json"
KEPT, TO_SERVER = "kept", "to-server"


def to_client(pairs: str, config: KnowledgeDistillationConfig) -> str:
    """The way back of the adapter that was tuned on some pairs: of one charge several may come back.

    Args:
        pairs: id of the artifact that holds them.
        config: of the run.
    """
    return f"to-client/{hashlib.sha256(f'{pairs} {config.model_dump_json()}'.encode()).hexdigest()[:32]}"


def send(
    adapter: Adapter,
    folder: Path,
    *,
    label: Label,
    charge: str,
    way: str,
    sender: Zone,
    receiver: PublicKey,
    facts: Mapping[str, Any],
) -> None:
    """Seal an adapter into an empty folder.

    Args:
        adapter: its tensors, released.
        folder: of the artifact.
        label: of the artifact, which the receiver compares.
        charge: that paid for it.
        way: its direction, which is part of what is signed: `KEPT`, `TO_SERVER` or that of `to_client`.
        sender: this process's zone.
        receiver: public key of the zone that may open it.
        facts: public values that the statement holds beside the label.
    """
    statement = {"label": label.model_dump(mode="json"), "charge": charge, **facts}
    files = {
        ADAPTER: save({name: adapter[name].contiguous() for name in sorted(adapter)}),
        STATEMENT: json.dumps(statement, sort_keys=True).encode(),
    }
    seal(files, folder, sender=own_key(sender), receiver=receiver, exchange=f"{charge}/{way}", label=label)


def receive(folder: Path, *, label: Label, charge: str, way: str, sender: Zone, receiver: Zone) -> Adapter:
    """Open a sealed adapter.

    Raises:
        ZoneError: it was changed, is old, of another charge, from another sender or for another key.
    """
    files = unseal(
        folder,
        receiver=own_key(receiver),
        sender=public_key(sender),
        exchange=f"{charge}/{way}",
        label=label,
        received=private_directory(settings().private_root / "received"),
    )
    return dict(load(files[ADAPTER]))


def key_of(zone: Zone) -> str:
    """The public key of a zone, as text: an argument of the step that seals for it."""
    return public_key(zone).text


def key_from(text: str) -> PublicKey:
    """The public key that `key_of` gave."""
    return parse_key(text)

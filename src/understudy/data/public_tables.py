"""Public tables that settings name, read more than once: with the content that a run began with, or not at all.

They were searched for private rows when the run began, so other rows under the same name are refused later.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa

from understudy.data.digests import canonical_digest
from understudy.data.instructions import check_instructions
from understudy.data.readers import read_source
from understudy.errors import InputError


def read_pairs(spec: str, *, setting: str, digest: str = "") -> pa.Table:
    """A public table with the columns `instruction` and `response`.

    Args:
        spec: a file, `sample:NAME` or `hub:OWNER/NAME`.
        setting: that names it, for errors.
        digest: `pairs_digest` of the pairs that are meant; empty takes any.

    Raises:
        InputError: it cannot be read, lacks a column, or holds other pairs than those the run began with.
    """
    try:
        table = check_instructions(read_source(spec)).table
    except InputError as error:
        raise InputError(f"{setting}={spec}: {error}") from None
    check_as_begun(_digest(table), of="pairs", named=f"{setting}={spec}", begun=digest)
    return table


def pairs_digest(spec: str, *, setting: str) -> str:
    """What identifies the pairs of a public table.

    Raises:
        InputError: as `read_pairs`.
    """
    return _digest(read_pairs(spec, setting=setting))


def check_as_begun(found: str, *, of: str, named: str, begun: str) -> None:
    """Refuse content that is not what a run began with.

    Args:
        found: hexadecimal digest of the content as it is now.
        of: what the content is, in plural, for the error.
        named: setting and value that name it, for the error.
        begun: digest of the content that the run began with; empty takes any.

    Raises:
        InputError: the two digests differ.
    """
    if begun not in ("", found):
        raise InputError(
            f"{named}: expected the {of} that the run began with (sha256 {begun[:12]}...), found others "
            f"({found[:12]}...); put them back, or repeat the command, which begins anew with the {of} of now"
        )


def _digest(table: pa.Table) -> str:
    return hashlib.sha256(canonical_digest(table)).hexdigest()

"""The one mechanism interface: private rows influence anything only through the four functions of `Mechanisms`.

Each takes the exact value of a query, with what its caller holds to be its sensitivity, noise and sampling, and returns
the noised value. The charge's list of queries (`queries`) says what may be asked: a call that is not on it, or differs
from it in any of these, is refused before anything is drawn. Every noised value is whole steps of a public grid
(`grid`). Noise and masks are functions of the charge's key material, so a step that is computed again gives the same
bytes. What a release of the once kind returned is kept in the charge's release log before it is used: the same query
gets it back, also from another process, and another query in its place is refused.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from understudy.compute import copied_to
from understudy.errors import UnderstudyError
from understudy.privacy.grid import MOST_NUMBERS, charged_sensitivity, grid_of
from understudy.privacy.grid_sum import from_steps, to_steps
from understudy.privacy.mechanism_call import Mechanism, Recorder, Values
from understudy.privacy.noise import derive_key, discrete_gaussian, query_digest
from understudy.privacy.permits import check_mask, check_query
from understudy.privacy.release_log import Note, ReleaseLog
from understudy.privacy.rounded_gaussian import each_block
from understudy.privacy.sampling import poisson_mask, poisson_mask_of
from understudy.privacy.secure_aggregation.aggregation import masked_sum
from understudy.privacy.secure_aggregation.fixed_point import encode, integer_sensitivity
from understudy.privacy.secure_aggregation.round import Kind as MessageKind
from understudy.privacy.secure_aggregation.round import SecureSettings, plan_round

if TYPE_CHECKING:
    from understudy.privacy.ledger.records import KeyMaterial

_PURPOSE = re.compile(r"[a-z0-9][a-z0-9_./-]*")


@dataclass
class Mechanisms:
    """The only door for private influence; make it with `Mechanisms.live` from a charge's key material."""

    material: KeyMaterial = field(repr=False)
    recorder: Recorder | None = field(default=None, repr=False)
    release_log: Path | None = field(default=None, repr=False)
    note: Note | None = field(default=None, repr=False)
    _seen: dict[tuple[str, int, str], bytes] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def live(cls, material: KeyMaterial, release_log: Path | None = None, note: Note | None = None) -> Mechanisms:
        """A mechanism interface that draws, for real use.

        Args:
            material: of the reserved charge that pays for every call.
            release_log: directory under the private root, one per charge, that keeps what was released once; needed
                wherever a run may be resumed. It must last as long as the charge's salt.
            note: (call, tag of its query) -> the tag of the query that the call was first made with, durable before it
                returns. The release log is of one machine; this is asked wherever the charge is known.
        """
        if _opened_by is not None:
            return replace(_opened_by(material), release_log=release_log, note=note)
        return cls(material, release_log=release_log, note=note)

    def poisson(
        self,
        *,
        step: int,
        n: int,
        probability: float,
        purpose: str = "batch",
        unit_ids: npt.NDArray[np.uint8] | None = None,
    ) -> Tensor:
        """Which of n units take part in a step.

        *Guarantee*: each unit independently with the given probability, whatever the units hold (sensitivity 0). The
        mask itself is private: amplification by sampling holds only against those who do not see it.

        Args:
            step: logical step.
            n: number of slots, public.
            probability: in (0, 1], public.
            purpose: the mask's name, `Query.batch` of the queries that are taken on it.
            unit_ids: (n, 16) private identifiers of the units, such as keyed hashes of client ids: then a unit's part
                hangs on its own identifier, not on its slot, which another unit's absence may move.

        Returns:
            bool (n,) on the CPU.

        Raises:
            UnderstudyError: when no query of the charge is taken on such a mask.
        """
        call = Mechanism("poisson", step, purpose, scale=probability, sensitivity=0.0)
        check_mask(self.material, step=step, name=purpose, units=n, probability=probability)
        ids = b"" if unit_ids is None else unit_ids.tobytes()
        self._claim(call, repr((n, probability)).encode() + hashlib.sha256(ids).digest())

        def draw() -> dict[str, Tensor]:
            if unit_ids is None:
                return {"mask": poisson_mask(self._key(call), n, probability=probability)}
            if unit_ids.shape != (n, 16):
                raise ValueError(f"expected identifiers ({n}, 16), found {unit_ids.shape}")
            return {"mask": poisson_mask_of(self._key(call), unit_ids, probability=probability)}

        return self._through(call, {}, draw)["mask"]

    def gaussian_sum(
        self,
        query: Values,
        *,
        sensitivity: float,
        noise_multiplier: float,
        step: int,
        purpose: str,
        once: bool = False,
    ) -> dict[str, Tensor]:
        """A sum over units plus N(0, (noise_multiplier * s)^2) in every coordinate, rounded to the grid.

        s is `charged_sensitivity(sensitivity)`.

        *Guarantee*: the Gaussian mechanism (Dwork & Roth 2014, Theorem A.1; accounted as an event) of noise
        multiplier `noise_multiplier` and post-processing, if one unit moves the whole query by at most `sensitivity` in
        L2 norm, float rounding before this call aside (see `grid`).

        Args:
            query: name -> finite float32 or float64 tensor, rounded here, or int64 steps of `grid_of(sensitivity)`,
                such as `GridSum.steps` gives.
            sensitivity: > 0, over all tensors together.
            noise_multiplier: >= 0; 0 gives the query on the grid, whose label is private.
            step: logical step.
            purpose: names the query; `Query.name`.
            once: keep the result in the release log. For a query made of what other tasks computed: should they compute
                something else when a run is resumed, this one query must not be noised a second time. A training
                does without, as its queries follow from rows, masks and the code that the charge is bound to.

        Returns:
            name -> noised float32 tensor, on the device of the query.

        Raises:
            UnderstudyError: when the charge did not pay for this very query, its mask was not drawn, or another one was
                noised under the same step and purpose before: by this interface, or with `once` by any interface of the
                charge.
        """
        grid = grid_of(sensitivity)
        scale = noise_multiplier * charged_sensitivity(sensitivity)
        call = Mechanism("gaussian_sum", step, purpose, scale, charged_sensitivity(sensitivity), grid)
        self._check_paid(call, sensitivity=sensitivity, noise_multiplier=noise_multiplier)
        size = sum(value.numel() for value in query.values())
        if not 0 < size <= MOST_NUMBERS:
            raise ValueError(f"expected a query of 1 to {MOST_NUMBERS} numbers, found {size}")
        steps = {name: _steps(value, grid) for name, value in query.items()}
        on_cpu = {name: value.cpu() for name, value in steps.items()}
        digest = self._digest(call, on_cpu)
        self._claim(call, digest)

        def draw() -> dict[str, Tensor]:
            return _noised(on_cpu, self._key(call, digest), scale=scale / grid, grid=grid)

        exact: dict[str, Tensor] = {}
        if self.recorder is not None:
            exact = {name: from_steps(value, grid=grid, dtype=torch.float64) for name, value in steps.items()}
        kept = self._through(call, exact, lambda: self._once(call, draw, digest) if once else draw())
        return {name: copied_to(kept[name], value.device) for name, value in query.items()}

    def histogram(self, counts: Tensor, *, sigma: float, purpose: str) -> Tensor:
        """Counts plus discrete Gaussian noise (Canonne et al. 2020), drawn once per charge and purpose.

        *Guarantee*: the discrete Gaussian mechanism with parameter `sigma`, if replacing one example by null
        changes one count by at most 1 (unit example, relation replace_special, sensitivity 1).

        Args:
            counts: int64 (k,); k is public.
            sigma: >= 0; 0 gives an unchanged copy, whose label is private.
            purpose: names the release within the charge.

        Returns:
            int64 (k,), possibly negative; equal at every later call of the charge that has its release log.

        Raises:
            UnderstudyError: when the charge did not pay for it, or released other counts where this release log is not.
        """
        if counts.dtype != torch.int64 or counts.ndim != 1:
            raise ValueError(f"expected int64 counts (k,), found {counts.dtype}, {tuple(counts.shape)}")
        query = {"counts": counts.cpu()}
        call = Mechanism("histogram", 0, purpose, scale=sigma, sensitivity=1.0, grid=1.0)
        self._check_paid(call, sensitivity=1.0, noise_multiplier=sigma)
        digest = self._digest(call, query)
        # With a release log the first release answers every later query.
        self._claim(call, digest if self.release_log is None else b"")

        def draw() -> dict[str, Tensor]:
            noise = discrete_gaussian(self._key(call, digest), len(counts), scale=sigma)
            return {"counts": query["counts"] + torch.as_tensor(noise, dtype=torch.int64)}

        return self._through(call, query, lambda: self._once(call, draw, digest, answers_later=True))["counts"]

    def masked_sum(
        self,
        vectors: Tensor,
        settings: SecureSettings,
        *,
        participating: Tensor,
        step: int,
        purpose: str,
        silent_from: Mapping[int, MessageKind] | None = None,
    ) -> Tensor:
        """A sum of clients' vectors by secure aggregation: whoever adds them up never holds it without noise.

        *Guarantee*: that of `secure_aggregation` (unit client, relation add/remove one client realised as a null
        client in its slot, sensitivity 1; accounted as a Gaussian event). Drawn once per charge, step and purpose. A
        recorder, in the client zone and in tests only, sees the exact sum.

        Args:
            vectors: float64 (n, d) on the CPU, rows of L2 norm at most 1.
            settings: public; noise multiplier 0 gives the exact sum, whose label is private.
            participating: bool (n,), private: who contributes more than noise.
            step: the round.
            purpose: names the release within the step.
            silent_from: which clients fall silent and before which message, public.

        Returns:
            float32 (d,).

        Raises:
            UnderstudyError: when fewer clients answer than the settings allow, or when other vectors were summed under
                the same step and purpose before, by any interface of the charge.
        """
        (n, d), silent = vectors.shape, dict(silent_from or {})
        answering = [client for client in range(n) if silent.get(client, "unmask") == "unmask"]
        unit = integer_sensitivity(d, settings.bits)
        share = plan_round(settings, n=n, d=d, step=step, attempt=b"").share_scale
        scale = share * math.sqrt(len(answering)) / unit
        call = Mechanism("masked_sum", step, purpose, scale=scale, sensitivity=1.0, grid=1.0 / unit)
        self._check_paid(call, sensitivity=1.0, noise_multiplier=settings.noise_multiplier, units=n)
        digest = self._digest(call, {"vectors": vectors, "participating": participating})
        self._claim(call, digest)

        def draw() -> dict[str, Tensor]:
            found = masked_sum(
                vectors.numpy(),
                settings,
                participating=participating.numpy(),
                d=d,
                client_secret=lambda client: self._key(replace(call, purpose=f"{call.purpose}/client/{client}")),
                step=step,
                silent_from=silent,
            )
            return {"sum": torch.from_numpy(found.values)}

        query: dict[str, Tensor] = {}
        if self.recorder is not None:
            counted = (encode(vectors[i].numpy(), bits=settings.bits) for i in answering if participating[i])
            query = {"sum": torch.from_numpy(sum(counted, start=np.zeros(d, np.int64)) / unit)}
        return self._through(call, query, lambda: self._once(call, draw, digest))["sum"]

    def _check_paid(self, call: Mechanism, **asked: float) -> None:
        """Refuse, before anything is drawn, a query that the charge did not pay for."""
        masks = {purpose for kind, step, purpose in self._seen if kind == "poisson" and step == call.step}
        check_query(self.material, kind=call.kind, step=call.step, name=call.purpose, asked=asked, masks=masks)

    def _key(self, call: Mechanism, digest: bytes = b"") -> bytes:
        return derive_key(
            self.material.secret,
            charge_id=self.material.charge_id,
            salt=self.material.salt,
            step=call.step,
            purpose=f"{call.kind}/{call.purpose}",
            query_digest=digest,
        )

    def _digest(self, call: Mechanism, query: Values) -> bytes:
        """What a query is known by within the draw: a tag under a key of this draw's own."""
        return query_digest(query, key=self._key(replace(call, purpose=f"{call.purpose}#query")))

    def _claim(self, call: Mechanism, what: bytes) -> None:
        """One query per step and purpose: a second, different one would be a release that nobody paid for."""
        if not _PURPOSE.fullmatch(call.purpose):
            raise ValueError(f"expected a purpose of a-z 0-9 _ . / -, found {call.purpose!r}")
        if self._seen.setdefault((call.kind, call.step, call.purpose), what) != what:
            raise UnderstudyError(
                f"two different {call.kind} queries under step={call.step}, purpose={call.purpose!r}: "
                "each is a release of its own and needs a purpose of its own that the charge accounts for"
            )

    def _through(self, call: Mechanism, query: Values, draw: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        return draw() if self.recorder is None else self.recorder.observe(call, query, draw)

    def _tag(self, call: Mechanism, digest: bytes) -> bytes:
        """Tells queries apart without saying anything about them: it is keyed."""
        return hashlib.sha256(b"understudy/release log/1" + self._key(call, digest)).digest()

    def _once(
        self, call: Mechanism, draw: Callable[[], dict[str, Tensor]], digest: bytes, *, answers_later: bool = False
    ) -> dict[str, Tensor]:
        """The released value from the release log; see `ReleaseLog.once`."""
        if self.release_log is None:
            return draw()
        log = ReleaseLog(self.release_log, self.material.charge_id, self.note)
        return log.once(call, draw, tag=self._tag(call, digest), answers_later=answers_later)


# Set by `replay.recording` alone: no setting and no variable of the environment reaches it.
_opened_by: Callable[[KeyMaterial], Mechanisms] | None = None


def _steps(value: Tensor, grid: float) -> Tensor:
    """Whole steps of the grid: as they are, or a float tensor rounded."""
    if value.dtype == torch.int64:
        return value
    if value.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected float32, float64, or int64 steps of the grid, found {value.dtype}")
    return to_steps(value, grid=grid)


def _noised(steps: Values, key: bytes, *, scale: float, grid: float) -> dict[str, Tensor]:
    """Query and noise, both on the CPU, added exactly as whole steps, then rounded to float32.

    The draw is cut into the tensors of the query in alphabetical order of their names.
    """
    found = {name: torch.empty(steps[name].shape, device="cpu") for name in sorted(steps)}
    parts = [(steps[name].reshape(-1).numpy(), found[name].view(-1).numpy()) for name in found]
    ends = list(itertools.accumulate(len(exact) for exact, _ in parts))

    def add(start: int, noise: npt.NDArray[np.int64]) -> None:
        stop = start + len(noise)
        for i in range(bisect.bisect_right(ends, start), bisect.bisect_left(ends, stop) + 1):
            exact, out = parts[i]
            begin = ends[i] - len(exact)
            here = slice(max(begin, start) - begin, min(ends[i], stop) - begin)
            there = slice(here.start + begin - start, here.stop + begin - start)
            # The float64 nearest to the whole steps, then the float32 nearest to it, as `from_steps` rounds.
            summed = np.add(exact[here], noise[there], out=noise[there])
            np.multiply(summed, grid, out=out[here], dtype=np.float64, casting="same_kind")

    each_block(key, ends[-1], scale=scale, use=add)
    return found

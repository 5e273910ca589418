"""What a job type says about its failures: which are final, and how long to wait after the others."""

from __future__ import annotations

import msgspec

from fencepost.domain.backoff import Backoff, Exponential, delay_after
from fencepost.domain.job import Limits
from fencepost.errors import Permanent
from fencepost.logger import get_logger

log = get_logger("fencepost.worker")

Exceptions = tuple[type[BaseException], ...]


class Policy(msgspec.Struct, frozen=True):
    """How failed attempts at one type of job are judged."""

    backoff: Backoff = Exponential()
    retry_on: Exceptions | None = None
    """Only these are tried again, if given; everything else is final."""
    permanent_on: Exceptions = ()
    """These are final, also where `retry_on` names a parent of theirs."""

    def is_final(self, error: BaseException) -> bool:
        """Whether no further attempt can help."""
        if isinstance(error, (Permanent, *self.permanent_on)):
            return True
        return self.retry_on is not None and not isinstance(error, self.retry_on)

    def delay(self, attempt: int) -> float:
        """
        The wait after *attempt*, in seconds.

        Where a caller's own rule raises, or answers what is no number, that is logged and the default rule stands in.
        """
        try:
            return delay_after(self.backoff, attempt, ceiling_seconds=Limits.DELAY_SECONDS)
        except BaseException:
            log.warning(
                "a job type's own backoff failed; the default one is used", extra={"attempt": attempt}, exc_info=True
            )
            return Exponential().delay(attempt)

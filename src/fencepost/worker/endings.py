"""What an attempt's end is, in the cases that need more than one line to say."""

from __future__ import annotations

from typing import cast

import msgspec

from fencepost.domain import outcome
from fencepost.domain.outcome import Ending, Outcome
from fencepost.domain.policy import Policy
from fencepost.domain.text import storable_json
from fencepost.logger import get_logger
from fencepost.types.codec import encode_result
from fencepost.types.jobtype import Kind
from fencepost.worker.around import SUPPRESSED
from fencepost.worker.attempt import Attempt
from fencepost.worker.children.process import ChildFailure
from fencepost.worker.completing import NOT_COMMITTED, NotCommitted

log = get_logger("fencepost.worker")


def _is_async(attempt: Attempt) -> bool:
    return attempt.job_type is not None and attempt.job_type.kind is Kind.ASYNC


class Endings:
    """Makes outcomes; *policy* is for types that have none of their own."""

    def __init__(self, policy: Policy, *, max_result_bytes: int) -> None:
        self._policy = policy
        self._max_result_bytes = max_result_bytes

    def _policy_of(self, attempt: Attempt) -> Policy:
        return (attempt.job_type and attempt.job_type.policy) or self._policy

    def returned(self, attempt: Attempt, value: object) -> Outcome | None:
        """
        The handler returned, or what is around it suppressed what was raised.

        A value is the sign of work that was done, even when the handler was being interrupted. So is any return of
        a plain function, which can't be interrupted, or of a child, which would have been killed. An async handler
        that was interrupted and returns None has more likely tidied up and left its work: it is taken as stopped.
        Running such a job twice is allowed, losing it isn't.
        """
        if attempt.completed_in:
            return self._not_committed(attempt)
        if attempt.interruption is Ending.LOST:
            return None
        if attempt.interruption is not None and (value is SUPPRESSED or (value is None and _is_async(attempt))):
            return self.interrupted(attempt)
        if value is SUPPRESSED:
            value = None
        return outcome.succeeded(attempt.lease, None if value is None else self._result(attempt, value))

    def raised(self, attempt: Attempt, error: BaseException) -> Outcome | None:
        """The handler raised, by itself or because it was interrupted."""
        if attempt.interruption is not None:
            return self.interrupted(attempt)
        policy = self._policy_of(attempt)
        # By its type, since what a class of the program's own says it is may raise.
        if issubclass(type(error), ChildFailure):
            return outcome.judged(attempt.lease, cast(ChildFailure, error).judgement, policy)
        return outcome.failed(attempt.lease, error, policy)

    def interrupted(self, attempt: Attempt) -> Outcome | None:
        """It was stopped; None when its lease was lost, so that there is nothing to write."""
        lease = attempt.lease
        if attempt.interruption is Ending.TIMED_OUT:
            return outcome.timed_out(lease, attempt.timeout_seconds, self._policy_of(attempt))
        if attempt.interruption is Ending.CANCELLED:
            return outcome.cancelled(lease)
        if attempt.interruption is Ending.RELEASED:
            return outcome.released(lease)
        return self._not_committed(attempt) if attempt.completed_in else None

    def fault(self, attempt: Attempt, error: BaseException) -> Outcome:
        """Something of ours raised. It counts as a failure of the attempt, under the worker's own policy."""
        return outcome.failed(attempt.lease, error, self._policy)

    def _not_committed(self, attempt: Attempt) -> Outcome:
        """Written only if the transaction that was to complete the job didn't: otherwise the lease is gone."""
        return outcome.failed(attempt.lease, NotCommitted(NOT_COMMITTED), self._policy_of(attempt))

    def _result(self, attempt: Attempt, value: object) -> bytes | None:
        """The result as JSON; None when it can't be kept: the work is done either way."""
        if isinstance(value, msgspec.Raw):
            # A child's, which has made sure of all that.
            return bytes(value)
        encode = (attempt.job_type and attempt.job_type.encode) or encode_result
        try:
            return storable_json(value, encode=encode, limit=self._max_result_bytes)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the work is done
            _, reason, _ = outcome.describe(error)
            log.warning(
                "result not stored; the job counts as completed",
                extra={"job_id": str(attempt.lease.id), "job_type": attempt.lease.type, "reason": reason},
            )
            return None

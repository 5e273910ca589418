"""Ending an attempt in the caller's own transaction."""

from __future__ import annotations

from typing import Any

from fencepost.domain.text import storable_json
from fencepost.errors import InvalidJob, LeaseLost, Retry, WrongConnection, WrongStatus
from fencepost.store.completion import complete_sql, encode
from fencepost.transactions import adapt
from fencepost.types.codec import encode_result
from fencepost.worker.attempt import Attempt

NOT_COMMITTED = "complete_in was called, but the handler returned before its transaction was committed"


class NotCommitted(Retry):
    """The handler returned as if all were well, and the transaction that was to complete its job isn't there."""


async def complete_in(attempt: Attempt, connection: Any, result: object) -> None:
    """See `Context.complete_in`."""
    adapter = adapt(connection)
    if not adapter.is_async:
        raise WrongConnection("this connection is not async: use complete_in_sync, in a plain function")
    text = _begin(attempt, await adapter.has_transaction(), result)
    _end(attempt, await adapter.fetch_value(complete_sql(attempt.host.schema), text))


def complete_in_sync(attempt: Attempt, connection: Any, result: object) -> None:
    """See `Context.complete_in_sync`."""
    adapter = adapt(connection)
    if adapter.is_async:
        raise WrongConnection("this connection is async: use `await context.complete_in(…)`")
    text = _begin(attempt, adapter.has_transaction_sync(), result)
    _end(attempt, adapter.fetch_value_sync(complete_sql(attempt.host.schema), text))


def _begin(attempt: Attempt, has_transaction: bool | None, result: object) -> str:
    """Refuse what can't be right, before anything is written."""
    raw = result_of(result, limit=attempt.host.max_result_bytes)
    if has_transaction is False:
        raise WrongConnection(
            "complete_in needs an open transaction, so that the job is completed with what that writes: begin one "
            "first, in a connection that isn't in autocommit"
        )
    with attempt.host.lock:
        if attempt.completed_in:
            raise WrongStatus("complete_in was called already in this attempt; it can be called once")
        if attempt.ended_at is not None:
            raise WrongStatus("this attempt has ended, so it can't be completed any more")
        if attempt.abandoned:
            # Its outcome may be on its way with those of others, who would wait for this transaction.
            raise LeaseLost(
                "this attempt was interrupted and its end is being written, so it can't be completed any more; "
                "let the transaction roll back"
            )
        # From before the statement: whoever settles or renews must not wait for its transaction. It stays so whatever
        # comes of it: after an error nobody knows what the server has done, and of two calls at once the one that is
        # told that the lease is gone must not undo the mark of the other, which has completed.
        attempt.completing = True
    return encode(attempt.lease, raw)


def _end(attempt: Attempt, answer: object) -> None:
    if str(answer).lower() != "true":
        raise LeaseLost("the job is no longer this attempt's, so it was not completed; let the transaction roll back")
    attempt.completed_in = True


def result_of(result: object, *, limit: int) -> bytes | None:
    """A result as JSON. Raises InvalidJob when it can't be stored."""
    if result is None:
        return None
    try:
        return storable_json(result, encode=encode_result, limit=limit)
    except Exception as error:
        raise InvalidJob(str(error) or type(error).__name__, field="result") from error

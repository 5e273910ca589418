"""Looking at jobs, and the two things that can be done to one: retry and cancel."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from fencepost.api.cursors import read_cursor, write_cursor
from fencepost.api.http import CLOSE, HttpError, Request, Response, answer
from fencepost.api.schemas import JobList, JobRecord, JobStatus, listed, record_of
from fencepost.domain.fields import check_queue, check_status, check_tags
from fencepost.domain.ids import parse_id
from fencepost.domain.job import Attempt, Job, Status
from fencepost.domain.requests import parse_moment
from fencepost.errors import InvalidJob
from fencepost.store.jobs import Jobs
from fencepost.store.listing import Filter, Listing
from fencepost.telemetry.events import Events

PAGE_JOBS = 50
MOST_PAGE_JOBS = 200
PARAMETERS = ("status", "type", "queue", "tag", "since", "until", "limit", "cursor", "include")
QUERY_BYTES = 4096


class JobViews:
    """The routes about jobs that exist."""

    def __init__(self, jobs: Jobs, listing: Listing, events: Events) -> None:
        self._jobs = jobs
        self._listing = listing
        self._events = events

    async def page(self, request: Request) -> Response:
        """Show a page of jobs, newest first."""
        given = _query(request)
        which = _filter(given)
        limit = _limit(given.get("limit"))
        if given.get("include", "payload") != "payload":
            raise InvalidJob("can only be `payload`, which adds payload and result to each job", field="include")
        before = read_cursor(given["cursor"], which) if "cursor" in given else None
        with_payload = "include" in given
        page = await self._listing.page(which, limit=limit, before=before, payloads=with_payload)
        cursor = None if page.next_before is None else write_cursor(page.next_before, which)
        headers = []
        if cursor is not None:
            target = "/jobs?" + urlencode({**given, "cursor": cursor})
            headers.append((b"link", f'<{target}>; rel="next"'.encode()))
        return answer(JobList([listed(job, with_payload=with_payload) for job in page.jobs], cursor), 200, headers)

    async def get(self, request: Request) -> Response:
        """Show everything about a job."""
        return answer(await self._record(_id(request)))

    async def status(self, request: Request) -> Response:
        """Show how a job stands."""
        job = await self._jobs.get(_id(request))
        return answer(JobStatus(job.id, job.status, job.attempts, job.max_attempts, job.run_at, job.last_error))

    async def retry(self, request: Request) -> Response:
        """Put a dead-lettered job back."""
        job_id = _id(request)
        await refuse_body(request)
        await self._jobs.retry(job_id)
        self._events.retried_by_hand()
        return answer(await self._record(job_id))

    async def cancel(self, request: Request) -> Response:
        """Stop a job: now, or as soon as its handler lets go."""
        job_id = _id(request)
        await refuse_body(request)
        status = await self._jobs.cancel(job_id)
        return answer(await self._record(job_id), 200 if status is Status.CANCELLED else 202)

    async def _record(self, job_id: UUID) -> JobRecord:
        job = await self._jobs.get(job_id)
        return record_of(job, await self._history(job))

    async def _history(self, job: Job) -> list[Attempt]:
        # The token counts every attempt there ever was: without one, or with a first one that didn't fail, the
        # history is empty.
        if job.lease_token == 0 or (job.lease_token == 1 and job.status in (Status.PROCESSING, Status.COMPLETED)):
            return []
        return await self._jobs.attempts(job.id)


async def refuse_body(request: Request) -> None:
    """Let nothing pass unread: a route that takes no body accepts none, or an empty object."""
    try:
        body = await request.body(1024)
    except HttpError as error:
        if error.http_status != 413:
            raise
        raise HttpError(413, error.code, "this request takes no body", headers=[CLOSE]) from None
    if body.strip() not in (b"", b"{}"):
        raise InvalidJob("this request takes no body; send none, or {}")


def _id(request: Request) -> UUID:
    return parse_id(request.parameter("id"))


def _query(request: Request) -> dict[str, str]:
    """Read the query string: known names only, each once."""
    raw: bytes = request.scope["query_string"]
    if len(raw) > QUERY_BYTES:
        raise InvalidJob(f"the query string is longer than {QUERY_BYTES:,} bytes")
    given: dict[str, str] = {}
    for name, value in parse_qsl(raw.decode("latin-1"), keep_blank_values=True):
        if name not in PARAMETERS:
            raise InvalidJob(f"there is no query parameter {name[:60]!a}; there are {', '.join(PARAMETERS)}")
        if name in given:
            raise InvalidJob("is given twice", field=name)
        given[name] = value
    return given


def _filter(given: dict[str, str]) -> Filter:
    for name in ("queue", "type"):
        if name in given:
            try:
                check_queue(given[name])
            except InvalidJob as error:
                raise InvalidJob(error.message, field=name) from None
    try:
        since, until = (parse_moment(given[name], field=name) if name in given else None for name in ("since", "until"))
    except InvalidJob as error:
        raise InvalidJob(f"{error.message} (in a URL, + is written %2B)", field=error.field) from None
    return Filter(
        status=check_status(given["status"]) if "status" in given else None,
        type=given.get("type"),
        queue=given.get("queue"),
        tag=_tag(given.get("tag")),
        since=since,
        until=until,
    )


def _tag(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return check_tags([text])[0]
    except InvalidJob as error:
        raise InvalidJob(error.message, field="tag") from None


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE_JOBS
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MOST_PAGE_JOBS):
        raise InvalidJob(f"must be a whole number from 1 to {MOST_PAGE_JOBS}, not {text[:60]!a}", field="limit")
    return int(text)

"""
What can be set, and from where: defaults < environment < command-line flags.

One frozen struct; its fields say the default, the unit and what they mean, and the
configuration page of the docs is held to them by a test. Nothing else reads the
environment, and nothing writes to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fencepost.domain.durations import format_duration
from fencepost.domain.job import Limits
from fencepost.errors import InvalidSettings
from fencepost.settings import reading
from fencepost.settings.pooler import Pooler

LEASE_MARGIN_SECONDS = 5.0
"""What a lease must have left after the longest attempt, to write down how it ended."""

CONNECTIONS_OF_A_WORKER = 6
"""The most that the workers of one process open, beside DATABASE_CONNECTIONS."""

Environment = Mapping[str, str]


class Secret:
    """Text that doesn't show itself in reprs, logs or error messages."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret('…')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set. `from_environment` reads it; `check` refuses what can't work."""

    database_url: Secret | None = None
    """DATABASE_URL: any PostgreSQL from 14 on. None starts the embedded one."""
    database_connections: int = 10
    """DATABASE_CONNECTIONS: the most that the API opens; the workers of a process take up to 6 more."""
    database_pooler: Pooler = Pooler.NONE
    """DATABASE_POOLER: what DATABASE_URL leads through: none, or a pooler whose pool_mode is session or transaction."""
    listen_url: Secret | None = None
    """DATABASE_LISTEN_URL: the same database without a pooler, for LISTEN. In transaction mode nobody listens else."""
    schema: str = "fencepost"
    """SCHEMA: where the tables are. Two schemas of one database know nothing of each other."""
    data_dir: Path | None = None
    """DATA_DIR: where the embedded PostgreSQL keeps its data."""
    http_host: str | None = None
    """The host of HTTP_ADDR; None is loopback, or every interface once a token is set."""
    http_port: int = 8080
    """The port of HTTP_ADDR, or PORT."""
    probe_host: str | None = None
    """The host of PROBE_ADDR; None, and `fencepost worker` answers no probes."""
    probe_port: int = 0
    """The port of PROBE_ADDR."""
    workers: int = 4
    """WORKERS: jobs that run at once in this process, or in each of PROCESSES; 0 serves the API only."""
    processes: int = 0
    """PROCESSES: worker processes under this one, with WORKERS each; 0 runs the workers in this process itself."""
    queues: tuple[str, ...] = ()
    """QUEUES (comma-separated): the workers serve these alone; without it, every queue there is."""
    max_attempts: int = 5
    """MAX_ATTEMPTS of a job that doesn't say."""
    job_timeout_seconds: float = 30.0
    """JOB_TIMEOUT: the longest run of one attempt, for jobs that don't say."""
    lease_seconds: float = 60.0
    """LEASE_DURATION: how long a worker that went silent keeps its jobs."""
    lease_extension: bool = False
    """LEASE_EXTENSION: attempts may take longer than a lease, which is then renewed until they end."""
    recovery_interval_seconds: float = 30.0
    """RECOVERY_INTERVAL: how often expired leases are looked for."""
    poll_interval_seconds: float = 1.0
    """POLL_INTERVAL: how often an idle worker looks, should every hint be lost."""
    backoff_base_seconds: float = 1.0
    """BACKOFF_BASE: the longest wait after the first failed attempt; it doubles with each."""
    backoff_max_seconds: float = 300.0
    """BACKOFF_MAX: the longest wait after any."""
    shutdown_timeout_seconds: float = 20.0
    """SHUTDOWN_TIMEOUT: what running jobs get to finish before they are released."""
    drain_delay_seconds: float = 0.0
    """DRAIN_DELAY: how long the API goes on serving, not ready, after the signal to stop."""
    priority_aging_seconds: float = 60.0
    """PRIORITY_AGING: a waiting job gains one level of priority each such time; 0 is strict priority."""
    webhook_allow_private: bool = False
    """WEBHOOK_ALLOW_PRIVATE: webhooks may go to private, loopback and link-local addresses."""
    api_tokens: tuple[Secret, ...] = ()
    """API_TOKENS (comma-separated) and API_TOKENS_FILE (one a line): any of them opens the API."""
    max_payload_bytes: int = 1 << 20
    """MAX_PAYLOAD: the largest payload of a job, in bytes."""
    max_result_bytes: int = 1 << 18
    """MAX_RESULT: the largest result that is kept, in bytes."""
    partition_days: int = 3
    """PARTITION_DAYS: the width of the time partitions that history is kept in."""
    retain_completed_seconds: float = 7 * 86400.0
    """RETAIN_COMPLETED: how long completed jobs are kept, from their end on; 0 is for ever, here and below."""
    retain_failed_seconds: float = 30 * 86400.0
    """RETAIN_FAILED: how long failed jobs are kept."""
    retain_dead_letter_seconds: float = 30 * 86400.0
    """RETAIN_DEAD_LETTER: how long dead-lettered jobs can be looked at and put back."""
    retain_cancelled_seconds: float = 30 * 86400.0
    """RETAIN_CANCELLED: how long cancelled jobs are kept."""
    idempotency_retention_seconds: float | None = None
    """IDEMPOTENCY_RETENTION: how long a key is kept from its first request on; None is as long as its job."""
    log_level: str = "info"
    """LOG_LEVEL: debug, info, warning or error."""
    log_jobs: float = 1.0
    """LOG_JOBS: the share of jobs, from 0 to 1, whose successful attempts are logged. Failures always are."""
    log_format: str | None = None
    """LOG_FORMAT: json or text; None is json when stdout is no terminal."""

    @property
    def listens_openly(self) -> bool:
        """Whether other machines can reach an API that asks nobody for a token."""
        return not self.api_tokens and self.host not in ("127.0.0.1", "localhost", "::1")

    @property
    def host(self) -> str:
        """The host to listen on: loopback, while nobody would be asked for a token and HTTP_ADDR doesn't insist."""
        if self.http_host is not None:
            return self.http_host
        return "0.0.0.0" if self.api_tokens else "127.0.0.1"  # noqa: S104 - a token guards it

    def check(self) -> Settings:
        """Return the settings themselves. Raises InvalidSettings for a combination that can't work."""
        needed = self.job_timeout_seconds + LEASE_MARGIN_SECONDS
        if not self.lease_extension and self.lease_seconds <= needed:
            raise InvalidSettings(
                f"LEASE_DURATION ({format_duration(self.lease_seconds)}) must exceed JOB_TIMEOUT + 5s "
                f"({format_duration(needed)}), or a slow attempt could lose its lease; raise it, lower JOB_TIMEOUT, or "
                "set LEASE_EXTENSION=true to rely on leases being renewed while an attempt runs"
            )
        if self.backoff_max_seconds < self.backoff_base_seconds:
            raise InvalidSettings(
                f"BACKOFF_MAX ({format_duration(self.backoff_max_seconds)}) must not be below BACKOFF_BASE "
                f"({format_duration(self.backoff_base_seconds)})"
            )
        return self


def from_environment(environment: Environment | None = None, **overrides: object) -> Settings:
    """
    Read the settings, later sources winning: defaults, environment, *overrides* that aren't None.

    Raises InvalidSettings naming the variable, what it holds and what is allowed.
    """
    source = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for field, names, read in _VARIABLES:
        name = next((name for name in names if source.get(name, "") != ""), None)
        if name is not None:
            values.update(_read(name, source[name], field, read))
    tokens = _tokens(source)
    if tokens:
        values["api_tokens"] = tokens
    values.update({name: value for name, value in overrides.items() if value is not None})
    return Settings(**values).check()


def _read(name: str, text: str, field: str, read: Any) -> dict[str, Any]:
    try:
        value = read(text.strip())
    except ValueError as error:
        raise InvalidSettings(f"{name}: {error}") from None
    return value if isinstance(value, dict) else {field: value}


def _tokens(source: Environment) -> tuple[Secret, ...]:
    texts = source.get("API_TOKENS", "").split(",")
    path = source.get("API_TOKENS_FILE", "")
    if path:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSettings(f"API_TOKENS_FILE: {path} can't be read: {error}") from None
        texts += [line for line in lines if not line.lstrip().startswith("#")]
    tokens = [text.strip() for text in texts if text.strip()]
    for token in tokens:
        if not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidSettings(
                "API_TOKENS: a token is made of visible ASCII characters; make one with "
                "`python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`"
            )
    if path and not tokens:
        raise InvalidSettings(f"API_TOKENS_FILE: {path} holds no token, which would leave the API open")
    return tuple(map(Secret, dict.fromkeys(tokens)))


def _address(text: str) -> Secret:
    return Secret(reading.database_address(text))


_SECONDS = reading.duration(0.001)

_VARIABLES: list[tuple[str, tuple[str, ...], Any]] = [
    ("database_url", ("DATABASE_URL",), _address),
    ("database_connections", ("DATABASE_CONNECTIONS",), reading.whole(2, 1000)),
    ("database_pooler", ("DATABASE_POOLER",), reading.pooler),
    ("listen_url", ("DATABASE_LISTEN_URL",), _address),
    ("schema", ("SCHEMA",), str),
    ("data_dir", ("DATA_DIR",), Path),
    ("http_port", ("PORT",), reading.whole(0, 65535)),
    ("http_host", ("HTTP_ADDR",), reading.address),
    ("probe_host", ("PROBE_ADDR",), reading.probe_address),
    ("workers", ("WORKERS", "WORKER_COUNT"), reading.whole(0, 10_000)),
    ("processes", ("PROCESSES",), reading.whole(0, 256)),
    ("queues", ("QUEUES",), reading.queues),
    ("max_attempts", ("MAX_ATTEMPTS",), reading.whole(1, Limits.MAX_ATTEMPTS)),
    ("job_timeout_seconds", ("JOB_TIMEOUT",), _SECONDS),
    ("lease_seconds", ("LEASE_DURATION", "VISIBILITY_TIMEOUT"), reading.duration(0.001, bare_seconds=True)),
    ("lease_extension", ("LEASE_EXTENSION",), reading.yes_or_no),
    ("recovery_interval_seconds", ("RECOVERY_INTERVAL",), _SECONDS),
    (
        "poll_interval_seconds",
        ("POLL_INTERVAL", "POLL_INTERVAL_SECONDS"),
        # What is due in more than a minute is announced to nobody: workers have to look that often.
        reading.duration(0.001, high=60, bare_seconds=True),
    ),
    ("backoff_base_seconds", ("BACKOFF_BASE",), reading.duration(0)),
    ("backoff_max_seconds", ("BACKOFF_MAX",), reading.duration(0)),
    ("shutdown_timeout_seconds", ("SHUTDOWN_TIMEOUT",), reading.duration(0)),
    ("drain_delay_seconds", ("DRAIN_DELAY",), reading.duration(0)),
    ("priority_aging_seconds", ("PRIORITY_AGING",), reading.duration(0)),
    ("webhook_allow_private", ("WEBHOOK_ALLOW_PRIVATE",), reading.yes_or_no),
    ("max_payload_bytes", ("MAX_PAYLOAD",), reading.whole(2, 64 << 20)),
    ("max_result_bytes", ("MAX_RESULT",), reading.whole(2, 64 << 20)),
    ("partition_days", ("PARTITION_DAYS",), reading.whole(1, 3650)),
    ("retain_completed_seconds", ("RETAIN_COMPLETED",), reading.retention),
    ("retain_failed_seconds", ("RETAIN_FAILED",), reading.retention),
    ("retain_dead_letter_seconds", ("RETAIN_DEAD_LETTER",), reading.retention),
    ("retain_cancelled_seconds", ("RETAIN_CANCELLED",), reading.retention),
    ("idempotency_retention_seconds", ("IDEMPOTENCY_RETENTION",), reading.retention),
    ("log_level", ("LOG_LEVEL",), reading.one_of("debug", "info", "warning", "error")),
    ("log_jobs", ("LOG_JOBS",), reading.share),
    ("log_format", ("LOG_FORMAT",), reading.one_of("json", "text")),
]
"""Field, the variables that set it (the first that is there wins), and how its text is read."""

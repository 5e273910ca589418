"""Every setting: its variable, its aliases, what it refuses, and what it must not show."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from fencepost.errors import InvalidSettings
from fencepost.settings import Secret, Settings, from_environment
from fencepost.settings.pooler import Pooler


def test_nothing_needs_to_be_set() -> None:
    settings = from_environment({})
    assert settings == Settings()
    assert settings.database_url is None
    assert (settings.host, settings.http_port) == ("127.0.0.1", 8080)
    assert (settings.workers, settings.max_attempts, settings.job_timeout_seconds) == (4, 5, 30)
    assert (settings.lease_seconds, settings.recovery_interval_seconds, settings.poll_interval_seconds) == (60, 30, 1)
    assert (settings.backoff_base_seconds, settings.backoff_max_seconds) == (1, 300)
    assert (settings.shutdown_timeout_seconds, settings.drain_delay_seconds) == (20, 0)
    assert settings.priority_aging_seconds == 60
    assert (settings.retain_completed_seconds, settings.idempotency_retention_seconds) == (7 * 86400, None)
    for seconds in (
        settings.retain_failed_seconds,
        settings.retain_dead_letter_seconds,
        settings.retain_cancelled_seconds,
    ):
        assert seconds == 30 * 86400
    assert not settings.webhook_allow_private
    assert settings.api_tokens == ()
    assert (settings.log_level, settings.log_format) == ("info", None)


VARIABLES: list[tuple[str, str, str, Any]] = [
    ("DATABASE_URL", "postgresql://u:p@h/d", "database_url", Secret("postgresql://u:p@h/d")),
    ("DATABASE_CONNECTIONS", "25", "database_connections", 25),
    ("SCHEMA", "Job Queue", "schema", "Job Queue"),
    ("DATA_DIR", "/var/lib/fencepost", "data_dir", Path("/var/lib/fencepost")),
    ("PORT", "9000", "http_port", 9000),
    ("HTTP_ADDR", ":9000", "http_port", 9000),
    ("HTTP_ADDR", ":9000", "host", "0.0.0.0"),
    ("HTTP_ADDR", "10.0.0.5:81", "host", "10.0.0.5"),
    ("HTTP_ADDR", "[::1]:81", "host", "::1"),
    ("HTTP_ADDR", "localhost:0", "http_port", 0),
    ("PROBE_ADDR", ":9090", "probe_host", "0.0.0.0"),
    ("PROBE_ADDR", "127.0.0.1:9090", "probe_port", 9090),
    ("WORKERS", "16", "workers", 16),
    ("WORKERS", "0", "workers", 0),
    ("WORKER_COUNT", "3", "workers", 3),
    ("MAX_ATTEMPTS", "100", "max_attempts", 100),
    ("JOB_TIMEOUT", "45s", "job_timeout_seconds", 45),
    ("LEASE_DURATION", "2m", "lease_seconds", 120),
    ("LEASE_DURATION", "120", "lease_seconds", 120),
    ("VISIBILITY_TIMEOUT", "90", "lease_seconds", 90),
    ("VISIBILITY_TIMEOUT", "1m30s", "lease_seconds", 90),
    ("LEASE_EXTENSION", "true", "lease_extension", True),
    ("RECOVERY_INTERVAL", "5s", "recovery_interval_seconds", 5),
    ("POLL_INTERVAL", "250ms", "poll_interval_seconds", 0.25),
    ("POLL_INTERVAL_SECONDS", "2", "poll_interval_seconds", 2),
    ("BACKOFF_BASE", "0", "backoff_base_seconds", 0),
    ("BACKOFF_MAX", "1h", "backoff_max_seconds", 3600),
    ("SHUTDOWN_TIMEOUT", "0", "shutdown_timeout_seconds", 0),
    ("DRAIN_DELAY", "3s", "drain_delay_seconds", 3),
    ("PRIORITY_AGING", "0", "priority_aging_seconds", 0),
    ("WEBHOOK_ALLOW_PRIVATE", "Yes", "webhook_allow_private", True),
    ("API_TOKENS", "one, two,,one", "api_tokens", (Secret("one"), Secret("two"))),
    ("PROCESSES", "3", "processes", 3),
    ("QUEUES", "mail, reports,,mail", "queues", ("mail", "reports")),
    ("MAX_PAYLOAD", "2048", "max_payload_bytes", 2048),
    ("MAX_RESULT", "4096", "max_result_bytes", 4096),
    ("PARTITION_DAYS", "7", "partition_days", 7),
    ("RETAIN_COMPLETED", "1d", "retain_completed_seconds", 86400),
    ("RETAIN_COMPLETED", "0", "retain_completed_seconds", 0),
    ("RETAIN_FAILED", "1m", "retain_failed_seconds", 60),
    ("RETAIN_DEAD_LETTER", "3650d", "retain_dead_letter_seconds", 3650 * 86400),
    ("RETAIN_CANCELLED", "12h", "retain_cancelled_seconds", 43200),
    ("IDEMPOTENCY_RETENTION", "24h", "idempotency_retention_seconds", 86400),
    ("DATABASE_POOLER", "transaction", "database_pooler", Pooler.TRANSACTION),
    ("DATABASE_LISTEN_URL", "postgresql://direct/jobs", "listen_url", Secret("postgresql://direct/jobs")),
    ("PROBE_ADDR", "0.0.0.0:9090", "probe_host", "0.0.0.0"),
    ("PROBE_ADDR", ":9091", "probe_port", 9091),
    ("LOG_LEVEL", "WARNING", "log_level", "warning"),
    ("LOG_FORMAT", "json", "log_format", "json"),
    ("LOG_JOBS", "0.01", "log_jobs", 0.01),
    ("LOG_JOBS", ".5", "log_jobs", 0.5),
    ("LOG_JOBS", "0", "log_jobs", 0.0),
    ("LOG_JOBS", "1", "log_jobs", 1.0),
]


@pytest.mark.parametrize(("variable", "text", "field", "value"), VARIABLES)
def test_a_variable_sets_its_field(variable: str, text: str, field: str, value: object) -> None:
    assert getattr(from_environment({variable: text}), field) == value
    assert getattr(from_environment({variable: f" {text} "}), field) == value or field in ("database_url", "schema")


def test_every_field_has_a_variable_that_its_description_names() -> None:
    names = {variable for variable, _, _, _ in VARIABLES}
    fields = {field for _, _, field, _ in VARIABLES} | {"http_host"}
    assert set(Settings.__struct_fields__) == fields - {"host"}
    source = Path(inspect.getfile(Settings)).read_text(encoding="utf-8")
    for name in names | {"API_TOKENS_FILE"}:
        assert name in source


@pytest.mark.parametrize(
    ("own", "alias", "field"),
    [
        ("WORKERS", "WORKER_COUNT", "workers"),
        ("LEASE_DURATION", "VISIBILITY_TIMEOUT", "lease_seconds"),
        ("POLL_INTERVAL", "POLL_INTERVAL_SECONDS", "poll_interval_seconds"),
    ],
)
def test_the_own_name_wins_over_an_alias(own: str, alias: str, field: str) -> None:
    values = {own: "47s" if field != "workers" else "47", alias: "99"}
    assert getattr(from_environment(values), field) == 47


def test_the_port_of_http_addr_wins_over_port() -> None:
    assert from_environment({"PORT": "1", "HTTP_ADDR": ":2"}).http_port == 2


def test_an_empty_variable_is_an_unset_one() -> None:
    assert from_environment({"WORKERS": "", "WORKER_COUNT": "2", "DATABASE_URL": ""}) == Settings(workers=2)


def test_flags_win_over_the_environment_and_none_is_no_flag() -> None:
    assert from_environment({"WORKERS": "9", "SCHEMA": "a"}, workers=1, schema=None) == Settings(workers=1, schema="a")


@pytest.mark.parametrize(
    ("variable", "text", "reason"),
    [
        ("WORKERS", "-1", "must be a whole number from 0 to 10,000, not '-1'"),
        ("WORKERS", "4.0", "whole number"),
        ("WORKERS", "٤", "whole number"),
        ("WORKERS", "10001", "whole number"),
        ("WORKER_COUNT", "many", "whole number"),
        ("WORKERS", "9" * 5_000, "whole number"),
        ("PORT", "65536", "from 0 to 65,535"),
        ("HTTP_ADDR", "8080", "must be host:port or :port"),
        ("HTTP_ADDR", "localhost:http", "whole number"),
        ("HTTP_ADDR", ":", "whole number"),
        ("PROBE_ADDR", "9090", "must be host:port or :port"),
        ("MAX_ATTEMPTS", "0", "from 1 to 100"),
        ("MAX_ATTEMPTS", "101", "from 1 to 100"),
        ("JOB_TIMEOUT", "30", "is not a duration"),
        ("JOB_TIMEOUT", "0", "must be from 1ms to a year"),
        ("JOB_TIMEOUT", "366d", "must be from 1ms to a year"),
        ("LEASE_DURATION", "-1s", "is not a duration"),
        ("VISIBILITY_TIMEOUT", "9" * 400, "must be from 1ms to a year"),
        ("POLL_INTERVAL", "0", "must be from 1ms to 1m"),
        ("POLL_INTERVAL", "61s", "must be from 1ms to 1m"),
        ("LEASE_EXTENSION", "maybe", "must be true or false"),
        ("WEBHOOK_ALLOW_PRIVATE", "2", "must be true or false"),
        ("QUEUES", "mail,two words", "each name must be 1 to 100 of the characters .* not 'two words'"),
        ("QUEUES", ",", "names no queue"),
        ("LOG_LEVEL", "loud", "must be one of debug, info, warning, error"),
        ("LOG_FORMAT", "xml", "must be one of json, text"),
        ("LOG_JOBS", "1.5", "a share from 0 to 1"),
        ("LOG_JOBS", "half", "a share from 0 to 1"),
        ("LOG_JOBS", "-0.1", "a share from 0 to 1"),
        ("LOG_JOBS", "nan", "a share from 0 to 1"),
        ("MAX_PAYLOAD", "1", "from 2 to"),
        ("PARTITION_DAYS", "0", "from 1 to 3,650"),
        ("RETAIN_COMPLETED", "59s", "must be 0, to keep for ever, or at least 1m"),
        ("RETAIN_FAILED", "-1d", "is not a duration"),
        ("RETAIN_DEAD_LETTER", "7", "is not a duration"),
        ("RETAIN_CANCELLED", "101y", "is not a duration"),
        ("IDEMPOTENCY_RETENTION", "1ms", "must be 0, to keep for ever, or at least 1m"),
        ("DATABASE_CONNECTIONS", "1", "from 2 to 1,000"),
        ("DATABASE_URL", "localhost/app", "must be an address such as postgresql://user@host:5432/name"),
        ("DATABASE_URL", "mysql://localhost/app", "must be an address such as postgresql://"),
        ("DATABASE_URL", "host=localhost dbname=app", "must be an address such as postgresql://"),
        ("DATABASE_URL", "postgresql+asyncpg://localhost/app", "must begin with postgresql:// alone"),
        ("DATABASE_URL", "postgresql://u@h:5432x/app", "isn't a port"),
        ("DATABASE_URL", "postgresql://u@h:65536/app", "isn't a port"),
        ("DATABASE_URL", "postgresql://u@a:1,b:x/app", "isn't a port"),
        ("DATABASE_LISTEN_URL", "localhost:5432", "must be an address such as postgresql://"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_that_was_used(variable: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidSettings, match=reason) as refused:
        from_environment({variable: text})
    assert str(refused.value).startswith(f"{variable}: ")
    assert len(str(refused.value)) < 300
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("lease", "timeout", "fits"),
    [
        ("60s", "30s", True),
        ("35s", "30s", False),
        ("35.001s", "30s", True),
        ("30s", "30s", False),
        ("5s", "1ms", False),
    ],
)
def test_a_lease_must_outlast_the_longest_attempt_by_five_seconds(lease: str, timeout: str, fits: bool) -> None:
    environment = {"LEASE_DURATION": lease, "JOB_TIMEOUT": timeout}
    if fits:
        from_environment(environment)
    else:
        with pytest.raises(InvalidSettings, match=r"LEASE_DURATION .* must exceed JOB_TIMEOUT \+ 5s"):
            from_environment(environment)
    assert from_environment({**environment, "LEASE_EXTENSION": "true"}).lease_extension


def test_flags_are_held_to_the_same() -> None:
    with pytest.raises(InvalidSettings, match="LEASE_DURATION"):
        from_environment({}, job_timeout_seconds=600.0)


@pytest.mark.parametrize("password", ["hunter/2", "hunter:2/x", "hunter#2", "hunter?2", "hun[ter2"])
def test_an_address_that_a_password_breaks_is_refused_without_showing_it(password: str) -> None:
    with pytest.raises(InvalidSettings, match=r"^DATABASE_URL: .*@ is written %40") as refused:
        from_environment({"DATABASE_URL": f"postgresql://user:{password}@host/name"})
    assert "hun" not in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "postgres://u:p@h:5432/d",
        "postgresql://u:p@ss:w@h/d",
        "postgresql:///d?host=/run/postgresql&port=5433",
        "postgresql://u@%2Frun%2Fpostgresql/d",
        "postgresql://[::1]:5432/d",
        "postgresql://a:5432,b,[::1]:5433/d?target_session_attrs=read-write",
        "postgresql://",
    ],
)
def test_every_way_to_write_an_address_is_one(address: str) -> None:
    assert from_environment({"DATABASE_URL": address}).database_url == Secret(address)


def test_a_ceiling_below_the_base_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"BACKOFF_MAX \(1s\) must not be below BACKOFF_BASE \(10s\)"):
        from_environment({"BACKOFF_BASE": "10s", "BACKOFF_MAX": "1s"})


def test_secrets_show_nowhere() -> None:
    settings = from_environment({"DATABASE_URL": "postgresql://u:hunter2@h/d", "API_TOKENS": "hunter2"})
    for shown in (repr(settings), str(settings), f"{settings}", str(settings.api_tokens), f"{settings.database_url}"):
        assert "hunter2" not in shown
    assert settings.api_tokens[0].reveal() == "hunter2"
    assert settings.api_tokens[0] == Secret("hunter2")
    assert settings.api_tokens[0] != Secret("other")
    assert settings.api_tokens[0] != "hunter2"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2


def test_tokens_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# who: what\nfirst\n\n  second  \nfirst\n", encoding="utf-8")
    settings = from_environment({"API_TOKENS": "zeroth", "API_TOKENS_FILE": str(file)})
    assert [token.reveal() for token in settings.api_tokens] == ["zeroth", "first", "second"]
    assert settings.host == "0.0.0.0"
    assert not settings.listens_openly


@pytest.mark.parametrize("content", [b"", b"# only a comment\n\n", b"\xff\xfe", None])
def test_a_tokens_file_that_gives_none_does_not_open_the_api(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidSettings, match="API_TOKENS_FILE"):
        from_environment({"API_TOKENS_FILE": str(file)})


@pytest.mark.parametrize("token", ["two words", "é", "a\tb", "\x7f"])
def test_a_token_that_no_header_could_carry_is_refused_unshown(token: str) -> None:
    with pytest.raises(InvalidSettings, match="visible ASCII") as refused:
        from_environment({"API_TOKENS": f"good-one,{token}"})
    assert "good-one" not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "openly"),
    [
        ({}, False),
        ({"HTTP_ADDR": ":8080"}, True),
        ({"HTTP_ADDR": "10.1.2.3:8080"}, True),
        ({"HTTP_ADDR": "localhost:8080"}, False),
        ({"HTTP_ADDR": "[::1]:8080"}, False),
        ({"HTTP_ADDR": ":8080", "API_TOKENS": "t"}, False),
        ({"API_TOKENS": "t"}, False),
        ({"PORT": "8080"}, False),
    ],
)
def test_an_api_that_asks_nobody_is_known_to_be_open(environment: dict[str, str], openly: bool) -> None:
    assert from_environment(environment).listens_openly is openly

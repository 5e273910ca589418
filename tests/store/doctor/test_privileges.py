"""What the doctor says of a role that lacks something: following it mends that, and takes nothing away."""

from __future__ import annotations

import shlex
from collections.abc import Collection

import pytest

from fencepost.settings import Settings
from fencepost.store import grants
from fencepost.store.database import Database
from fencepost.store.doctor.examination import CHECKS, examine
from fencepost.store.doctor.findings import Finding, Severity
from fencepost.store.grants import Grant, Purpose, grants_of

from .conftest import Ward

pytestmark = pytest.mark.anyio

PRODUCER, WORKER, READER = Purpose
OF_ROLES = {"schema.closed", "privileges.missing"}
UNTOLD = {(frozenset({PRODUCER, WORKER}), "enqueue")}
"""A worker that may not call `enqueue` is as every worker is."""


async def about_the_role(ward: Ward) -> list[Finding]:
    found = (await examine(ward.url, Settings(), quick=True)).findings
    return [one for one in found if one.code in OF_ROLES]


async def acl(ward: Ward) -> set[tuple[str, ...]]:
    """Everything that is granted in the schema."""
    rows = await ward.sql.fetch(
        "select c.relname as name, a.grantee::regrole::text as role, a.privilege_type as word "
        "from pg_class c cross join aclexplode(c.relacl) a where c.relnamespace = 'fencepost'::regnamespace "
        "union all select p.oid::regprocedure::text, a.grantee::regrole::text, a.privilege_type "
        "from pg_proc p cross join aclexplode(p.proacl) a where p.pronamespace = 'fencepost'::regnamespace "
        "union all select n.nspname, a.grantee::regrole::text, a.privilege_type "
        "from pg_namespace n cross join aclexplode(n.nspacl) a where n.nspname = 'fencepost'"
    )
    return {tuple(row) for row in rows}


async def follow(ward: Ward, owner: Database, role: str, remedy: str) -> None:
    """Do what it says, as the owner."""
    who, _, command = remedy.partition(": ")
    assert who == "as the owner of the schema"
    if not command.startswith("fencepost grant "):
        await ward.execute(command.partition(" (`")[0])
        return
    words = shlex.split(command)
    assert words[:3] == ["fencepost", "grant", role]
    assert words[3::2] == ["--to"] * len(words[4::2])
    await grants.apply(owner, role, [Purpose(word) for word in words[4::2]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "purposes",
    [{PRODUCER}, {WORKER}, {READER}, {PRODUCER, READER}, {PRODUCER, WORKER}],
    ids=lambda purposes: "-".join(sorted(purposes)),
)
async def test_each_privilege_that_is_taken_away_is_missed_and_comes_back(
    ward: Ward, monkeypatch: pytest.MonkeyPatch, purposes: Collection[Purpose]
) -> None:
    named = {"schema", "privileges"}
    monkeypatch.setattr("fencepost.store.doctor.examination.CHECKS", [one for one in CHECKS if one.name in named])
    owner = Database(ward.url, connections=2)
    await owner.open()
    role = await ward.reader(purposes)
    whole = await acl(ward)
    assert await about_the_role(ward) == []
    for grant in grants_of(purposes):
        for word in grant.privileges:
            what = f"{word} on {grant.place('fencepost')}"
            await ward.execute(f"revoke {what} from {role}")
            found = await about_the_role(ward)
            if (frozenset(purposes), grant.name.partition("(")[0]) in UNTOLD:
                assert found == []
                await ward.execute(f"grant {what} to {role}")
                continue
            assert [one.severity for one in found] == [Severity.ERROR], what
            await follow(ward, owner, role, found[0].remedy or "")
            assert await about_the_role(ward) == [], what
            assert await acl(ward) == whole, what
    await owner.close()


async def test_every_purpose_is_named(ward: Ward) -> None:
    role = await ward.reader({PRODUCER, READER})
    await ward.execute(f"revoke select on fencepost.finished from {role}")
    [found] = await about_the_role(ward)
    assert found.what == f"role {role} may not do all that a producer and a reader may: it lacks select on finished"
    assert found.remedy == f"as the owner of the schema: fencepost grant {role} --to producer --to reader"


async def test_a_worker_that_lost_most_is_a_worker(ward: Ward) -> None:
    role = await ward.reader({WORKER})
    await ward.execute(
        f"revoke all on all tables in schema fencepost from {role};"
        f"grant select on all tables in schema fencepost to {role}; grant delete on fencepost.pending to {role}"
    )
    [found] = await about_the_role(ward)
    assert (found.remedy or "").endswith(f"{role} --to worker")


async def test_what_was_granted_by_hand_stays(ward: Ward) -> None:
    owner = Database(ward.url, connections=2)
    await owner.open()
    role = await ward.reader()
    await ward.execute(
        f"grant update on fencepost.queues to {role}; grant insert on fencepost.idempotency_keys to {role}"
    )
    assert await about_the_role(ward) == []
    whole = await acl(ward)
    await ward.execute(f"revoke select on fencepost.finished, fencepost.lanes from {role}")
    [found] = await about_the_role(ward)
    assert "(`fencepost grant` would take away what it has besides: " in (found.remedy or "")
    await follow(ward, owner, role, found.remedy or "")
    assert await about_the_role(ward) == []
    assert await acl(ward) == whole
    await owner.close()


async def test_what_a_role_is_for_is_not_guessed(ward: Ward) -> None:
    role = await ward.reader()
    await ward.execute(f"revoke all on all tables in schema fencepost from {role}")
    await ward.execute(f"grant select on fencepost.schema_version, fencepost.workers to {role}")
    [found] = await about_the_role(ward)
    assert "which of them it is meant for can't be told: it has usage on the schema, select on schema" in found.what
    assert "with a --to for each that it is for" in (found.remedy or "")
    await ward.execute(f"revoke usage on schema fencepost from {role}")
    [found] = await about_the_role(ward)
    assert found.code == "schema.closed"
    assert f"fencepost grant {role} --to reader (or worker, or producer" in (found.remedy or "")


async def test_what_everybody_may_says_nothing_of_a_role(ward: Ward) -> None:
    role = await ward.reader()
    await ward.execute(
        "grant execute on all functions in schema fencepost to public;"
        "grant delete on fencepost.pending to public;"
        f"revoke select on fencepost.finished from {role}"
    )
    [found] = await about_the_role(ward)
    assert (found.remedy or "").endswith(f"{role} --to reader")


async def test_a_producer_is_told_how_to_look_without_losing_what_it_is_for(ward: Ward) -> None:
    role = await ward.reader({PRODUCER})
    found = (await examine(ward.url, Settings(), quick=True)).findings
    remedies = {one.remedy for one in found if one.code == "doctor.not_allowed"}
    assert remedies == {
        "run this as a worker or a reader; or, if this role may read jobs, as the owner of the schema: "
        f"fencepost grant {role} --to producer --to reader"
    }


def test_no_purpose_is_a_part_of_another_but_a_readers() -> None:
    """Or what a role is for couldn't be told from what it has."""
    everything = {purpose: {*_words(grants.GRANTS[purpose])} for purpose in Purpose}
    assert everything[READER] < everything[WORKER]
    for one, other in ((PRODUCER, WORKER), (PRODUCER, READER), (READER, PRODUCER), (WORKER, PRODUCER)):
        assert everything[one] - everything[other]


def _words(granted: Collection[Grant]) -> set[tuple[str, str]]:
    return {(grant.name, word) for grant in granted for word in grant.privileges}

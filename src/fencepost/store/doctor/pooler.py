"""What lies between: does DATABASE_POOLER say what is there, and does the way to listen lead to the same database."""

from __future__ import annotations

from fencepost.errors import DatabaseUnavailable, InvalidSettings
from fencepost.store import pooling
from fencepost.store.database import Database
from fencepost.store.doctor.findings import Finding, error, warning
from fencepost.store.doctor.patient import Patient
from fencepost.store.failures import translated
from fencepost.store.pooling import Pooler


async def as_said(patient: Patient) -> list[Finding]:
    """Whether there is a pooler, and DATABASE_POOLER says so."""
    said, found = patient.settings.database_pooler, await pooling.detect(patient.dsn)
    if said is Pooler.NONE and found is Pooler.SESSION and await _works_as_none(patient):
        return []
    if said is not found and not (found is Pooler.NONE and said is Pooler.SESSION):
        what = "straight to PostgreSQL" if found is Pooler.NONE else f"through a pooler in {found} mode"
        make = warning if found is Pooler.NONE else error
        return [
            make(
                "pooler.mode",
                f"DATABASE_URL leads {what}, and DATABASE_POOLER is {said}",
                f"set DATABASE_POOLER={found}",
            )
        ]
    unheard = await _unheard(patient)
    if unheard is not None:
        return [warning("pooler.listen_url", unheard, "correct DATABASE_LISTEN_URL; until then polling finds new jobs")]
    if found is Pooler.TRANSACTION and patient.settings.listen_url is None:
        return [
            warning(
                "pooler.no_listen",
                "nothing can listen through a pooler in transaction mode: idle workers find new jobs by polling alone",
                "set DATABASE_LISTEN_URL to the address of PostgreSQL itself",
            )
        ]
    return []


async def _unheard(patient: Patient) -> str | None:
    """Why nothing is heard by way of DATABASE_LISTEN_URL, if it is set."""
    if patient.settings.listen_url is None:
        return None
    try:
        with translated():
            connection = await Database.of(patient.settings, patient.dsn).connect_to_listen()
    except (InvalidSettings, DatabaseUnavailable) as error:
        return str(error)
    connection.terminate()
    return None


async def _works_as_none(patient: Patient) -> bool:
    """Whether what stands between lets everything through: a proxy that gives out process numbers of its own."""
    database = Database.of(patient.settings, patient.dsn, connections=1)
    try:
        await database.open()
    except InvalidSettings:
        return False
    finally:
        await database.close()
    return True

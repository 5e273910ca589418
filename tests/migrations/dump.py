"""
The schema as text, from the catalogue, the same from every version of PostgreSQL.

    python -m tests.migrations.dump postgresql://…/a_migrated_database > tests/migrations/schema.sql
    FENCEPOST_UPDATE_SCHEMA=1 pytest tests/migrations -k committed    # the same, on a database of the tests' own

`schema.sql` is committed, so that a migration is reviewed by what it does to the schema.
It is for reading and comparing, not for restoring: the partitions that were made for
dates are left out, and so is what only some versions of PostgreSQL keep in their catalogue.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import asyncpg

PATH = Path(__file__).with_name("schema.sql")

_RELATIONS = r"""
select c.oid, c.relname as name, c.relkind::text as kind, pg_get_partkeydef(c.oid) as partition_key,
       pg_get_expr(c.relpartbound, c.oid) as bound, obj_description(c.oid, 'pg_class') as comment,
       (select p.relname from pg_inherits i join pg_class p on p.oid = i.inhparent where i.inhrelid = c.oid) as parent,
       array_to_string(c.reloptions, ', ') as options, c.relpersistence::text as persistence
  from pg_class c
 where c.relnamespace = cast($1 as regnamespace)
   and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f')
   and c.relname !~ '_\d{8}t\d{4}$'
 order by c.relname
"""

_COLUMNS = """
select a.attname as name, format_type(a.atttypid, a.atttypmod) as type, a.attnotnull as not_null,
       a.attidentity::text as identity, pg_get_expr(d.adbin, d.adrelid) as default_value,
       a.attgenerated::text as generated, col_description(a.attrelid, a.attnum) as comment
  from pg_attribute a
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
 order by a.attnum
"""

# Not-null constraints are in the catalogue from PostgreSQL 18 on; the columns say it in every version.
_CONSTRAINTS = """
select conname as name, pg_get_constraintdef(oid) as definition
  from pg_constraint
 where conrelid = $1 and contype in ('p', 'u', 'c', 'f', 'x')
 order by contype, conname
"""

_INDEXES = """
select pg_get_indexdef(i.indexrelid) as definition
  from pg_index i
 where i.indrelid = $1
   and not exists (select from pg_constraint c where c.conindid = i.indexrelid and c.contype in ('p', 'u', 'x'))
 order by 1
"""

_FUNCTIONS = """
select p.proname as name, pg_get_function_identity_arguments(p.oid) as arguments,
       pg_get_function_result(p.oid) as result, l.lanname as language, p.provolatile::text as volatility,
       p.proparallel::text as parallel, p.proisstrict as strict, p.prosecdef as definer,
       array_to_string(p.proconfig, ', ') as settings, p.prosrc as body,
       not exists (
           select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0
       ) as granted
  from pg_proc p
  join pg_language l on l.oid = p.prolang
 where p.pronamespace = cast($1 as regnamespace)
 order by 1, 2
"""

_KINDS = {"r": "table", "p": "table", "v": "view", "m": "materialized view", "S": "sequence", "f": "foreign table"}


async def schema_text(connection: Any, schema: str = "fencepost") -> str:
    """Describe every table, index and function of *schema*; equal texts mean equal schemas."""
    quoted = await connection.fetchval("select quote_ident($1)", schema)
    parts = []
    for relation in await connection.fetch(_RELATIONS, quoted):
        parts.append(await _relation(connection, relation))
    for function in await connection.fetch(_FUNCTIONS, quoted):
        parts.append(_function(function))
    # The schema's own name is written as in the migrations, wherever it is: always quoted in bodies, else where needed.
    always_quoted = '"' + schema.replace('"', '""') + '".'
    return "\n\n".join(parts).replace(always_quoted, "fencepost.").replace(f"{quoted}.", "fencepost.") + "\n"


async def _relation(connection: Any, relation: Any) -> str:
    lines = [f"{_KINDS[relation['kind']]} {relation['name']}"]
    if relation["parent"]:
        lines.append(f"    partition of {relation['parent']} {relation['bound']}")
    if relation["partition_key"]:
        lines.append(f"    partition by {relation['partition_key']}")
    if relation["options"] or relation["persistence"] != "p":
        lines.append(f"    {relation['persistence']} {relation['options']}")
    if relation["comment"]:
        lines.append(f"    -- {relation['comment']}")
    if relation["kind"] != "S":
        lines += [_column(column) for column in await connection.fetch(_COLUMNS, relation["oid"])]
    for constraint in await connection.fetch(_CONSTRAINTS, relation["oid"]):
        lines.append(f"    constraint {constraint['name']} {constraint['definition']}")
    for index in await connection.fetch(_INDEXES, relation["oid"]):
        lines.append(f"    {index['definition']}")
    return "\n".join(lines)


def _column(column: Any) -> str:
    words = [f"    {column['name']} {column['type']}"]
    if column["not_null"]:
        words.append("not null")
    if column["identity"]:
        words.append({"a": "generated always as identity", "d": "generated by default as identity"}[column["identity"]])
    if column["default_value"]:
        words.append(f"{'stored' if column['generated'] else 'default'} {column['default_value']}")
    if column["comment"]:
        words.append(f"-- {column['comment']}")
    return " ".join(words)


def _function(function: Any) -> str:
    head = f"function {function['name']}({function['arguments']}) returns {function['result']}"
    facts = [
        function["language"],
        {"i": "immutable", "s": "stable", "v": "volatile"}[function["volatility"]],
        {"s": "parallel safe", "r": "parallel restricted", "u": "parallel unsafe"}[function["parallel"]],
        *(["strict"] if function["strict"] else []),
        *(["security definer"] if function["definer"] else []),
        *([] if function["granted"] else ["anybody's"]),
        *([function["settings"]] if function["settings"] else []),
    ]
    body = "\n".join("    " + line for line in function["body"].strip().splitlines())
    return f"{head}\n    {', '.join(facts)}\n{body}"


async def _main(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        sys.stdout.write(await schema_text(connection))
    finally:
        await connection.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    asyncio.run(_main(sys.argv[1]))

"""The SQL files: each loads, each says what it is, and the two rewrites hit nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import fencepost.store
from fencepost.errors import InvalidSettings
from fencepost.store import statements, steps

SQL = Path(fencepost.store.__file__).parent / "sql"
NAMES = sorted(str(file.relative_to(SQL).with_suffix("")) for file in SQL.rglob("*.sql"))
SCHEMAS = ["fencepost", "Job Queue", 'a"b', "é", "select", "x" * statements.SCHEMA_BYTES]


def source(name: str) -> str:
    return SQL.joinpath(f"{name}.sql").read_text(encoding="utf-8")


def without_comments(sql: str) -> str:
    return re.sub(r"--[^\n]*", "", sql)


def literals(sql: str) -> list[str]:
    return re.findall(r"'(?:[^']|'')*'", without_comments(sql))


def test_there_are_statements() -> None:
    assert len(NAMES) > 20


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_statement_loads_for_any_schema(name: str, schema: str) -> None:
    statement = statements.load(name, schema)
    fused = ["settle", "claim", name] if name == "turn" else [name]
    original = "".join(without_comments(source(part)) for part in fused)
    quoted = '"' + schema.replace('"', '""') + '"'
    assert statement.text.count(f"{quoted}.") == original.count("fencepost.")
    assert "fencepost." not in statement.text.replace('"fencepost".', "")
    assert not re.search(r"(?<![:\w]):[a-z]", statement.text), "no parameter is left"
    assert "--" not in statement.text
    numbers = {int(number) for number in re.findall(r"\$(\d+)", statement.text)}
    assert numbers == set(range(1, len(statement.parameters) + 1))
    assert len(set(statement.parameters)) == len(statement.parameters)


def test_two_statements_are_fused_as_they_are() -> None:
    """What settles and what claims is said once; a name that both use would not load."""
    fused = statements.load("turn", "s")
    for part in ("settle", "claim"):
        single = statements.load(part, "s")
        assert set(single.parameters) <= set(fused.parameters)
    assert fused.text.count("with ") == 1
    names = re.findall(r"^(\w+) as (?:materialized )?\(", fused.text.replace("with ", ""), re.M)
    assert len(names) == len(set(names)) > 10


@pytest.mark.parametrize("name", NAMES)
def test_a_file_begins_with_what_it_is_for(name: str) -> None:
    first = source(name).splitlines()[0]
    assert re.match(r"-- [A-Z].{20,}", first), first


@pytest.mark.parametrize("name", NAMES)
def test_a_head_names_the_index_and_the_locks(name: str) -> None:
    head = re.match(r"(?:--[^\n]*\n)+", source(name))
    assert head is not None
    if re.search(r"from fencepost\.(pending|leases|finished|jobs|attempts|idempotency_keys)\b.+\s+where", source(name)):
        assert re.search(r"Index(es)?: ", head[0])
    if re.search(r"insert into|update fencepost|delete from|for update", source(name)):
        assert "Locks: " in head[0]


@pytest.mark.parametrize("name", NAMES)
def test_literals_hold_nothing_that_a_rewrite_or_a_comment_could_hit(name: str) -> None:
    for literal in literals(source(name)):
        assert "fencepost." not in literal
        assert "--" not in literal
        assert not re.search(r"(?<![:\w]):[a-z]", literal)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_cast(name: str) -> None:
    """A cast says the type in psql, in the driver and to the reader, and never depends on inference."""
    sql = without_comments(source(name))
    bare = re.findall(r"(?<!cast\()(?<![:\w]):[a-z_]+", sql)
    assert not bare, bare


@pytest.mark.parametrize("name", NAMES)
def test_objects_are_qualified(name: str) -> None:
    sql = without_comments(source(name))
    tables = "jobs|pending|leases|finished|attempts|idempotency_keys|queues|lanes|workers"
    assert not re.search(rf"\b(?:from|join|into|update)\s+(?:{tables})\b", sql)


def test_the_migrations_name_the_schema_in_one_literal_only() -> None:
    inside = [
        literal
        for step in steps.steps()
        for literal in literals(step.source)
        if "fencepost." in literal
        and not literal.startswith(
            (
                "'create table", "'create trigger", "'with moved", "'alter table", "'lock table", "'insert into",
                "'drop table",
            )
        )
    ]  # fmt: skip
    assert set(inside) == {"'fencepost.jobs'"}, "as a regclass, which takes a quoted name"


@pytest.mark.slow
def test_every_file_is_used_and_every_use_has_a_file() -> None:
    package = Path(fencepost.store.__file__).parents[1]
    words = {
        node.value
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    # What the doctor asks is named without its folder.
    assert [name for name in NAMES if name.removeprefix("doctor/") not in words] == []


def test_no_sql_elsewhere() -> None:
    """Statements are files. Migration bookkeeping and the pool's own words are the exceptions."""
    package = Path(fencepost.store.__file__).parents[1]
    found = {
        path.name
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.match(r"\s*(select|insert into|update|delete from|with) .*\bfencepost\.", node.value)
    }
    assert found <= {"steps.py"}


def test_values_are_put_in_the_statements_order() -> None:
    statement = statements.Statement(name="x", text="", parameters=("b", "a"))
    assert statement.arguments({"a": 1, "b": 2}) == [2, 1]
    with pytest.raises(KeyError):
        statement.arguments({"a": 1, "c": 2})
    with pytest.raises(TypeError, match="x takes"):
        statement.arguments({"a": 1})
    with pytest.raises(TypeError, match="x takes"):
        statement.arguments({"a": 1, "b": 2, "c": 3})


def test_a_word_that_ends_like_the_qualifier_is_left_alone() -> None:
    assert statements.qualify("select myfencepost.x, fencepost.y", "s") == 'select myfencepost.x, "s".y'
    assert statements.qualify("fencepost.a", r"\1\g<0>") == r'"\1\g<0>".a'


@pytest.mark.parametrize("schema", ["", "a\x00b", "x" * 51, "é" * 26, "it's", "50%", "a$$b", "app:jobs"])
def test_a_schema_that_cannot_be_is_refused(schema: str) -> None:
    with pytest.raises(InvalidSettings, match="SCHEMA must be"):
        statements.quote_schema(schema)
    with pytest.raises(InvalidSettings, match="SCHEMA must be"):
        steps.script(schema)

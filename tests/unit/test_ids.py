"""UUIDv7: its layout, its order, and the ids that time ranges begin with."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.domain.ids import first_id_at, new_id, parse_id
from fencepost.errors import InvalidJob

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
nanoseconds = st.integers(min_value=0, max_value=(1 << 48) * 1_000_000 - 1)


def milliseconds_of(made: UUID) -> int:
    return made.int >> 80


@given(nanoseconds)
def test_the_layout_is_that_of_version_7(now: int) -> None:
    made = new_id(now_ns=lambda: now)
    assert made.version == 7
    assert made.variant == RFC_4122
    # Ascending from the last one may take it over the edge.
    assert milliseconds_of(made) - now // 1_000_000 in (0, 1)


def test_ids_can_still_be_made_at_the_end_of_their_time() -> None:
    last = 281_474_976_710_655_999_998
    made = {new_id(now_ns=lambda: last) for _ in range(10)}
    assert len(made) == 10
    assert {milliseconds_of(one) for one in made} == {(1 << 48) - 1}
    assert {one.version for one in made} == {7}


def test_it_carries_the_present() -> None:
    before = time.time_ns() // 1_000_000
    made = milliseconds_of(new_id())
    assert before <= made <= time.time_ns() // 1_000_000


def test_ten_thousand_of_one_millisecond_are_all_different() -> None:
    made = {new_id(now_ns=lambda: 1_700_000_000_000_000_000) for _ in range(10_000)}
    assert len(made) == 10_000


def test_ids_of_one_process_ascend() -> None:
    made = [new_id(now_ns=lambda: 1_800_000_000_000_999_000) for _ in range(1000)]
    made += [new_id() for _ in range(1000)]
    assert made[:1000] == sorted(made[:1000])
    assert made[1000:] == sorted(made[1000:])


def test_the_fraction_of_a_millisecond_is_kept() -> None:
    made = new_id(now_ns=lambda: 1_900_000_000_000_500_000)
    assert made.int >> 64 & 0xFFF == 2048


def test_a_clock_that_was_set_back_is_followed() -> None:
    later, earlier = 2_000_000_000_000_000_000, 1_999_999_999_990_000_000
    new_id(now_ns=lambda: later)
    assert milliseconds_of(new_id(now_ns=lambda: earlier)) == earlier // 1_000_000


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_does_not_make_its_parents_ids() -> None:
    new_id()
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sending, new_id(now_ns=lambda: 0).bytes)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(receiving, 16)[8:] != new_id(now_ns=lambda: 0).bytes[8:]


def test_all_62_random_bits_are_used() -> None:
    made = [new_id(now_ns=lambda: 0).int for _ in range(200)]
    ones, zeros = 0, (1 << 128) - 1
    for value in made:
        ones |= value
        zeros &= value
    random = (1 << 62) - 1
    assert ones & random == random, "each can be one"
    assert zeros & random == 0, "each can be zero"


@given(nanoseconds, nanoseconds)
def test_a_later_millisecond_sorts_later(one: int, other: int) -> None:
    if one // 1_000_000 < other // 1_000_000:
        assert new_id(now_ns=lambda: one) < new_id(now_ns=lambda: other)


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1)))
def test_the_first_id_of_a_moment_bounds_its_ids(naive: datetime) -> None:
    moment = naive.replace(tzinfo=UTC)
    now = (moment - EPOCH) // timedelta(microseconds=1) * 1_000
    first = first_id_at(moment)
    assert first <= new_id(now_ns=lambda: now)
    assert milliseconds_of(first) == now // 1_000_000
    if now >= 1_000_000:
        assert new_id(now_ns=lambda: now - 1_000_000) < first


def test_moments_no_id_can_name_are_bounded() -> None:
    assert first_id_at(datetime(1969, 1, 1, tzinfo=UTC)) == UUID(int=0)
    assert first_id_at(datetime(9999, 12, 31, tzinfo=UTC)).int >> 80 < 1 << 48


def test_reads_an_id_in_its_usual_form() -> None:
    made = new_id()
    assert parse_id(str(made)) == made
    assert parse_id(str(made).upper()) == made


@pytest.mark.parametrize(
    "text",
    [
        "", "1", "0" * 32, "{01890a5d-ac96-774b-bcce-b302099a8057}", "urn:uuid:01890a5d-ac96-774b-bcce-b302099a8057",
        "01890a5d-ac96-774b-bcce-b302099a805g", "01890a5d-ac96-774b-bcce-b302099a80570", "../../etc/passwd", "x" * 5000,
        "01890a5d-ac96-774b-bcce-b302099a805\x00",
    ],
)  # fmt: skip
def test_refuses_anything_else_and_stays_short(text: str) -> None:
    with pytest.raises(InvalidJob, match="is not a job id") as refused:
        parse_id(text)
    assert refused.value.field == "id"
    assert len(str(refused.value)) < 400

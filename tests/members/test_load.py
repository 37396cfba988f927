"""The load board: figures and reservations that all workers see at once."""

from __future__ import annotations

import os
import subprocess
import sys

from sessionworkers.members import Member, Roster, RuntimeDir
from sessionworkers.members.load import PAGE, Load, LoadBoard, Page

LOAD = Load(sessions=3, held=30.5, in_flight=2, work=7.25, cap=10, rejected=4, draining=True, until=12345.678, wait=0.5)


def test_figures_are_read_as_published() -> None:
    page = Page(bytearray(PAGE))
    assert page.read() is None
    page.publish(LOAD)
    assert page.read() == LOAD
    assert (LOAD.current, LOAD.free, Load(sessions=3).free) == (37.75, 7, None)


def test_reservations_add_up_and_are_released_once() -> None:
    board = LoadBoard(None, "me")
    held = [board.reserve("me", 10.0) for _ in range(3)]
    other = board.reserve("other", 5.0)
    assert board.pending("me") == (3, 30.0)
    assert board.pending("other") == (1, 5.0)
    held[0].release()
    held[0].release()
    assert board.pending("me") == (2, 20.0)
    other.release()
    assert board.pending("other") == (0, 0.0)


def test_what_has_arrived_counts_once_however_late_the_reply_is_read(base: str) -> None:
    runtime = RuntimeDir.create(base)
    uids = ["a" * 24, "b" * 24]
    one, other = (LoadBoard(runtime, uid, lambda: uids) for uid in uids)
    try:
        for board in (one, other):
            board.mine.publish(Load())
        held = [one.reserve(uids[1], 10.0) for _ in range(3)]
        assert one.pending(uids[1]) == other.pending(uids[1]) == (3, 30.0)
        other.arrived(uids[0], 10.0)  # in its figures; the reply is on its way
        assert one.pending(uids[1]) == (2, 20.0)
        held[0].arrived()
        assert one.pending(uids[1]) == (2, 20.0)
        held[1].release()  # refused
        assert other.pending(uids[1]) == (1, 10.0)
        other.arrived(uids[0], 10.0)
        held[2].release()  # it did arrive, but the link broke: nobody here knows
        assert one.pending(uids[1]) == (0, 0.0)
        again = one.reserve(uids[1], 5.0)  # settled: nothing of that is carried on
        assert other.pending(uids[1]) == (1, 5.0)
        again.release()
    finally:
        one.close()
        other.close()
        runtime.remove()


def test_entries_are_used_again() -> None:
    board = LoadBoard(None, "me")
    for number in range(1000):
        board.reserve(f"target-{number}", 1.0).release()
    kept = [board.reserve(f"kept-{number}", 1.0) for number in range(100)]
    assert all(board.pending(f"kept-{number}") == (1, 1.0) for number in range(100))
    for each in kept:
        each.release()


def test_a_full_row_reserves_nothing_and_hurts_nobody() -> None:
    board = LoadBoard(None, "me")
    held = [board.reserve(f"target-{number}", 1.0) for number in range(300)]
    assert board.pending("target-0") == (1, 1.0)
    assert board.pending("target-299") == (0, 0.0)
    for each in held:
        each.release()
    assert board.pending("target-0") == (0, 0.0)


CHILD = """
import sys
from sessionworkers.members import Member, Roster, RuntimeDir
from sessionworkers.members.load import Load, LoadBoard
runtime = RuntimeDir.adopt(sys.argv[1])
member = Member.enlist(runtime)
member.bind()
member.publish()
board = LoadBoard(runtime, member.uid, Roster(runtime).serving)
board.mine.publish(Load(sessions=7, held=70.0))
kept = [board.reserve(uid, 2.0) for uid in sys.argv[2:]]
print(member.uid, flush=True)
sys.stdin.readline()
"""


def test_workers_see_each_other_and_the_dead_count_no_more(base: str) -> None:
    runtime = RuntimeDir.create(base)
    member = Member.enlist(runtime)
    listener = member.bind()
    member.publish()
    board = LoadBoard(runtime, member.uid, Roster(runtime).serving)
    board.mine.publish(Load(sessions=1))
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, runtime.path, member.uid], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert child.stdin is not None
        uid = child.stdout.readline().decode().strip()
        assert {each: load.sessions for each, load in board.loads().items()} == {member.uid: 1, uid: 7}
        assert board.pending(member.uid) == (1, 2.0)
        mine = board.reserve(uid, 3.0)
        assert {each[0]: each[2:] for each in board.standing()} == {member.uid: (1, 2.0), uid: (1, 3.0)}
        mine.release()
        child.kill()
        child.wait()
        assert list(board.loads()) == [member.uid]
        assert board.pending(member.uid) == (0, 0.0)
        assert f"{uid}.load" in os.listdir(runtime.members_fd)
        Roster(runtime).bury()
        assert f"{uid}.load" not in os.listdir(runtime.members_fd)
    finally:
        child.kill()
        child.communicate()
        listener.close()
        board.close()
        assert f"{member.uid}.load" not in os.listdir(runtime.members_fd)
        member.retire()
        runtime.remove()

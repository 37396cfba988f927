"""What a crash left is cleared, what lives is not (threat F9)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sessionworkers.members import Member, RuntimeDir, sweep, sweep_stale
from sessionworkers.members.sweep import any_member

from .conftest import tree
from .processes import WORKER, script

SERVER = """
runtime = RuntimeDir.create(sys.argv[1])
say(runtime.path)
wait()
"""


def crash(base: str) -> str:
    """A server and a worker of it, killed. The path that they leave."""
    with script(SERVER, base) as server:
        path = server.line()
        with script(WORKER, path) as worker:
            worker.line()
            Path(path, "claims", "0" * 32).write_text("")
    return path


def test_a_crashed_server_is_swept(base: str) -> None:
    path = crash(base)
    assert os.path.isdir(path)
    assert sweep_stale(base) == [path]
    assert os.listdir(base) == []


def test_twenty_kills_leave_nothing_and_a_second_server_is_not_touched(base: str) -> None:
    with script(SERVER, base) as second:
        living = second.line()
        with script(WORKER, living) as worker:
            uid = worker.line()
            before = tree(living)
            for _ in range(20):
                with script(SERVER, base) as server:
                    path = server.line()
                assert sorted(os.listdir(base)) == sorted(os.path.basename(each) for each in (living, path))
            fresh = RuntimeDir.create(base)
            assert sorted(os.listdir(base)) == sorted(os.path.basename(each) for each in (living, fresh.path))
            assert fresh.remove()
            assert tree(living) == before and any(uid in name for name in before)
            fresh.close()


def test_workers_that_outlive_their_server_keep_it(base: str) -> None:
    with script(SERVER, base) as server:
        path = server.line()
        worker = script(WORKER, path)
        orphan = worker.__enter__()
        orphan.line()
    assert sweep_stale(base) == []
    assert os.path.exists(f"{path}/server.lock")
    worker.__exit__(None, None, None)
    assert sweep_stale(base) == [path]


def test_ones_own_are_not_swept_and_keep_their_lock(base: str) -> None:
    runtime = RuntimeDir.create(base)
    assert sweep_stale(base) == []
    code = "say(sweep_stale(sys.argv[1])); wait()"
    with script(code, base) as other:
        assert other.line() == "[]"  # so looking at it did not drop the lock
    assert runtime.remove()
    runtime.close()


def test_only_ones_own_user_only_our_names_and_no_links(base: str, stranger: tuple[str, ...]) -> None:
    victim = f"{base}/victim"
    os.makedirs(f"{victim}/members")
    path = crash(base)
    os.symlink(victim, f"{base}/sw-aaaaaaaa")
    os.rename(path, f"{base}/sw-UPPERCAS")
    theirs = crash(base)
    os.chown(theirs, 65534, 65534)
    os.symlink(victim, f"{theirs}/members/link")
    assert sweep_stale(base) == []
    assert sweep_stale(base, (65534,)) == [theirs]
    assert sorted(os.listdir(base)) == ["sw-UPPERCAS", "sw-aaaaaaaa", "victim"]
    assert tree(victim) == ["members"]


def test_a_link_inside_is_removed_as_a_link(base: str) -> None:
    os.mkdir(f"{base}/victim")
    Path(base, "victim", "file").write_text("kept")
    path = crash(base)
    os.symlink(f"{base}/victim", f"{path}/claims/link")
    os.symlink(f"{base}/victim", f"{path}/link")
    assert sweep_stale(base) == [path]
    assert Path(base, "victim", "file").read_text() == "kept"


@pytest.mark.parametrize("left", [[], [".server.lock.0123abcd"]])
def test_one_that_died_before_its_lock_goes_when_it_is_old(base: str, left: list[str]) -> None:
    path = f"{base}/sw-bbbbbbbb"
    os.mkdir(path, 0o700)
    for name in left:
        Path(path, name).touch()
    assert sweep_stale(base) == []  # it may be just starting
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))
    assert sweep_stale(base) == [path]


def test_one_without_a_lock_that_holds_more_is_left(base: str) -> None:
    path = f"{base}/sw-cccccccc"
    os.makedirs(f"{path}/members")
    os.utime(path, (1.0, 1.0))
    assert sweep_stale(base) == []


def test_a_killed_sweep_is_finished_by_the_next(base: str) -> None:
    path = crash(base)
    os.rename(f"{path}/server.lock", f"{path}/server.gone")
    os.unlink(f"{path}/mask.key")
    assert sweep_stale(base) == [path]


def test_a_missing_base_is_no_error() -> None:
    assert sweep_stale("/no/such/base") == []


def test_starts_and_sweeps_at_once(base: str) -> None:
    """Four processes start, sweep each other's surroundings, enlist and leave: nobody's directory goes under him."""
    code = """
    for turn in range(30):
        runtime = RuntimeDir.create(sys.argv[1])
        member = Member.enlist(runtime)
        store = DirectoryStore(runtime, member)
        key = f"{turn:032x}"
        assert store.claim(key) == member.uid
        sweep_stale(sys.argv[1])
        assert RuntimeDir.adopt(runtime.path).standing
        assert store.owner(key) == member.uid
        if turn % 3:
            member.retire()
            assert runtime.remove(), runtime.path
        else:
            member.retire()
            runtime.close()  # left behind, as by a crash
    say("done"); wait()
    """
    with script(code, base) as a, script(code, base) as b, script(code, base) as c, script(code, base) as d:
        assert [each.line() for each in (a, b, c, d)] == ["done"] * 4
    sweep_stale(base)
    assert os.listdir(base) == []


def test_a_worker_cannot_slip_in_under_a_sweep(base: str) -> None:
    """Orphans enlist while their directory is swept: each either fails to start or is left alone."""
    enlist = """
    from sessionworkers.errors import SessionworkersError
    try:
        runtime = RuntimeDir.adopt(sys.argv[1])
        say("ready"); wait()
        member = Member.enlist(runtime)
    except SessionworkersError:
        say("refused")
    else:
        say("in" if os.path.exists(os.path.join(sys.argv[1], "server.lock")) else "lost")
    wait()
    """
    for _ in range(5):
        path = crash(base)
        for number in range(1, 2000):  # so that the sweep takes its time
            os.link(f"{path}/claims/{0:032x}", f"{path}/claims/{number:032x}")
        with script(enlist, path) as worker:
            assert worker.line() == "ready"
            worker.go()
            swept = sweep_stale(base)
            word = worker.line()
            # Both may give way to the other; never may both go on.
            assert word == "refused" or (word, swept) == ("in", []), (word, swept)
        sweep_stale(base)
        assert not os.path.exists(path)


def test_a_worker_that_came_after_the_first_look_is_seen_by_the_second(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with script(SERVER, base) as server:
        path = server.line()
    with script(WORKER, path) as worker:
        worker.line()
        looks = []

        def first_look_is_too_early(fd: int) -> bool:
            looks.append(os.path.exists(f"{path}/server.lock"))
            return len(looks) > 1 and any_member(fd)

        monkeypatch.setattr(sweep, "any_member", first_look_is_too_early)
        assert sweep_stale(base) == []
        assert looks == [True, False]  # the name that the worker checks was hidden before the second look
        assert os.path.exists(f"{path}/server.lock") and len(tree(path)) > 7


def test_a_worker_of_a_removed_directory_says_so(base: str) -> None:
    from sessionworkers.errors import StartupError

    runtime = RuntimeDir.create(base)
    late = RuntimeDir.adopt(runtime.path)
    os.rename(f"{runtime.path}/server.lock", f"{runtime.path}/server.gone")
    with pytest.raises(StartupError, match="is being removed"):
        Member.enlist(late)
    os.rename(f"{runtime.path}/server.gone", f"{runtime.path}/server.lock")
    assert runtime.remove()
    with pytest.raises(StartupError, match="cannot enlist"):
        Member.enlist(late)
    late.close()
    runtime.close()

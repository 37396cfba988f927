"""The life lock: it says "alive" exactly while its holder is, whatever else closes, forks or dies."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sessionworkers.members import locks

from .processes import script

HOLDER = """
from sessionworkers.members import locks
fd = os.open(sys.argv[1], os.O_RDONLY)
lock = locks.take(fd, "l", shared=sys.argv[2] == "shared")
say("held"); wait()
"""


@pytest.fixture
def place(base: str) -> int:
    return os.open(base, os.O_RDONLY | os.O_DIRECTORY)


def test_held_until_killed(base: str, place: int) -> None:
    assert not locks.is_held(place, "l")
    with script(HOLDER, base, "alone") as holder:
        holder.line()
        assert locks.is_held(place, "l")
        assert locks.grab(place, "l") is None
        with pytest.raises(TimeoutError):
            locks.join(place, "l", wait=0.02)
        with pytest.raises(FileExistsError):
            locks.take(place, "l")
        holder.kill()
    assert not locks.is_held(place, "l")
    lock = locks.grab(place, "l")
    assert lock is not None
    lock.release()
    assert os.listdir(base) == ["l"]


def test_its_own_process_can_ask_without_losing_it(base: str, place: int) -> None:
    lock = locks.take(place, "l")
    os.link("l", "other", src_dir_fd=place, dst_dir_fd=place)  # any hard link is the same lock
    assert locks.is_held(place, "l") and locks.is_held(place, "other")
    assert locks.grab(place, "l") is None
    again, alone = locks.join(place, "l")
    assert again is lock and not alone
    ask = "from sessionworkers.members import locks; say(locks.is_held(os.open(sys.argv[1], os.O_RDONLY), 'l')); wait()"
    with script(ask, base) as other:
        assert other.line() == "True"
    lock.release()
    assert locks.is_held(place, "l")  # one use is left
    lock.release()
    assert not locks.is_held(place, "l")
    lock.release()


def test_shared_and_whole(base: str, place: int) -> None:
    with script(HOLDER, base, "shared") as holder:
        holder.line()
        mine, alone = locks.join(place, "l")
        assert not alone and not mine.upgrade()
        holder.kill()
    assert mine.upgrade()
    ask = "from sessionworkers.members import locks; say(locks.grab(os.open(sys.argv[1], os.O_RDONLY), 'l')); wait()"
    with script(ask, base) as other:
        assert other.line() == "None"
    mine.downgrade()
    mine.release()
    mine, alone = locks.join(place, "l")
    assert alone
    mine.release()


def test_join_waits_for_the_one_that_cleans_up(base: str, place: int) -> None:
    code = """
    from sessionworkers.members import locks
    lock, alone = locks.join(os.open(sys.argv[1], os.O_RDONLY), "l", create=True)
    say(alone); wait()
    lock.downgrade(); say("shared"); wait()
    """
    with script(code, base) as cleaner:
        assert cleaner.line() == "True"
        cleaner.go()
        mine, alone = locks.join(place, "l")
        assert not alone and cleaner.line() == "shared"
    mine.release()


@pytest.mark.parametrize("kind", ["fifo", "directory", "link", "nothing"])
def test_what_is_no_lock_file_is_not_held_and_nothing_waits(base: str, place: int, kind: str) -> None:
    path = f"{base}/l"
    if kind != "nothing":
        {"fifo": os.mkfifo, "directory": os.mkdir, "link": lambda name: os.symlink("/dev/zero", name)}[kind](path)
    assert not locks.is_held(place, "l")
    with pytest.raises(OSError) as caught:
        locks.join(place, "l")
    assert caught.value.errno in (errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENOENT)


def test_a_lock_file_has_no_name_before_it_is_locked(base: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        assert not Path(base, "l").exists()
        raise OSError(errno.ENOSPC, "no space")

    before = dict(locks._held)
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="no space"):
        locks.take(place, "l")
    assert os.listdir(base) == []
    assert locks._held == before

"""Shared names: seen by everyone at once, one slot each, bounded, and free to look at."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from sessionworkers.errors import RuntimeDirError
from sessionworkers.members import NamesBoard, RuntimeDir
from sessionworkers.members.board import MAX_NAME, MAX_NAMES

from .processes import script


def test_a_name_is_seen_by_all(runtime: RuntimeDir) -> None:
    a, b = NamesBoard(runtime), NamesBoard(runtime)
    assert a.names() == b.names() == frozenset()
    assert a.revision == b.revision == 0
    a.add("session_id")
    assert b.revision == 1
    assert b.names() == {"session_id"}
    assert b.names() is b.names()
    b.add("session_id")
    b.add("thread/../id ü \udc80")
    assert a.names() == {"session_id", "thread/../id ü \udc80"}
    assert a.revision == 2
    late = NamesBoard(runtime)
    assert late.names() == a.names()
    assert sorted(os.listdir(f"{runtime.path}/names")) == ["000", "001", "page"]
    for board in (a, b, late):
        board.close()


def test_the_next_look_of_another_process_sees_it(runtime: RuntimeDir) -> None:
    code = """
    board = NamesBoard(RuntimeDir.adopt(sys.argv[1]))
    while True:
        wait()
        say(board.revision, *sorted(board.names()))
    """
    mine = NamesBoard(runtime)
    with script(code, runtime.path) as other:
        for number in range(1, 200):
            mine.add(f"n{number:03}")
            other.go()
            revision, *names = other.line().split()
            assert int(revision) == len(names) == number
    mine.close()


def test_adders_at_once_lose_and_double_nothing(runtime: RuntimeDir) -> None:
    code = """
    board = NamesBoard(RuntimeDir.adopt(sys.argv[1]))
    say("ready"); wait()
    for number in range(60):
        board.add(f"common{number}")
        name = f"{sys.argv[2]}-{number}"
        if number % 2:
            board.add(name)
            assert name in board.names()
    say("done"); wait()
    """
    with (
        script(code, runtime.path, "a") as a,
        script(code, runtime.path, "b") as b,
        script(code, runtime.path, "c") as c,
        script(code, runtime.path, "d") as d,
    ):
        for step in ("ready", "done"):
            for each in (a, b, c, d):
                assert each.line() == step
            for each in (a, b, c, d):
                each.go()
    board = NamesBoard(runtime)
    expected = {f"common{n}" for n in range(60)} | {f"{w}-{n}" for w in "abcd" for n in range(1, 60, 2)}
    assert board.names() == expected
    assert board.revision == len(expected) == 180
    assert len(os.listdir(f"{runtime.path}/names")) == 181
    board.close()


def test_it_is_bounded_and_says_so_once(runtime: RuntimeDir, caplog: pytest.LogCaptureFixture) -> None:
    board = NamesBoard(runtime)
    with caplog.at_level(logging.WARNING):
        for number in range(MAX_NAMES + 10):
            board.add(f"n{number}")
    assert len(board.names()) == board.revision == MAX_NAMES
    assert len(caplog.records) == 1
    other = NamesBoard(runtime)
    assert other.names() == board.names()
    other.add("n0")
    board.close()
    other.close()


@pytest.mark.parametrize(("name", "kept"), [("", False), ("x" * MAX_NAME, True), ("x" * (MAX_NAME + 1), False)])
def test_length(runtime: RuntimeDir, name: str, kept: bool) -> None:
    board = NamesBoard(runtime)
    board.add(name)
    assert (name in board.names()) == kept
    board.close()


def test_a_writer_that_died_before_it_told_is_helped(runtime: RuntimeDir) -> None:
    board = NamesBoard(runtime)
    Path(runtime.path, "names", "000").write_text("half told")  # linked, and then killed before the byte was set
    assert board.names() == frozenset()
    board.add("mine")
    assert board.names() == {"half told", "mine"}
    other = NamesBoard(runtime)
    assert other.names() == board.names()
    board.close()
    other.close()


def test_a_full_disk_adds_nothing(runtime: RuntimeDir, monkeypatch: pytest.MonkeyPatch) -> None:
    board = NamesBoard(runtime)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:1]))
    with pytest.raises(OSError, match="in part"):
        board.add("session_id")
    monkeypatch.undo()
    assert board.names() == frozenset()
    assert os.listdir(f"{runtime.path}/names") == ["page"]
    board.close()


def test_what_is_no_page(runtime: RuntimeDir) -> None:
    os.truncate(f"{runtime.path}/names/page", 10)
    with pytest.raises(RuntimeDirError, match="names/page is not 4096 bytes"):
        NamesBoard(runtime)

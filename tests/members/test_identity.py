"""A worker's identity and the roster that tells the living from the dead."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sessionworkers.claims import DirectoryStore
from sessionworkers.errors import StartupError
from sessionworkers.members import Identities, Member, Roster, RuntimeDir
from sessionworkers.members.roster import valid_uid

from .conftest import tree
from .processes import ROOT, WORKER, script


def test_what_enlisting_lays_down(runtime: RuntimeDir) -> None:
    member = Member.enlist(runtime)
    assert valid_uid(member.uid) and len(member.uid) == 24
    assert sorted(os.listdir(f"{runtime.path}/members")) == [f"{member.uid}.0.id", f"{member.uid}.lock"]
    content = json.loads(Path(runtime.path, "members", f"{member.uid}.0.id").read_bytes())
    assert content.keys() == {"sessionworkers", "uid", "made"}
    assert (content["sessionworkers"], content["uid"]) == (1, member.uid)
    roster = Roster(runtime)
    assert roster.uids() == []
    member.publish()
    assert roster.uids() == roster.serving() == [member.uid]
    member.publish()
    member.drain()
    assert (roster.uids(), roster.serving()) == ([member.uid], [])
    member.drain()
    member.publish()
    assert roster.serving() == [member.uid]
    member.retire()
    assert roster.uids() == []
    assert sorted(os.listdir(f"{runtime.path}/members")) == [f"{member.uid}.0.id"]
    member.retire()


def test_the_listener_is_private_from_its_first_moment(runtime: RuntimeDir, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        member = Member.enlist(runtime)
        with monkeypatch.context() as patch:
            patch.delattr(os, "umask")  # which other threads would see changed
            listener = member.bind()
    finally:
        os.umask(before)
    assert member.socket_path == Roster(runtime).socket_path(member.uid) == f"{runtime.path}/s/{member.uid}"
    assert stat.S_IMODE(os.stat(member.socket_path).st_mode) == 0o600
    assert not listener.getblocking() and not listener.get_inheritable()
    for path in Path(runtime.path).rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(member.socket_path)
    with pytest.raises(StartupError, match="Address already in use"):
        member.bind()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(member.socket_path)  # the live one was not taken over
    member.retire()
    assert not os.path.exists(member.socket_path)
    listener.close()


def test_a_kernel_that_ignores_the_sockets_mode(runtime: RuntimeDir, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o022)
    try:
        member = Member.enlist(runtime)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fchmod", lambda fd, mode: None)
            listener = member.bind()
        assert stat.S_IMODE(os.stat(member.socket_path).st_mode) == 0o600
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    member.retire()
    listener.close()


def test_another_user_cannot_connect(runtime: RuntimeDir, strange_python: tuple[str, ...]) -> None:
    member = Member.enlist(runtime)
    listener = member.bind()
    code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    for open_directory in (False, True):
        if open_directory:  # an operator loosened the directory: the socket itself still holds
            os.chmod(runtime.path, 0o755)
            os.chmod(f"{runtime.path}/s", 0o755)
        done = subprocess.run(
            [*strange_python, sys.executable, "-c", code, member.socket_path], capture_output=True, text=True, cwd=ROOT
        )
        assert "PermissionError" in done.stderr, done.stderr
    member.retire()
    listener.close()


def test_dead_at_once_when_killed_and_for_ever(runtime: RuntimeDir) -> None:
    roster = Roster(runtime)
    for _ in range(20):
        with script(WORKER, runtime.path) as worker:
            uid = worker.line()
            assert roster.alive(uid) and roster.uids() == [uid]
            worker.kill()
            assert not roster.alive(uid)
            assert roster.uids() == []
    # Somebody else's lock on the dead one's file brings nobody back to life.
    code = """
    import fcntl
    fd = os.open(sys.argv[1], os.O_RDWR); fcntl.lockf(fd, fcntl.LOCK_EX); say("locked"); wait()
    """
    with script(code, f"{runtime.path}/members/{uid}.lock") as other:
        assert other.line() == "locked"
        assert not roster.alive(uid)
    roster.close()


def test_a_stopped_worker_is_alive(runtime: RuntimeDir) -> None:
    roster = Roster(runtime)
    with script(WORKER, runtime.path) as worker:
        uid = worker.line()
        worker.process.send_signal(19)
        assert roster.alive(uid) and Roster(runtime).alive(uid)
    roster.close()


def test_workers_see_each_other_and_themselves(runtime: RuntimeDir) -> None:
    code = """
    runtime = RuntimeDir.adopt(sys.argv[1])
    member = Member.enlist(runtime); member.publish()
    roster = Roster(runtime, member)
    say(member.uid); wait()
    for _ in range(3):
        say(*roster.uids()); say(roster.alive(member.uid))
    wait()
    """
    with script(code, runtime.path) as a, script(code, runtime.path) as b:
        both = sorted([a.line(), b.line()])
        for each in (a, b):
            each.go()
            for _ in range(3):
                assert each.line().split() == both
                assert each.line() == "True"
        roster = Roster(runtime)
        for _ in range(3):  # asking about themselves did not cost them their locks
            assert roster.uids() == both
        roster.close()


def test_two_members_of_one_process(runtime: RuntimeDir) -> None:
    a, b = Member.enlist(runtime), Member.enlist(runtime)
    roster = Roster(runtime)
    assert roster.alive(a.uid) and roster.alive(b.uid)
    code = "roster = Roster(RuntimeDir.adopt(sys.argv[1])); say(*map(roster.alive, sys.argv[2:])); wait()"
    with script(code, runtime.path, a.uid, b.uid) as other:
        assert other.line() == "True True"
    a.retire()
    assert not roster.alive(a.uid) and roster.alive(b.uid)
    with script(code, runtime.path, a.uid, b.uid) as other:
        assert other.line() == "False True"
    b.retire()


@pytest.mark.parametrize("uid", ["", "0" * 15, "../../etc/passwd", "g" * 24, "A" * 24, "0" * 65, "0" * 24 + "\n"])
def test_what_is_no_uid(runtime: RuntimeDir, uid: str) -> None:
    roster = Roster(runtime)
    assert not roster.alive(uid)
    with pytest.raises(ValueError, match="not a worker's uid"):
        roster.socket_path(uid)


def test_an_unknown_uid_may_come_to_life(runtime: RuntimeDir) -> None:
    roster = Roster(runtime)
    with script("wait(); " + WORKER.replace("\n", "\n"), runtime.path) as worker:
        assert not roster.alive("0" * 24)
        worker.go()
        assert roster.alive(worker.line())
    roster.close()


def test_bury_removes_what_the_dead_left_but_the_tombstone(runtime: RuntimeDir) -> None:
    roster = Roster(runtime)
    code = WORKER.replace("say(", "DirectoryStore(runtime, member).claim(member.uid + '0' * 8); say(")
    with script(code, runtime.path) as living, script(code, runtime.path) as dying:
        alive, dead = living.line(), dying.line()
        before = tree(runtime.path)
        assert roster.bury() == []
        assert tree(runtime.path) == before
        dying.kill()
        assert roster.bury() == [dead]
        gone = {f"s/{dead}", f"members/{dead}.serving", f"members/{dead}.lock"}
        assert set(before) - set(tree(runtime.path)) == gone
        assert roster.bury() == []
        assert not roster.alive(dead) and not Roster(runtime).alive(dead)
        assert roster.uids() == [alive]
        me = Member.enlist(runtime)
        assert DirectoryStore(runtime, me).owner(dead + "0" * 8) == dead
        me.retire()
    roster.close()


def test_retiring_without_a_tombstone_takes_the_claims_along(runtime: RuntimeDir) -> None:
    a, b = Member.enlist(runtime), Member.enlist(runtime)
    stores = DirectoryStore(runtime, a), DirectoryStore(runtime, b)
    for number in range(10):
        stores[number % 2].claim(f"{number:032x}")
    a.identities.fresh(a.uid, 1)
    a.retire(keep_tombstone=False)
    assert sorted(os.listdir(f"{runtime.path}/claims")) == [f"{number:032x}" for number in range(1, 10, 2)]
    # The identity stays: its inode number would otherwise come to name another worker.
    assert os.path.exists(f"{runtime.path}/members/{a.uid}.0.id")
    b.retire()


def test_fresh_identities_never_share_a_name(runtime: RuntimeDir) -> None:
    code = """
    runtime = RuntimeDir.adopt(sys.argv[1])
    say(*[Identities(runtime.members_fd).fresh("0" * 24) for _ in range(100)]); wait()
    """
    with script(code, runtime.path) as a, script(code, runtime.path) as b:
        numbers = [int(number) for each in (a, b) for number in each.line().split()]
    assert sorted(numbers) == list(range(200))
    found = Identities(runtime.members_fd).scan()
    assert sorted(number for uid, number in found.values() if uid == "0" * 24) == list(range(200))
    assert not [name for name in os.listdir(f"{runtime.path}/members") if name.startswith(".")]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * 4000,
        b'{"uid": "000000000000000000000000"}',
        b'{"sessionworkers": 2, "uid": "000000000000000000000000"}',
        b'{"sessionworkers": 1, "uid": "../../x"}',
        b'{"sessionworkers": 1, "uid": 7}',
        b'{"sessionworkers": 1, "uid": "000000000000000000000000"}' + b" " * 4096,
    ],
)
def test_what_is_no_identity(data: bytes) -> None:
    assert Identities.parse(data) is None


def test_a_full_disk_is_a_startup_error(runtime: RuntimeDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    with pytest.raises(StartupError, match="cannot enlist"):
        Member.enlist(runtime)
    monkeypatch.undo()
    assert os.listdir(f"{runtime.path}/members") == []
    assert runtime.remove()


def test_only_the_standard_library_is_needed() -> None:
    code = """
import sys, types
package = types.ModuleType("sessionworkers"); package.__path__ = [sys.argv[1] + "/sessionworkers"]
sys.modules["sessionworkers"] = package
import sessionworkers.members, sessionworkers.claims
"""
    subprocess.run([sys.executable, "-I", "-S", "-W", "error", "-c", code, ROOT], check=True)

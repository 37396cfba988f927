"""Children of the app: what a fork must not keep alive, on the plain interpreter and under both event loops."""

from __future__ import annotations

import os
import socket
import textwrap
from pathlib import Path

import pytest

from sessionworkers.members import Roster, RuntimeDir, fork
from tests.harness import wait_for

from .processes import script

# Each makes a child that outlives the worker; the child says that it is there by a file.
WAYS = {
    "fork": """
        if os.fork() == 0:
            open(sys.argv[2], "w").close(); time.sleep(60); os._exit(0)
    """,
    "grandchild": """
        if os.fork() == 0:
            if os.fork() == 0:
                open(sys.argv[2], "w").close(); time.sleep(60)
            os._exit(0)
    """,
    "multiprocessing": """
        import multiprocessing
        def child():
            open(sys.argv[2], "w").close(); time.sleep(60)
        multiprocessing.get_context("fork").Process(target=child, daemon=True).start()
    """,
    "subprocess": """
        import subprocess
        subprocess.Popen(["sh", "-c", f"touch {sys.argv[2]}; sleep 60"], close_fds=False)
    """,
    "subprocess with preexec_fn": """
        import subprocess
        subprocess.Popen(["sh", "-c", f"touch {sys.argv[2]}; sleep 60"], close_fds=False, preexec_fn=lambda: None)
    """,
}

PLAIN = """
runtime = RuntimeDir.adopt(sys.argv[1])
member = Member.enlist(runtime)
listener = member.bind()
member.publish()
{way}
say(member.uid)
wait()
"""

# The loop serves the listener, and the fork happens inside one of its callbacks.
LOOP = """
import asyncio, {loop}
async def main():
    runtime = RuntimeDir.adopt(sys.argv[1])
    member = Member.enlist(runtime)
    async def answer(reader, writer):
        writer.write(b"here"); await writer.drain(); writer.close()
    server = await asyncio.start_unix_server(answer, sock=member.bind())
    member.publish()
    await asyncio.sleep(0)
{way}
    say(member.uid)
    await asyncio.sleep(60)
{loop}.run(main())
"""


def indent(text: str, by: int) -> str:
    return textwrap.indent(textwrap.dedent(text), " " * by)


def ask(path: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(path)
        return client.recv(4)


def check(code: str, runtime: RuntimeDir, base: str, serves: bool) -> None:
    roster = Roster(runtime)
    with script(code, runtime.path, f"{base}/child") as worker:
        try:
            uid = worker.line()
            wait_for(lambda: os.path.exists(f"{base}/child"), what="the child")
            assert roster.alive(uid) and roster.uids() == [uid]
            if serves:  # the parent's loop did not lose its listener by what the child did
                assert ask(roster.socket_path(uid)) == b"here"
                assert ask(roster.socket_path(uid)) == b"here"
            worker.kill()
            assert not roster.alive(uid)
            assert roster.uids() == []
            with pytest.raises(ConnectionRefusedError):
                ask(roster.socket_path(uid))
        finally:
            for pid in children(f"{base}/child", worker.pid):
                os.kill(pid, 9)
    roster.close()


def children(mark: str, parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != parent:
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in command and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_child_does_not_keep_the_worker_alive(way: str, runtime: RuntimeDir, base: str) -> None:
    check(PLAIN.format(way=indent(WAYS[way], 0)), runtime, base, serves=False)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("way", ["fork", "multiprocessing", "subprocess"])
def test_nor_one_forked_inside_an_event_loop(way: str, loop: str, runtime: RuntimeDir, base: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    check(LOOP.format(loop=loop, way=indent(WAYS[way], 4)), runtime, base, serves=True)


def test_a_child_cannot_retire_its_parent(runtime: RuntimeDir) -> None:
    code = """
    runtime = RuntimeDir.adopt(sys.argv[1], serve=True)
    member = Member.enlist(runtime)
    listener = member.bind()
    member.publish()
    store = DirectoryStore(runtime, member)
    store.claim("0" * 32)
    child = os.fork()
    if child == 0:
        from sessionworkers.members import locks
        assert not member.here and not locks._held
        member.retire(keep_tombstone=False)
        assert runtime.remove() is False
        runtime.close()
        listener.close()
        assert Roster(RuntimeDir.adopt(sys.argv[1])).alive(member.uid)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    say(member.uid); wait()
    """
    with script(code, runtime.path) as worker:
        uid = worker.line()
        roster = Roster(runtime)
        assert roster.uids() == [uid]
        assert os.path.exists(roster.socket_path(uid))
        assert os.listdir(f"{runtime.path}/claims") == ["0" * 32]
        roster.close()


def test_the_hook_runs_once_and_leaves_no_descriptor() -> None:
    code = """
    import tempfile
    from sessionworkers.members import fork
    def count():
        return len(os.listdir("/proc/self/fd"))
    ran = []
    fork.call_in_child(lambda: ran.append(1))
    pair = socket.socketpair()
    for _ in range(3):
        close_in_child(pair[0].fileno())
    reused = os.open("/dev/zero", os.O_RDONLY)
    close_in_child(reused)
    os.close(reused)
    again = os.open("/etc/passwd", os.O_RDONLY)       # the same number, closed without forget(): the app's now
    assert again == reused
    before = count()
    child = os.fork()
    if child == 0:
        try:
            assert ran == [1], ran
            assert count() == before
            assert fork.registered() == frozenset()
            assert os.readlink(f"/proc/self/fd/{pair[0].fileno()}") == "/dev/null"
            assert os.readlink(f"/proc/self/fd/{pair[1].fileno()}").startswith("socket:")
            assert os.readlink(f"/proc/self/fd/{again}") == "/etc/passwd"
            assert not os.get_inheritable(pair[0].fileno())
            inner = os.fork()
            if inner == 0:
                os._exit(0 if ran == [1, 1] and count() == before else 9)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(8)
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ran); wait()
    """
    with script(code) as parent:
        assert parent.line() == "0 []"


def test_without_a_free_descriptor_it_closes() -> None:
    code = """
    import resource
    pair = socket.socketpair()
    close_in_child(pair[0].fileno())
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (pair[1].fileno() + 1, pair[1].fileno() + 1))
    while True:
        try: os.dup(0)
        except OSError: break
    child = os.fork()
    if child == 0:
        try: os.fstat(pair[0].fileno())
        except OSError: os._exit(0)
        os._exit(9)
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])); wait()
    """
    with script(code) as parent:
        assert parent.line() == "0"


def test_forget() -> None:
    a, b = socket.socketpair()
    fork.close_in_child(a.fileno())
    assert a.fileno() in fork.registered()
    fork.forget(a.fileno())
    fork.forget(a.fileno())
    assert a.fileno() not in fork.registered()
    a.close()
    b.close()
    with pytest.raises(OSError):
        fork.close_in_child(10**6)

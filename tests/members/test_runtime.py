"""Where the runtime directory comes from, what may serve as one (threats F1, F8), and how it goes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sessionworkers.errors import RuntimeDirError
from sessionworkers.members import Member, Roster, RuntimeDir
from sessionworkers.members.runtime import default_bases

from .conftest import tree
from .processes import WORKER, script

EMPTY = ["claims", "mask.key", "members", "names", "names/page", "s", "server.lock"]


def test_a_fresh_one_is_private_and_goes(base: str) -> None:
    runtime = RuntimeDir.create(base)
    assert os.path.dirname(runtime.path) == base
    assert tree(runtime.path) == EMPTY
    for path in [Path(runtime.path), *Path(runtime.path).rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert runtime.remove()
    assert os.listdir(base) == []
    assert not runtime.remove()
    runtime.close()


def test_default_bases(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", base)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/no/such/directory")
    assert default_bases() == ["/dev/shm", base]
    os.mkdir(f"{base}/run", 0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"{base}/run")
    assert default_bases() == [f"{base}/run", "/dev/shm", base]
    # Workers that run as another user could not reach into a directory of ours.
    assert default_bases((os.geteuid() + 1, 0)) == ["/dev/shm", base]
    os.chmod(base, 0o777)
    assert default_bases() == [f"{base}/run", "/dev/shm"]
    os.chmod(base, 0o700)


def test_another_users_xdg_runtime_dir_is_not_used(
    base: str, monkeypatch: pytest.MonkeyPatch, stranger: tuple[str, ...]
) -> None:
    os.mkdir(f"{base}/run", 0o700)
    os.chown(f"{base}/run", 65534, 65534)
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"{base}/run")
    assert f"{base}/run" not in default_bases()


def test_a_base_that_is_too_deep_is_told_with_the_limit(base: str) -> None:
    deep = base + "/" + "d" * 80
    os.mkdir(deep)
    with pytest.raises(RuntimeDirError, match=r"at most 80 leave room .*107"):
        RuntimeDir.create(deep)
    assert os.listdir(deep) == []


@pytest.mark.parametrize("length", range(60, 100))
def test_any_length_either_serves_or_is_refused(base: str, length: int) -> None:
    path = base + "/" + "x" * (length - len(base) - 1)
    if length > 80:
        with pytest.raises(RuntimeDirError, match=f"is {length} bytes long"):
            RuntimeDir.at(path)
        assert os.listdir(base) == []
        return
    runtime = RuntimeDir.at(path)
    member = Member.enlist(runtime)
    member.bind().close()
    member.retire()
    assert runtime.remove()
    runtime.close()


def test_all_workers_have_one_mask_key(runtime: RuntimeDir) -> None:
    key = runtime.mask_key()
    assert len(key) == 16 and any(key)
    other = RuntimeDir.adopt(runtime.path)
    assert other.mask_key() == key
    other.close()
    Path(runtime.path, "mask.key").write_bytes(b"short")
    with pytest.raises(RuntimeDirError, match=r"mask\.key holds 5 bytes"):
        runtime.mask_key()


def test_adopt_needs_what_create_made(base: str) -> None:
    with pytest.raises(RuntimeDirError, match=f"{base}/none.* does not exist"):
        RuntimeDir.adopt(f"{base}/none")
    os.mkdir(f"{base}/some", 0o700)
    with pytest.raises(RuntimeDirError, match=r"members.* does not exist"):
        RuntimeDir.adopt(f"{base}/some")


def test_an_adopted_one_is_not_removed(runtime: RuntimeDir) -> None:
    other = RuntimeDir.adopt(runtime.path)
    assert not other.remove()
    other.close()
    assert runtime.standing


def test_at_makes_and_shares_and_the_last_removes(base: str) -> None:
    path = f"{base}/configured"
    first = RuntimeDir.at(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    code = "runtime = RuntimeDir.at(sys.argv[1]); say(runtime.mask_key().hex()); wait(); say(runtime.remove())"
    with script(code, path) as other:
        assert other.line() == first.mask_key().hex()
        assert not first.remove()
        assert tree(path) == EMPTY
        other.go()
        assert other.line() == "True"
    assert not os.path.exists(path)
    first.close()


def test_twice_in_one_process_is_one_lock(base: str) -> None:
    first, second = RuntimeDir.at(f"{base}/c"), RuntimeDir.at(f"{base}/c")
    assert not first.remove()
    with script("say(RuntimeDir.at(sys.argv[1]).remove()); wait()", f"{base}/c") as other:
        assert other.line() == "False"  # so the lock survived the first one's close
    assert second.remove()
    first.close()
    second.close()


def test_a_found_one_stays_and_so_does_what_is_not_ours(base: str) -> None:
    os.mkdir(f"{base}/c", 0o700)
    Path(base, "c", "app.pid").write_text("1")
    runtime = RuntimeDir.at(f"{base}/c")
    assert tree(runtime.path) == sorted([*EMPTY, "app.pid"])
    assert runtime.remove()
    assert tree(runtime.path) == ["app.pid"]
    runtime.close()


def test_what_has_our_names_but_not_our_mark_is_not_touched(base: str) -> None:
    os.makedirs(f"{base}/c/claims/important", 0o700)
    os.chmod(f"{base}/c", 0o700)
    with pytest.raises(RuntimeDirError, match=f"{base}/c: already holds something named 'claims'"):
        RuntimeDir.at(f"{base}/c")
    assert os.path.isdir(f"{base}/c/claims/important")


def test_a_later_start_clears_what_a_crash_left_but_nothing_of_the_living(base: str) -> None:
    path = f"{base}/c"
    crash = """
    runtime = RuntimeDir.at(sys.argv[1])
    member = Member.enlist(runtime); member.bind(); member.publish()
    DirectoryStore(runtime, member).claim("0" * 32)
    say(runtime.mask_key().hex()); wait()
    """
    with script(crash, path) as server:
        key = server.line()
        beside = RuntimeDir.at(path)
        assert os.listdir(f"{path}/claims") == ["0" * 32]
        beside.close()
        server.kill()
    after = RuntimeDir.at(path)
    assert tree(path) == EMPTY
    assert after.mask_key().hex() != key
    after.close()


def test_workers_that_outlived_their_server_keep_what_is_theirs(base: str) -> None:
    path = f"{base}/c"
    with script("runtime = RuntimeDir.at(sys.argv[1]); say('up'); wait()", path) as server:
        server.line()
        with script(WORKER, path) as worker:
            uid = worker.line()
            server.kill()
            before = tree(path)
            after = RuntimeDir.at(path)
            assert tree(path) == before
            assert Roster(after).uids() == [uid]
            assert not after.remove()
            after.close()


def test_one_half_removed_can_be_used_again(base: str) -> None:
    RuntimeDir.at(f"{base}/c").close()
    os.rename(f"{base}/c/server.lock", f"{base}/c/server.gone")  # as a kill in remove() leaves it
    runtime = RuntimeDir.at(f"{base}/c")
    assert tree(runtime.path) == EMPTY
    assert runtime.remove()
    assert os.listdir(base) == []
    runtime.close()


def test_a_living_worker_keeps_it(runtime: RuntimeDir) -> None:
    member = Member.enlist(runtime)
    assert not runtime.remove()
    assert runtime.standing
    member.retire()


def test_the_next_arbiter_serves_on(base: str) -> None:
    """gunicorn's USR2: the new one adopts while the old one lives, and the old one's leaving removes nothing."""
    old = RuntimeDir.create(base)
    code = """
    runtime = RuntimeDir.adopt(sys.argv[1], serve=True)
    say("serving"); wait()
    say(runtime.remove())
    wait()
    """
    with script(code, old.path) as new:
        assert new.line() == "serving"
        assert not old.remove()
        assert old.standing
        new.go()
        assert new.line() == "True"
    assert os.listdir(base) == []
    old.close()


PLANTED: dict[str, tuple[Callable[[str], object], str]] = {
    "open directory": (lambda path: (os.mkdir(path), os.chmod(path, 0o777)), "(is owned by uid|has mode 0777)"),
    "closed directory": (lambda path: os.mkdir(path, 0o700), "is owned by uid 65534"),
    "link to a directory": (lambda path: os.symlink("/dev/shm", path), "is a symbolic link"),
    "dangling link": (lambda path: os.symlink(path + "-target", path), "is a symbolic link"),
    "file": (lambda path: Path(path).write_text(""), "is not a directory"),
    "fifo": (lambda path: os.mkfifo(path), "is not a directory"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_what_another_user_planted_is_refused(base: str, kind: str, stranger: tuple[str, ...]) -> None:
    _, reason = PLANTED[kind]
    os.chmod(base, 0o1777)
    path = f"{base}/c"
    plant = {
        "open directory": ("mkdir", "-m", "0777", path),
        "closed directory": ("mkdir", "-m", "0700", path),
        "link to a directory": ("ln", "-s", "/dev/shm", path),
        "dangling link": ("ln", "-s", f"{base}/target", path),
        "file": ("touch", path),
        "fifo": ("mkfifo", path),
    }[kind]
    subprocess.run([*stranger, *plant], check=True)
    before = tree(base)
    for enter in (RuntimeDir.at, RuntimeDir.adopt):
        with pytest.raises(RuntimeDirError, match=f"^runtime directory {path}: {reason}"):
            enter(path)
    assert tree(base) == before
    assert os.lstat(path).st_uid == 65534


@pytest.mark.parametrize("kind", [kind for kind in PLANTED if kind != "closed directory"])
def test_so_is_what_we_made_but_wrongly(base: str, kind: str) -> None:
    plant, reason = PLANTED[kind]
    plant(f"{base}/c")
    with pytest.raises(RuntimeDirError, match=f"^runtime directory {base}/c: {reason}"):
        RuntimeDir.at(f"{base}/c")
    assert not os.path.exists(f"{base}/c-target")


@pytest.mark.parametrize("name", ["members", "claims", "s", "names"])
def test_so_is_one_with_a_link_or_an_open_directory_inside(runtime: RuntimeDir, base: str, name: str) -> None:
    path = f"{runtime.path}/{name}"
    os.chmod(path, 0o755)
    with pytest.raises(RuntimeDirError, match=f"{path}: has mode 0755"):
        RuntimeDir.adopt(runtime.path)
    os.rename(path, f"{base}/elsewhere")
    os.symlink(f"{base}/elsewhere", path)
    with pytest.raises(RuntimeDirError, match=f"{path}: is a symbolic link"):
        RuntimeDir.adopt(runtime.path)


@pytest.mark.parametrize("kind", ["directory", "fifo", "link"])
def test_so_is_one_whose_server_lock_is_no_file(base: str, kind: str) -> None:
    os.mkdir(f"{base}/c", 0o700)
    lock = f"{base}/c/server.lock"
    {"directory": os.mkdir, "fifo": os.mkfifo, "link": lambda path: os.symlink(f"{base}/x", path)}[kind](lock)
    with pytest.raises(RuntimeDirError, match=f"{base}/c: cannot be used"):
        RuntimeDir.at(f"{base}/c")
    assert not os.path.exists(f"{base}/x")


def test_a_parent_that_anyone_may_write_is_refused_unless_sticky(base: str) -> None:
    os.mkdir(f"{base}/open")
    os.chmod(f"{base}/open", 0o777)
    for enter in (RuntimeDir.create, lambda path: RuntimeDir.at(f"{path}/c")):
        with pytest.raises(RuntimeDirError, match=f"parent {base}/open is writable by everyone"):
            enter(f"{base}/open")
    os.chmod(f"{base}/open", 0o1777)
    runtime = RuntimeDir.at(f"{base}/open/c")
    assert runtime.remove()
    runtime.close()
    with pytest.raises(RuntimeDirError, match="none cannot be used: No such file"):
        RuntimeDir.at(f"{base}/none/c")


def test_a_strangers_link_on_the_way_is_refused_and_ours_is_not(base: str, stranger: tuple[str, ...]) -> None:
    os.chmod(base, 0o1777)
    os.mkdir(f"{base}/real", 0o700)
    os.symlink("real", f"{base}/ours")
    RuntimeDir.at(f"{base}/ours/c").close()
    subprocess.run([*stranger, "ln", "-s", "real", f"{base}/theirs"], check=True)
    with pytest.raises(RuntimeDirError, match=f"parent {base}/theirs is a symbolic link of uid 65534"):
        RuntimeDir.at(f"{base}/theirs/c")


@pytest.mark.parametrize("way", ["create", "at"])
def test_workers_of_another_user_own_it(base: str, way: str, strange_python: tuple[str, ...]) -> None:
    """gunicorn --user: made by root, used by the worker's user."""
    owner = (65534, 65534)
    runtime = RuntimeDir.create(base, owner=owner) if way == "create" else RuntimeDir.at(f"{base}/c", owner=owner)
    for path in [Path(runtime.path), *Path(runtime.path).rglob("*")]:
        assert (path.stat().st_uid, path.stat().st_gid) == owner, path
    code = """
    runtime = RuntimeDir.adopt(sys.argv[1])
    member = Member.enlist(runtime)
    member.bind(); member.publish()
    NamesBoard(runtime).add("x")
    say(member.uid, DirectoryStore(runtime, member).claim("0" * 32) == member.uid); wait()
    """
    with script(code, runtime.path, prefix=strange_python) as worker:
        uid, won = worker.line().split()
        assert won == "True"
        assert Roster(runtime).uids() == [uid]
        assert not runtime.remove()
        runtime = RuntimeDir.adopt(runtime.path, owner=owner, serve=True)
        worker.kill()
    assert runtime.remove()
    assert os.listdir(base) == []
    runtime.close()


def test_two_that_leave_at_once_leave_nothing(tmp_path: Path) -> None:
    """The one that is last to let go removes the directory, whoever made it and whoever of the others still looks."""
    leaving = (
        "import sys; from sessionworkers.members import RuntimeDir\n"
        "runtime = RuntimeDir.at(sys.argv[1]); print('in', flush=True); sys.stdin.read(1); runtime.remove()\n"
    )
    for number in range(8):
        place = tmp_path / str(number)
        pair = [
            subprocess.Popen([sys.executable, "-c", leaving, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(3)
        ]
        for each in pair:
            assert each.stdout is not None and each.stdout.readline() == b"in\n"
        for each in pair:
            assert each.stdin is not None
            each.stdin.write(b"x")
            each.stdin.flush()
        for each in pair:
            each.communicate(timeout=10)
        assert not place.exists()

"""The directory store: the contract, what a file system may refuse, what may lie where a claim should (threat F7)."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sessionworkers.claims import ClaimStore, DirectoryStore
from sessionworkers.errors import StartupError, StoreUnavailable
from sessionworkers.members import Member, Roster, RuntimeDir
from tests.members.processes import script

from .contract import Contract, Make, key


@pytest.fixture
def make(runtime: RuntimeDir) -> Iterator[Make]:
    members: list[Member] = []

    def make() -> ClaimStore:
        members.append(Member.enlist(runtime))
        return DirectoryStore(runtime, members[-1])

    yield make
    for member in members:
        member.retire()


class TestDirectory(Contract):
    pass


@pytest.fixture
def member(runtime: RuntimeDir) -> Iterator[Member]:
    member = Member.enlist(runtime)
    yield member
    member.retire()


def claim_path(runtime: RuntimeDir, k: str) -> str:
    return f"{runtime.path}/claims/{k}"


def test_a_claim_is_a_link_of_the_identity(runtime: RuntimeDir, member: Member) -> None:
    store = DirectoryStore(runtime, member)
    k = key()
    store.claim(k)
    info = os.lstat(claim_path(runtime, k))
    assert info.st_ino == os.lstat(f"{runtime.path}/members/{member.uid}.0.id").st_ino
    assert stat.S_IMODE(info.st_mode) == 0o600
    store.release(k)
    assert os.listdir(f"{runtime.path}/claims") == []


def test_a_move_leaves_one_entry(runtime: RuntimeDir, member: Member) -> None:
    other = Member.enlist(runtime)
    store = DirectoryStore(runtime, member)
    k = key()
    store.claim(k)
    assert store.move(k, member.uid)  # rename between two links of one inode does nothing
    assert os.listdir(f"{runtime.path}/claims") == [k]
    assert store.move(k, other.uid)
    assert os.listdir(f"{runtime.path}/claims") == [k]
    other.retire()


class Limited:
    """``os.link`` of a file system on which a file has at most ``limit`` links."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __call__(self, source: str, target: str, **where: Any) -> None:
        if os.stat(source, dir_fd=where["src_dir_fd"]).st_nlink >= self.limit:
            # The kernel looks at the target first: a taken name is EEXIST on a full file too.
            if os.path.lexists(f"/proc/self/fd/{where['dst_dir_fd']}/{target}"):
                raise FileExistsError(errno.EEXIST, "exists")
            raise OSError(errno.EMLINK, "Too many links")
        os.link(source, target, **where)


def test_a_full_identity_file_is_followed_by_a_fresh_one(runtime: RuntimeDir, member: Member) -> None:
    store = DirectoryStore(runtime, member, link=Limited(4))
    other = Member.enlist(runtime)
    seen_by = DirectoryStore(runtime, other, link=Limited(4))
    keys = [key() for _ in range(10)]
    for k in keys:
        assert store.claim(k) == member.uid
        assert seen_by.owner(k) == member.uid
        assert seen_by.claim(k) == member.uid
    assert [os.stat(f"{runtime.path}/members/{member.uid}.{n}.id").st_nlink for n in range(4)] == [4, 4, 4, 2]
    assert sorted(store.keys()) == sorted(seen_by.keys(member.uid)) == sorted(keys)
    assert all(store.release(k) for k in keys)
    assert not store.keys()
    other.retire()


def test_a_fresh_one_can_be_made_for_another(runtime: RuntimeDir, member: Member) -> None:
    """Two acceptors place sessions on one full target at once, and the target claims too: none disturbs the others."""
    target = Member.enlist(runtime)
    third = Member.enlist(runtime)
    stores = [DirectoryStore(runtime, each, link=Limited(3)) for each in (member, third, target)]
    keys = [key() for _ in range(30)]
    for number, k in enumerate(keys):
        assert stores[number % 3].claim(k, target.uid) == target.uid
    assert all(store.owner(k) == target.uid for k in keys for store in stores)
    assert all(stores[2].release(k) for k in keys)
    files = [name for name in os.listdir(f"{runtime.path}/members") if name.startswith(target.uid + ".")]
    assert len(files) == 15 + 1  # two claims each, and the lock: nobody makes one while another's has room
    for each in (target, third):
        each.retire()


def test_ext4_takes_65000(base: str) -> None:
    """The real limit, where there is one."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", base], capture_output=True, text=True).stdout.strip()
    if kind != "ext2/ext3":
        pytest.skip(f"the temporary directory is on {kind}")
    runtime = RuntimeDir.create(base)
    member = Member.enlist(runtime)
    store = DirectoryStore(runtime, member)
    for number in range(65_100):
        assert store.claim(f"{number:032x}") == member.uid
    assert sorted(os.listdir(f"{runtime.path}/members"))[:2] == [f"{member.uid}.0.id", f"{member.uid}.1.id"]
    assert store.owner(f"{65_099:032x}") == DirectoryStore(runtime, member).owner(f"{0:032x}") == member.uid
    member.retire()
    assert runtime.remove()
    runtime.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EPERM, errno.ENOENT])
def test_a_store_that_fails_says_so(runtime: RuntimeDir, member: Member, number: int) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(number, os.strerror(number))

    store = DirectoryStore(runtime, member, link=refuse)
    with pytest.raises(StoreUnavailable, match=os.strerror(number)) as caught:
        store.claim(key())
    assert caught.value.status == 503
    assert store.keys() == []


def test_links_without_end_are_not_tried(runtime: RuntimeDir, member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionworkers.claims.directory._MAX_FRESH", 3)
    store = DirectoryStore(runtime, member, link=Limited(0))
    with pytest.raises(StoreUnavailable, match="takes another link"):
        store.claim(key())


def test_for_a_worker_that_never_was(runtime: RuntimeDir, member: Member) -> None:
    with pytest.raises(StoreUnavailable, match="has no worker"):
        DirectoryStore(runtime, member).claim(key(), "0" * 24)


@pytest.mark.parametrize("call", ["unlink", "rename"])
def test_a_read_only_file_system(
    runtime: RuntimeDir, member: Member, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(runtime, member)
    other = Member.enlist(runtime)
    k = key()
    store.claim(k)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StoreUnavailable, match="Read-only"):
            store.release(k) if call == "unlink" else store.move(k, other.uid)
    assert store.owner(k) == member.uid
    other.retire()


def test_no_inode_to_spare(base: str) -> None:
    """Really: on a tmpfs each link takes an inode. What is claimed goes on, and claims succeed when space returns."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a tmpfs")
    place = f"{base}/small"
    os.mkdir(place)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=40", "tmpfs", place]).returncode:
        pytest.skip("may not mount")
    try:
        runtime = RuntimeDir.create(place)
        member = Member.enlist(runtime)
        store = DirectoryStore(runtime, member)
        made = []
        with pytest.raises(StoreUnavailable, match="No space left"):
            for _ in range(100):
                made.append(key())
                store.claim(made[-1])
        failed = made.pop()
        assert len(made) > 10
        assert store.owner(failed) is None
        assert all(store.owner(k) == member.uid for k in made)
        assert store.release(made.pop())
        assert store.claim(failed) == member.uid
        with pytest.raises(StartupError, match="No space left"):
            Member.enlist(runtime)
        member.retire()
        assert runtime.remove()
        runtime.close()
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


PLANTS = {
    "link": lambda path: os.symlink("/etc/passwd", path),
    "dangling link": lambda path: os.symlink("nowhere", path),
    "link to another claim": lambda path: os.symlink("../members", path),
    "fifo": os.mkfifo,
    "directory": os.mkdir,
    "empty file": lambda path: Path(path).touch(),
    "1 GiB sparse file": lambda path: (Path(path).touch(), os.truncate(path, 1 << 30)),
    "another version's file": lambda path: Path(path).write_text('{"sessionworkers": 2, "uid": "' + "0" * 24 + '"}'),
}


@pytest.mark.parametrize("kind", PLANTS)
def test_what_is_no_claim_is_unclaimed_and_told_once(
    runtime: RuntimeDir, member: Member, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = DirectoryStore(runtime, member)
    k = key()
    PLANTS[kind](claim_path(runtime, k))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert store.owner(k) is None
        assert not store.release(k) and not store.move(k, member.uid)
        with pytest.raises(StoreUnavailable, match="neither free nor anyone's"):
            store.claim(k)
    assert [record.message for record in caplog.records] == [
        f"{claim_path(runtime, k)} is no claim of a worker: taken as unclaimed"
    ]
    assert os.path.lexists(claim_path(runtime, k))
    assert store.keys() == []


def test_a_lock_file_planted_as_a_claim_costs_no_lock(runtime: RuntimeDir, member: Member) -> None:
    """Reading it would close a descriptor of the lock's file, and with that drop the lock of this very process."""
    store = DirectoryStore(runtime, member)
    for lock in ("server.lock", f"members/{member.uid}.lock"):
        k = key()
        os.link(f"{runtime.path}/{lock}", claim_path(runtime, k))
        assert store.owner(k) is None
    code = "say(Roster(RuntimeDir.adopt(sys.argv[1])).alive(sys.argv[2])); wait()"
    with script(code, runtime.path, member.uid) as other:
        assert other.line() == "True"


def test_a_dead_workers_claims_are_tombstones(runtime: RuntimeDir, member: Member) -> None:
    store = DirectoryStore(runtime, member)
    roster = Roster(runtime)
    k = key()
    code = """
    runtime = RuntimeDir.adopt(sys.argv[1]); member = Member.enlist(runtime)
    say(DirectoryStore(runtime, member).claim(sys.argv[2])); wait()
    """
    with script(code, runtime.path, k) as other:
        uid = other.line()
        assert store.owner(k) == uid and roster.alive(uid)
        other.kill()
    assert store.owner(k) == uid and not roster.alive(uid)
    assert store.claim(k) == uid
    assert not store.release(k)
    # Even without its identity file the claim itself tells whose it was.
    os.unlink(f"{runtime.path}/members/{uid}.0.id")
    late = DirectoryStore(runtime, member)
    assert late.owner(k) == uid and not roster.alive(uid)
    assert late._owners.get(os.stat(claim_path(runtime, k)).st_ino) is None
    roster.close()


def test_no_session_id_is_in_the_directory(runtime: RuntimeDir, member: Member) -> None:
    from sessionworkers.affinity.ids import claim_key

    secret = "a-very-secret-session-id-" + key()
    DirectoryStore(runtime, member).claim(claim_key("rule", secret))
    for path in Path(runtime.path).rglob("*"):
        assert secret not in str(path)
        if path.is_file():
            assert secret.encode() not in path.read_bytes()


def test_the_directory_may_be_moved_under_it(runtime: RuntimeDir, member: Member, base: str) -> None:
    """All work goes through descriptors: a path that leads elsewhere by now misleads nobody."""
    store = DirectoryStore(runtime, member)
    k = key()
    os.rename(runtime.path, f"{base}/moved")
    shutil.copytree(f"{base}/moved", runtime.path, ignore=lambda *_: [])
    assert store.claim(k) == member.uid
    assert os.listdir(f"{base}/moved/claims") == [k]
    assert os.listdir(f"{runtime.path}/claims") == []


def test_a_thousand_races_of_eight_processes(runtime: RuntimeDir) -> None:
    """1,000 new keys, each claimed by 8 real processes at once: one owner, and all are told the same one."""
    code = """
    import hashlib
    runtime = RuntimeDir.adopt(sys.argv[1]); member = Member.enlist(runtime); store = DirectoryStore(runtime, member)
    say("ready"); wait()
    told = [store.claim(hashlib.blake2b(b"%d" % n, digest_size=16).hexdigest()) for n in range(1000)]
    digest = hashlib.sha256("".join(told).encode()).hexdigest()
    say(digest, told.count(member.uid), len(store.keys())); wait()
    """
    racers = [script(code, runtime.path) for _ in range(8)]
    try:
        running = [racer.__enter__() for racer in racers]
        assert [each.line() for each in running] == ["ready"] * 8
        for each in running:
            each.go()
        told = [each.line().split() for each in running]
    finally:
        for racer in racers:
            racer.__exit__(None, None, None)
    assert len({digest for digest, _, _ in told}) == 1
    assert sum(int(won) for _, won, _ in told) == 1000
    assert all(int(won) <= int(held) for _, won, held in told)
    assert len(os.listdir(f"{runtime.path}/claims")) == 1000


def test_one_key_taken_and_given_back_without_end(runtime: RuntimeDir) -> None:
    """4 processes fight for one key; whoever holds it checks that he alone does."""
    code = """
    runtime = RuntimeDir.adopt(sys.argv[1]); member = Member.enlist(runtime); store = DirectoryStore(runtime, member)
    say("ready"); wait()
    held = 0
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        if store.claim("0" * 32) == member.uid:
            os.close(os.open(os.path.join(sys.argv[1], "alone"), os.O_CREAT | os.O_EXCL))
            os.unlink(os.path.join(sys.argv[1], "alone"))
            assert store.owner("0" * 32) == member.uid
            assert store.release("0" * 32)
            held += 1
    say(held); wait()
    """
    racers = [script(code, runtime.path) for _ in range(4)]
    try:
        running = [racer.__enter__() for racer in racers]
        assert [each.line() for each in running] == ["ready"] * 4
        for each in running:
            each.go()
        assert all(int(each.line()) > 0 for each in running)
    finally:
        for racer in racers:
            racer.__exit__(None, None, None)
    assert os.listdir(f"{runtime.path}/claims") == []

"""Sockets that nobody closed: the garbage collector does, and nobody is warned. And a bell that is
rung while it is closed."""

from __future__ import annotations

import gc
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.quiet import Bell, Socket, not_for_children, socket_pair, which


class Owner:
    def __init__(self, sock: Socket) -> None:
        self.sock = sock
        self.itself = self


@pytest.mark.req("B3")
def test_what_is_forgotten_is_closed_without_a_word() -> None:
    one, other = socket_pair()
    descriptors = [one.fileno(), other.fileno()]
    owners = [Owner(one), Owner(other)]
    one.send(b"!")
    assert other.recv(2) == b"!"
    del one, other, owners
    gc.collect()  # a warning would be an error here
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.fixture
def hurry() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_a_bell_wakes_who_waits_once_for_many_rings() -> None:
    bell = Bell()
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    assert not poll.poll(0)
    bell.hush()  # nobody rang
    for _ in range(1000):  # more than a socket takes
        bell.ring()
    assert poll.poll(0) == [(bell.fileno(), select.POLLIN)]
    bell.hush()
    assert not poll.poll(0)


class _Struck(Socket):
    """While it is used, the garbage collector finds something whose end rings as well."""

    bell: Bell | None = None

    def send(self, data: Any, flags: int = 0, /) -> int:
        bell, self.bell = self.bell, None
        if bell is not None:
            bell.ring()
        return super().send(data, flags)


@pytest.mark.req("B3", "law 4")
def test_a_finaliser_that_rings_in_the_middle_of_a_ring() -> None:
    bell = Bell()
    assert bell._button is not None
    struck = _Struck(fileno=bell._button.detach())
    bell._button, struck.bell = struck, bell
    thread = threading.Thread(target=bell.ring, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.req("B3")
def test_a_closed_bell_is_silent_and_its_descriptors_are_closed() -> None:
    bell = Bell()
    number = bell.fileno()
    bell.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    assert bell.fileno() == -1
    bell.ring()
    bell.hush()
    bell.close()


@pytest.mark.req("B3")
@pytest.mark.usefixtures("hurry")
def test_a_bell_that_is_rung_while_it_is_closed_writes_to_nobody_elses_file() -> None:
    """Whoever takes the number of a closed descriptor must not hear of it."""
    bells = [Bell()]
    over = False

    def ring() -> None:
        while not over:
            bells[0].ring()

    ringers = [threading.Thread(target=ring) for _ in range(3)]
    for ringer in ringers:
        ringer.start()
    try:
        for _ in range(500):
            closing, bells[0] = bells[0], Bell()
            closing.close()
            # These take the numbers that have just become free.
            pipe = os.pipe2(os.O_NONBLOCK)
            pair = socket.socketpair()
            try:
                poll = select.poll()
                poll.register(pipe[0], select.POLLIN)
                for each in pair:
                    poll.register(each, select.POLLIN)
                assert not poll.poll(1)
            finally:
                for number in pipe:
                    os.close(number)
                for each in pair:
                    each.close()
    finally:
        over = True
        for ringer in ringers:
            ringer.join()


@pytest.mark.req("B3")
def test_who_is_about_to_ring_a_bell_keeps_its_descriptor_from_others() -> None:
    """The moment that the test before hopes for: after the look whether it is open."""
    bell = Bell()
    button = bell._button
    assert button is not None
    number = button.fileno()  # where `ring` is when it is preempted
    bell.close()
    taken = socket.socketpair()
    with taken[0], taken[1]:
        assert number not in (taken[0].fileno(), taken[1].fileno())
        with pytest.raises(BrokenPipeError):
            button.send(b"!")


@pytest.mark.req("fork after acquire", "law 8")
def test_a_child_has_none_of_its_parents_sockets_and_all_of_its_files(tmp_path: Path) -> None:
    """Also where a socket was closed without our hearing of it, and its number is a file's now."""
    ours, theirs = socket.socketpair()
    gone, other = socket.socketpair()
    gate, key = socket.socketpair()
    with ours, theirs, other, gate, key:
        ours.setblocking(False)
        assert not_for_children(ours.fileno()) == which(ours.fileno())
        not_for_children(gone.fileno())
        number = gone.detach()
        os.close(number)
        path = tmp_path / "file"
        path.write_bytes(b"what is in it")
        opened = os.open(path, os.O_RDONLY)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        assert not_for_children(-1) == (0, 0)
        child = os.fork()
        if child == 0:
            try:
                good = os.read(number, 100) == b"what is in it"
                good = good and os.read(ours.fileno(), 100) == b""  # /dev/null
                os.write(ours.fileno(), b"in its parent's name")
                theirs.close()
                key.close()
                gate.recv(1)  # until the test is done
                os._exit(0 if good else 1)
            finally:
                os._exit(2)
        os.close(number)
        ours.close()
        theirs.settimeout(20)
        assert theirs.recv(100) == b""  # the parent's end is seen, though its child lives
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.req("fork after acquire", "B3")
@pytest.mark.parametrize(
    "url",
    [
        "etcd://localhost:1",
        "redis://localhost:1",
        "redlock://localhost:1,localhost:2,localhost:3",
        "zk://localhost:1/",
        "mysql://u@localhost:1/d",
        "postgres://u@localhost:1/d",
    ],
)
def test_nothing_is_imported_when_a_connection_is_made(url: str) -> None:
    """A child that is forked while a thread imports something waits for that for ever. (The codec
    is looked at by itself: a URL that names a host has it imported in any case.)"""
    scheme = url.partition(":")[0]
    script = (
        "import sys, holdfast; from holdfast import Unavailable\n"
        f"from holdfast.backends import find; find({scheme!r})\n"
        "assert 'encodings.idna' in sys.modules\n"
        f"locks = holdfast.connect({url!r}, request_timeout=0.2)\n"
        "before = set(sys.modules)\n"
        "try: locks.lock('x').acquire()\n"
        "except Unavailable: pass\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr

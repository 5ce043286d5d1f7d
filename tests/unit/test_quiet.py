"""Sockets that nobody closed: the garbage collector does, and nobody is warned."""

from __future__ import annotations

import gc
import os

import pytest

from holdfast.backends.quiet import Socket, socket_pair


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

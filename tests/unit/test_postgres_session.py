"""What libpq may say, without a server that says it."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import pq

from holdfast.backends.postgres.session import PostgresSession
from holdfast.backends.sql.session import Gone
from holdfast.ports.clock import now
from holdfast.ports.thread import drive


class Answer:
    def __init__(self, status: pq.ExecStatus) -> None:
        self.status = status
        self.nfields = self.ntuples = 0
        self.command_tuples = 0

    def get_error_message(self, encoding: str) -> str:
        return "server closed the connection unexpectedly"


class Connection:
    """libpq's half, with the answers that it will have."""

    server_version = 150000
    backend_pid = 7
    status = pq.ConnStatus.OK

    def __init__(self, *answers: Answer | None) -> None:
        self._here, self._there = socket.socketpair()
        self.socket = self._here.fileno()
        self._answers = list(answers)

    def is_busy(self) -> bool:
        return False

    def get_result(self) -> Answer | None:
        return self._answers.pop(0)

    def finish(self) -> None:
        self._here.close()
        self._there.close()


@pytest.fixture
def answered() -> Iterator[Any]:
    made: list[PostgresSession] = []

    def make(*answers: Answer | None) -> PostgresSession:
        made.append(PostgresSession(Connection(*answers), False))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.mark.req("law 2")
def test_a_connection_ends_when_all_was_answered(answered: Any) -> None:
    """After the last answer, and before the word that it was the last: nobody knows whether the
    server has got that far for everybody else."""
    session = answered(Answer(pq.ExecStatus.COMMAND_OK), None, Answer(pq.ExecStatus.FATAL_ERROR))
    session._expected = deque([("COMMIT", False)])
    with pytest.raises(Gone, match="closed the connection") as raised:
        drive(session._next(now() + 5))
    assert raised.value.sent

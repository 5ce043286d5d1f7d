"""What a server had to do, by its own books: requests, commands, connections.

Contract: standard library only, because workers of every peer use it. A meter has one connection
of its own and leaves itself out of what it reads. A reading has the moment at which it was taken,
so that what happened between two of them can be counted exactly.

What is a request? A client that asked for something and waits. Redis keeps no such count: its
commands include those that run inside scripts. It does count reads from sockets (a batch that
comes as one is one) and calls of scripts. The larger of the two is taken: for a client that sends
one command and waits for its answer that is exact, and one that puts many scripts into a batch is
charged for each.
"""

from __future__ import annotations

import http.client
import re
import socket
import time
from typing import NamedTuple

__all__ = ["Calls", "Meter", "Packets", "Reading", "between", "meter_of"]

SCRIPTS = ("eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro")
ASK = b"INFO stats commandstats clients\r\n"


class Reading(NamedTuple):
    moment: int  # of CLOCK_MONOTONIC, nanoseconds
    reads: int
    scripts: int
    commands: int  # those inside scripts as well
    connections: int
    sent: int = 0  # bytes of answers


class Used(NamedTuple):
    """Between two readings."""

    seconds: float
    requests: int
    commands: int
    sent: int


def between(before: Reading, after: Reading) -> Used:
    return Used(
        (after.moment - before.moment) / 1e9,
        max(after.reads - before.reads, after.scripts - before.scripts),
        after.commands - before.commands,
        after.sent - before.sent,
    )


class Meter:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 10.0)
        self._answers = self._socket.makefile("rb")
        self._asked = 0

    def read(self) -> Reading:
        self._socket.sendall(ASK)
        size = self._answers.readline()
        if not size.startswith(b"$"):
            raise RuntimeError(f"INFO was answered with {size!r}")
        text = self._answers.read(int(size[1:]) + 2).decode()
        now = time.monotonic_ns()
        self._asked += 1
        # This request has been read when it is answered, and counted as a command only then.
        return reading(text, now, reads=self._asked, commands=self._asked - 1, connections=1)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


class Packets(Meter):
    """ZooKeeper counts the packets that it received: requests and pings, and what it is asked by
    its four-letter words. Each of these has a connection of its own."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._asked = 0

    def read(self) -> Reading:
        with socket.create_connection(self._address, 10.0) as link:
            link.sendall(b"mntr")
            with link.makefile("rb") as answer:
                said = dict(re.findall(r"^(zk_\w+)\t(\d+)$", answer.read().decode(), re.MULTILINE))
        now = time.monotonic_ns()
        self._asked += 1
        requests = int(said["zk_packets_received"]) - self._asked
        connections = int(said["zk_num_alive_connections"]) - 1
        return Reading(now, requests, 0, requests, connections, int(said["zk_response_bytes"]))

    def close(self) -> None:
        """Nothing is open."""


class Calls(Meter):
    """etcd counts the calls that were begun, of all its members together; a stream is one. It does
    not count connections: those to its ports are looked up."""

    def __init__(self, addresses: str) -> None:
        self._addresses = [one.rpartition(":") for one in addresses.split(",")]

    def read(self) -> Reading:
        calls = 0
        for host, _, port in self._addresses:
            link = http.client.HTTPConnection(host, int(port), timeout=10.0)
            try:
                link.request("GET", "/metrics")
                text = link.getresponse().read().decode()
            finally:
                link.close()
            begun = re.findall(r"^grpc_server_started_total\{.*\} (\S+)$", text, re.MULTILINE)
            calls += sum(int(float(number)) for number in begun)
        now = time.monotonic_ns()
        return Reading(now, calls, 0, calls, self._connections())

    def _connections(self) -> int:
        ports = {int(port) for _, _, port in self._addresses}
        with open("/proc/net/tcp") as table:
            lines = [line.split() for line in table][1:]
        return sum(int(one[1].rpartition(":")[2], 16) in ports and one[3] == "01" for one in lines)

    def close(self) -> None:
        """Nothing is open."""


def meter_of(books: str) -> Meter:
    """`books` is kind://host:port."""
    kind, _, address = books.rpartition("://")
    if kind.startswith("etcd"):
        return Calls(address)
    return Packets(address) if kind == "zookeeper" else Meter(address)


def reading(text: str, moment: int, *, reads: int, commands: int, connections: int) -> Reading:
    """Of an answer to INFO, less what the meter itself did."""
    said = dict(re.findall(r"^([^#:\s]+):(.*?)\r?$", text, re.MULTILINE))
    calls = [said.get(f"cmdstat_{name}", "") for name in SCRIPTS]
    return Reading(
        moment,
        int(said["total_reads_processed"]) - reads,
        sum(int(found.group(1)) for line in calls if (found := re.match(r"calls=(\d+)", line))),
        int(said["total_commands_processed"]) - commands,
        int(said["connected_clients"]) - connections,
        int(said["total_net_output_bytes"]),
    )

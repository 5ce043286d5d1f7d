"""`python -m tests.servers`: list, install, start and check the test servers from a shell.

Contract: `up` says where the servers are and keeps them until Ctrl-C or SIGTERM; whichever way it
ends, it leaves neither process nor file. Exit status 1 when anything failed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from contextlib import ExitStack
from types import FrameType

from tests.servers import KINDS, InstallError, Server, ServerError, install
from tests.servers.home import HOST

KIND_LIST = ", ".join(KINDS)


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    # SIGINT too: a script that starts us with `&` leaves it ignored, and Python then respects that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        return int(args.run(args))
    except (InstallError, ServerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1


def _list(args: argparse.Namespace) -> int:
    for kind, server in KINDS.items():
        lacking = install.missing(server.families)
        state = f"needs {' '.join(lacking)}" if lacking else f"version {server.version()}"
        summary = (server.__doc__ or "").split("\n")[0]
        print(f"{kind:20} {state:28} {summary}")
    return 0


def _install(args: argparse.Namespace) -> int:
    families = {family: None for kind in args.kinds or KINDS for family in KINDS[kind].families}
    install.ensure(*families)
    print("everything is installed")
    return 0


def _up(args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        servers = [stack.enter_context(KINDS[kind]()) for kind in args.kinds]
        try:
            if args.json:
                print(json.dumps([_describe(server) for server in servers], indent=2), flush=True)
            else:
                for server in servers:
                    _print_places(server)
                print("Ctrl-C ends them", file=sys.stderr, flush=True)
            while True:
                signal.pause()
        except KeyboardInterrupt:
            # Only the clean-up is left to interrupt, and an impatient second Ctrl-C must not.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return 0


def _check(args: argparse.Namespace) -> int:
    failures = 0
    print(f"{'kind':20} {'version':12} {'start':>8}  {'stop':>7}  ping")
    for kind in args.kinds or KINDS:
        began = time.monotonic()
        try:
            with KINDS[kind]() as server:
                started = time.monotonic() - began
                answers = server.ping()
                ending = time.monotonic()
            stopped = time.monotonic() - ending
        except (InstallError, ServerError) as error:
            failures += 1
            print(f"{kind:20} failed: {error}", flush=True)
            continue
        failures += not answers
        row = f"{kind:20} {server.version():12} {started:6.2f} s  {stopped:5.2f} s"
        print(f"{row}  {'ok' if answers else 'NO ANSWER'}", flush=True)
    return 1 if failures else 0


def _describe(server: Server) -> dict[str, object]:
    return {
        "kind": server.kind,
        "url": server.url,
        "directory": str(server.home.path),
        "processes": [
            {"name": node.name, "host": HOST, "port": node.port, "pid": node.pid}
            for node in server.processes
        ],
    }


def _print_places(server: Server) -> None:
    print(f"{server.kind:20} {server.url}", flush=True)
    if len(server.processes) > 1:
        for node in server.processes:
            print(f"  {node.name:18} {HOST}:{node.port}  pid {node.pid}", flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _kind(text: str) -> str:
    # Not `choices`: with nargs="*" argparse checks the empty list against them too.
    if text not in KINDS:
        raise argparse.ArgumentTypeError(f"no such kind: {text} (there are {KIND_LIST})")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.servers",
        description="Run the real servers that holdfast is tested on, on free loopback ports.",
        epilog=f"kinds: {KIND_LIST}",
    )
    any_kind = f"{KIND_LIST}; all when none is named"
    commands = parser.add_subparsers(required=True, metavar="command")

    listing = commands.add_parser("list", help="the kinds of server, and what is not installed")
    listing.set_defaults(run=_list)

    installing = commands.add_parser("install", help="install the Debian packages that are missing")
    installing.set_defaults(run=_install)
    installing.add_argument("kinds", nargs="*", type=_kind, metavar="kind", help=any_kind)

    up = commands.add_parser("up", help="start servers, say where they are, keep them until Ctrl-C")
    up.set_defaults(run=_up)
    up.add_argument("kinds", nargs="+", type=_kind, metavar="kind", help=KIND_LIST)
    up.add_argument("--json", action="store_true", help="say it in JSON, with every process")

    checking = commands.add_parser("check", help="start each kind in turn, ping it, stop it")
    checking.set_defaults(run=_check)
    checking.add_argument("kinds", nargs="*", type=_kind, metavar="kind", help=any_kind)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""The words for what happened: one line for an event, or nothing for one that is not worth it."""

from __future__ import annotations

from holdfast.cli.lab.history import Event

__all__ = ["words"]


def words(event: Event) -> str:
    figures = event.figures
    match event.what:
        case "wait":
            return "asks for the lock"
        case "refused":
            return "is refused, and waits"
        case "hold":
            fence = figures.get("fence")
            return "has the lock" + (f", token {fence}" if fence else "")
        case "gave up":
            return "gives up"
        case "failed":
            return f"is told: {figures['error']}"
        case "look":
            return "looks, and " + ("goes on" if figures["held"] else "sees that the lease is over")
        case "released":
            return "is told that it had been lost" if figures["kept"] is False else ""
        case "write":
            return "writes: " + ("accepted" if figures["accepted"] else figures["refusal"])
        case "key":
            return _key(int(figures["pttl"]), figures["value"])
        case other:
            return _DONE.get(other, "").format(**figures)


_DONE = {
    "free": "releases",
    "lost": "learns that the lease is over",
    "killed": "is killed (SIGKILL)",
    "stopped": "is stopped (SIGSTOP)",
    "woken": "goes on (SIGCONT)",
    "swallowed": "the reply to {whose} is lost; the command was done",
    "delayed": "{whose}'s command is on its way",
    "arrived": "{whose}'s command has arrived, and was done",
    "cut": "from now on nothing reaches the replica",
    "promoted": "is the master now",
    "restarted": "is back, and has forgotten everything",
    "old": "have been up for {seconds:.0f} s, longer than any lease",
}


def _key(left: int, value: object) -> str:
    if left == -2:
        return "the lock is free"
    whose = f"the lock is {str(value).partition('-')[0]}'s" if value else "the lock is taken"
    return whose + (", for ever" if left == -1 else f", for {left / 1000:.1f} s more")

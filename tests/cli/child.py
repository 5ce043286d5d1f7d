"""What the tests run under `holdfast run`; imports little, so that it starts at once.

    python -S child.py beat FILE [--deaf] [--fork]   a heartbeat: CLOCK_BOOTTIME, every millisecond
    python -S child.py count [--end-on NUMBER]       says each signal that comes

`--deaf` ignores TERM; `--fork` has a grandchild in a session of its own beat as well. Heartbeats go
to FILE, and to FILE.2 for the grandchild.
"""

import os
import signal
import struct
import sys
import time


def beat(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        os.write(file, struct.pack("d", time.clock_gettime(time.CLOCK_BOOTTIME)))
        time.sleep(0.001)


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def main() -> None:
    if sys.argv[1] == "beat":
        if "--deaf" in sys.argv:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grandchild = os.fork() if "--fork" in sys.argv else -1
        if grandchild == 0:
            os.setsid()
            beat(sys.argv[2] + ".2")
        say(f"{os.getpid()} {os.getppid()} {grandchild}")
        beat(sys.argv[2])
    else:
        numbers = [n for n in range(1, 32) if n not in (signal.SIGKILL, signal.SIGSTOP)]
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        say(f"{os.getpid()} {os.getppid()}")
        while True:
            number = signal.sigwait(numbers)
            say(signal.Signals(number).name)
            if number == signal.SIGTERM:
                sys.exit(0)


main()

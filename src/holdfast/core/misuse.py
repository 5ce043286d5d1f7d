"""What newcomers write, and what Python alone would answer in words that lead nowhere.

Contract: nothing here is on the path of who writes it right, and type checkers do not see it: they
go on refusing what is refused here. Partners: the skins, whose classes these are below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["Awaited", "Blocking", "InParts", "made_by_a_client", "no_attribute"]


class Blocking:
    """For threads: not to be entered by `async with`."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __aenter__(self) -> NoReturn:
            raise TypeError(f"{self!r} blocks: write `with`, or use holdfast.aio")

        def __aexit__(self, *exc_info: object) -> NoReturn:
            self.__aenter__()


class Awaited:
    """For tasks: not to be entered by `with`. (There is no `__await__` above to match: what has it
    is taken for awaitable, also by frameworks which await whatever a handler returns.)"""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(f"{self!r} is asyncio's: write `async with`")

        def __exit__(self, *exc_info: object) -> NoReturn:
            self.__enter__()


class InParts:
    """No lock itself, but what makes some."""

    __slots__ = ()
    _parts = ""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            kind = type(self).__name__
            if name not in ("acquire", "release", "locked"):
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            hint = f"{kind!r} object has no {name!r}: use {self._parts}"
            raise AttributeError(hint, name=name, obj=None)

        def __enter__(self) -> NoReturn:
            raise TypeError(f"{type(self).__name__} is no lock by itself: use {self._parts}")

        def __exit__(self, *exc_info: object) -> NoReturn:
            self.__enter__()

        def __aenter__(self) -> NoReturn:
            self.__enter__()

        def __aexit__(self, *exc_info: object) -> NoReturn:
            self.__enter__()


def made_by_a_client(cls: type) -> TypeError:
    return TypeError(
        f"{cls.__name__} objects are made by a client, as in holdfast.connect(url).lock(name); for "
        "tasks that is holdfast.aio.connect"
    )


def no_attribute(module: str, name: str, client: type[Any]) -> AttributeError:
    """`obj` is said to be none, or Python would go on to suggest the class of that name."""
    if name.startswith("_") or not hasattr(client, name):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return AttributeError(
        f"module {module!r} has no {name!r}, its clients have: {module}.connect(url).{name}(...)",
        name=name,
        obj=None,
    )

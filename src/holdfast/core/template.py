"""Names made from a call's arguments, for `@locks.locked("report:{user_id}")`.

Contract: a template that names an argument the function does not have is refused when the function
is decorated, not when it is first called.
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.core.names import checked_name
from holdfast.errors import Misconfigured

__all__ = ["check_template", "namer", "title"]


def check_template(template: object) -> None:
    if callable(template):
        raise Misconfigured(
            "locked() wants the name of the lock, and is then used as a decorator: "
            '@locks.locked("report:{user_id}")'
        )
    if not isinstance(template, str):
        raise Misconfigured(f"a lock's name is text, not {type(template).__name__}")


def namer(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """A function of the call's arguments that gives the name of the lock."""
    signature = inspect.signature(function)
    try:
        fields = list(_fields(template))
    except ValueError as error:
        raise Misconfigured(
            f"the lock name {template!r:.80} is not a format ({error}); write {{{{ for a brace"
        ) from None
    for field in fields:
        argument = field.partition(".")[0].partition("[")[0]
        if argument not in signature.parameters:
            known = ", ".join(signature.parameters) or "no arguments"
            raise Misconfigured(
                f"the lock name {template!r:.80} needs an argument {argument!r:.80}, but "
                f"{title(function)}() has: {known}"
            )
    if not fields:
        name = checked_name(template.format())
        return lambda *args, **kwargs: name

    def name_for(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return name_for


def title(function: Callable[..., Any]) -> str:
    """What a message calls it."""
    return getattr(function, "__qualname__", repr(function))


def _fields(template: str) -> Iterator[str]:
    """Also those inside of others: {amount:{width}}."""
    for _, field, inner, _ in string.Formatter().parse(template):
        if field is not None:
            yield field
            yield from _fields(inner or "")

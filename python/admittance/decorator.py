"""Limits around functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, cast

from ._shapes import AsyncChecks, Checks, counted, is_async, is_awaitable
from .errors import InvalidRequestError, LimitExceededError, ServiceUnavailableError

Given = ParamSpec("Given")
Result = TypeVar("Result")


def limited(
    backend: Checks | AsyncChecks,
    policy: str,
    key: str | Callable[..., str] = "",
    *,
    cost: int | Callable[..., int] = 1,
    mode: Literal["check", "admit"] = "check",
    fail: Literal["open", "closed"] = "closed",
    heartbeat: bool = True,
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Asks a policy before every call of a function, `def` or `async def`.

        @limited(backend, "mail", key=lambda to, text: to)
        def send(to: str, text: str) -> None: ...

    A call that is denied does not begin: it raises `LimitExceededError`, whose `decision` says how
    long to wait. `key` and `cost` are values, or functions of the call's arguments. With
    `mode="admit"` the call holds an admission while it runs, which is given back as dropped if it
    raises. While the backend cannot answer, or a `RedisBackend` has lost its Redis and its policy's
    fail mode admits without counting, a call raises `ServiceUnavailableError`, or runs uncounted
    with `fail="open"`.

    An `async def` needs an async twin or an `Embedded`; a `def` anything but an async twin. A
    generator would run after its call was over: ask inside it instead.
    """
    if mode not in ("check", "admit"):
        raise InvalidRequestError(f"mode is 'check' or 'admit', not {mode!r}")
    if fail not in ("open", "closed"):
        raise InvalidRequestError(f"fail is 'open' or 'closed', not {fail!r}")
    asking = _Asking(backend, policy, key, cost, mode, fail, heartbeat)

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        _refuse_unfit(function, backend)
        around = _awaited if inspect.iscoroutinefunction(function) else _called
        return cast(Callable[Given, Result], around(asking, function))

    return decorate


class _Asking:
    """What a call asks for."""

    def __init__(
        self,
        backend: Checks | AsyncChecks,
        policy: str,
        key: str | Callable[..., str],
        cost: int | Callable[..., int],
        mode: str,
        fail: str,
        heartbeat: bool,
    ) -> None:
        self.backend: Any = backend
        self._policy = policy
        self._key = key
        self._cost = cost
        self._heartbeat = heartbeat
        self.is_admit = mode == "admit"
        self.is_open = fail == "open"

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = self._key(*args, **kwargs) if callable(self._key) else self._key
        cost = self._cost(*args, **kwargs) if callable(self._cost) else self._cost
        if self.is_admit:
            return self.backend.admit(self._policy, key, cost, heartbeat=self._heartbeat)
        return self.backend.check(self._policy, key, cost)

    def refuse_denied(self, answer: Any) -> None:
        if answer.allowed:
            return
        decision = answer.decision if self.is_admit else answer
        by = getattr(answer, "binding_axis", "")
        raise LimitExceededError(
            f"policy {self._policy!r} denied this call{f' by {by}' if by else ''};"
            f" retry after {decision.retry_after_ms} ms",
            decision,
        )


def _called(asking: _Asking, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = counted(asking.backend, asking.ask(args, kwargs))
        except ServiceUnavailableError:
            if not asking.is_open:
                raise
            return function(*args, **kwargs)
        asking.refuse_denied(answer)
        if not asking.is_admit:
            return function(*args, **kwargs)
        with answer:
            return function(*args, **kwargs)

    return call


def _awaited(asking: _Asking, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = asking.ask(args, kwargs)
            if is_awaitable(answer):
                answer = await answer
            counted(asking.backend, answer)
        except ServiceUnavailableError:
            if not asking.is_open:
                raise
            return await function(*args, **kwargs)
        asking.refuse_denied(answer)
        if not asking.is_admit:
            return await function(*args, **kwargs)
        if hasattr(type(answer), "__aenter__"):
            async with answer:
                return await function(*args, **kwargs)
        with answer:
            return await function(*args, **kwargs)

    return call


def _refuse_unfit(function: Callable[..., Any], backend: object) -> None:
    """What cannot work is refused where it is written, not when it is first called."""
    from . import RedisBackend, ServiceBackend

    name = type(backend).__name__
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function!r} is a generator, which runs after its call; ask inside it")
    if inspect.iscoroutinefunction(function):
        if isinstance(backend, (ServiceBackend, RedisBackend)):
            raise TypeError(f"{name} would block the event loop; use Async{name}")
    elif is_async(backend):
        raise TypeError(f"{name} is awaited, which a `def` cannot do; write `async def`")

"""Answers that have more in them than a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ._native import Decision

if TYPE_CHECKING:
    from ._rows import AccountRow, CostsRow, ExplainedRow


class AxisDecision(NamedTuple):
    """What one axis said."""

    axis: str
    """"load", "concurrency", "rate" or "cost"."""
    decision: Decision


class Explanation(NamedTuple):
    """What an admission would be told now. Asking has charged nothing and holds nothing."""

    decision: Decision
    """Over all axes."""
    axes: tuple[AxisDecision, ...]
    """What each axis sees, those after the first that denies too. One that can only be asked by
    charging it is absent."""
    binding_axis: str
    """The axis that would deny; empty if none would."""
    policy_denied: bool
    """Whether the work is not worth its price."""
    value: float | None
    """What the work is worth; None without prices."""
    price: float | None
    """What it must be worth; None without prices."""
    wait_ms: int | None
    """After how long every axis that denies may admit; None if none denies, `NEVER_MS` if waiting
    does not help."""
    cost_max: int | None
    """The most that the work could cost and pass the budgets now; None without budgets."""


class Settlement(NamedTuple):
    """How a lease ended in one account."""

    kind: str
    """"now"; "before" if it was settled already; "unknown" if there is no such lease. Only "now"
    has changed anything."""
    returned: int
    """Can be spent again in the present window."""
    debt: int
    """Became debt."""


class Account(NamedTuple):
    """How one account stands, after the call."""

    policy: str
    key: str
    window: str
    """The name of the window."""
    limit: int
    spent: int
    reserved: int
    """Reserved by open leases and not yet spent."""
    debt: int
    """Produced, and not yet paid by any window."""
    left: int
    """Below zero if overdrawn."""
    open_leases: int
    window_end: int
    """Epoch milliseconds."""
    unspent: int
    """What this lease has still reserved."""
    settlement: Settlement | None
    allowed: bool
    retry_after_ms: int


class Costs(NamedTuple):
    """What the accounts of a key say together."""

    allowed: bool
    flow: str
    """"go_on"; "soft_stop" if this may be served but little is left; "stop" if it must not be."""
    retry_after_ms: int
    remaining: int
    """The least that is left of any of the budgets."""
    binding: int
    """Which account denied, as an index of `accounts`; -1 if none did."""
    accounts: tuple[Account, ...]
    reclaimed: bool = False
    """Whether the permit of the admission that was debited is lost: nobody was heard of in time."""


def explanation(row: ExplainedRow) -> Explanation:
    decision, axes, binding, denied, worth, wait_ms, cost_max = row
    value, price = worth if worth is not None else (None, None)
    seen = tuple(AxisDecision(*axis) for axis in axes)
    return Explanation(decision, seen, binding, denied, value, price, wait_ms, cost_max)


def costs(row: CostsRow) -> Costs:
    allowed, flow, retry_after_ms, remaining, binding, accounts, reclaimed = row
    each = tuple(_account(account) for account in accounts)
    return Costs(allowed, flow, retry_after_ms, remaining, binding, each, reclaimed)


def _account(row: AccountRow) -> Account:
    names, numbers, settled, (allowed, retry_after_ms) = row
    limit, spent, reserved, debt, left, open_leases, window_end, unspent = numbers
    counted = (limit, spent, reserved, debt, left, open_leases, window_end, unspent)
    settlement = None if settled is None else Settlement(*settled)
    return Account(*names, *counted, settlement, allowed, retry_after_ms)


__all__ = ["Account", "AxisDecision", "Costs", "Explanation", "Settlement"]

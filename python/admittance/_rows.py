"""What the native half answers where `admittance.results` makes types of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._native import Decision

    Charges = list[tuple[str, str, int]]
    AxisRow = tuple[str, Decision]
    AccountRow = tuple[
        tuple[str, str, str], list[int], tuple[str, int, int] | None, tuple[bool, int]
    ]
    CostsRow = tuple[bool, str, int, int, int, list[AccountRow]]
    ReservedRow = tuple[CostsRow, str, int, list[int]]
    ExplainedRow = tuple[
        Decision, list[AxisRow], str, bool, tuple[float, float] | None, int | None, int | None
    ]

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
    CostsRow = tuple[bool, str, int, int, int, list[AccountRow], bool]
    ReservedRow = tuple[CostsRow, str, int, list[int]]
    ExplainedRow = tuple[
        Decision, list[AxisRow], str, bool, tuple[float, float] | None, int | None, int | None
    ]

    DenialRow = tuple[int, str, str, str, int, int, int]
    PolicyRow = tuple[
        tuple[str, str, str],
        list[int],
        tuple[list[float], int] | None,
        list[tuple[str, int]],
        list[tuple[str, int]],
    ]
    SnapshotRow = tuple[
        tuple[tuple[int, int], str, str, str],
        list[PolicyRow],
        list[tuple[str, int, int, float, int, int, bool]],
        list[DenialRow],
        str,
    ]

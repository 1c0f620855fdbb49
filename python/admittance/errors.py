"""What can go wrong. A denial is none of it: it is a `Decision` that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._native import Decision


class AdmittanceError(Exception):
    """Anything that kept a question from being answered."""


class PolicyNotFoundError(AdmittanceError):
    """No policy has this name. The message names those that there are."""


class LeaseNotFoundError(AdmittanceError):
    """No account knows the lease that was to be settled: it was given for another key, or ended too
    long ago. Nothing was charged."""


class OperationNotSupportedError(AdmittanceError):
    """The policy is of a kind, or the backend one, that cannot do this."""


class ServiceUnavailableError(AdmittanceError):
    """Nobody answered in time. Whether anything was charged is not known, unless the message says
    that no connection was made."""


class OverloadedError(ServiceUnavailableError):
    """The service is behind and sheds, or holds as much as it may. Nothing was charged."""


class BackendClosedError(AdmittanceError, RuntimeError):
    """The backend was closed before it was asked. Nothing was charged."""


class UnauthenticatedError(AdmittanceError):
    """The secret is missing or wrong."""


class InvalidRequestError(AdmittanceError, ValueError):
    """No policy could decide this: a cost out of range, a key or a batch that is too long. Nothing
    was charged. Over the wire also a message of more than 4 MiB: if it was the answer that was too
    large, its batch was charged."""


class ConfigError(AdmittanceError, ValueError):
    """The policies cannot be used. The message has every problem, its place, and what would be
    right."""


class LimitExceededError(AdmittanceError):
    """What `limited` raises instead of calling a function that may not be called now."""

    def __init__(self, message: str, decision: Decision) -> None:
        super().__init__(message)
        self.decision = decision
        """What was decided."""

    def __reduce__(self) -> tuple[type[LimitExceededError], tuple[str, Decision]]:
        # A pool of processes sends what its workers raise; without the decision it could not be
        # made again there.
        return type(self), (str(self), self.decision)


__all__ = [
    "AdmittanceError",
    "BackendClosedError",
    "ConfigError",
    "InvalidRequestError",
    "LeaseNotFoundError",
    "LimitExceededError",
    "OperationNotSupportedError",
    "OverloadedError",
    "PolicyNotFoundError",
    "ServiceUnavailableError",
    "UnauthenticatedError",
]

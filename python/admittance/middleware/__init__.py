"""Limits in front of web applications: `starlette` (FastAPI too), `flask` and `django`.

Each is a module of its own, so that importing one needs no other framework. What they share:

- A request is checked (`mode="check"`) or admitted (`mode="admit"`) before the application sees
  it. An admission is held until the response's body has ended, streams included.
- A denial is answered with a problem document (RFC 9457): 429 for rate, cost and worth, 503 for
  concurrency and load, with `Retry-After`. Allowed answers have the `RateLimit` fields too.
- Who is asking is the peer's address. A header that anybody can write is no identity: say how many
  proxies of yours append to `X-Forwarded-For` with `ClientAddress(proxies=1)`.
- `fail` says what happens while the backend cannot answer: `"closed"` answers 503, `"open"` lets
  requests pass uncounted.
"""

from .clients import ClientAddress

__all__ = ["ClientAddress"]

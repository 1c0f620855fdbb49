"""Drives the HTTP door of a live service with clients that know nothing of this project.

curl and requests, by hand; and requests made at random from the OpenAPI document, valid and not:
no answer may be 5xx, or one that the document does not have.

    python http_client.py --binary target/release/admittance

The last line says how many checks passed and failed; the exit code is 1 if one failed.
ADMITTANCE_SEED=n replays what was made at random, ADMITTANCE_LONG=1 makes ten times as much.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

POLICIES = Path(__file__).with_name("policies.yaml")
JSON = "application/json"
PROBLEM = "application/problem+json"
# Not `one`: who holds nothing back uses it up, and is told 503, as it should be.
NAMES = ["a", "b", "c", "d", "e"]


class Started:
    """A service of our own, on a free port."""

    def __init__(self, binary: str) -> None:
        families = ["--rate-limit-headers", "ietf,draft6,x"]
        command = [binary, "serve", "--config", str(POLICIES), "--port", "0", *families]
        # What is counted must not depend on how busy the machine is.
        command.append("--no-load-shedding")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = None
        for line in self.process.stdout:
            print(f"| {line}", end="")
            found = found or re.search(r"listening on (\S+)", line)
            if line.startswith("try: "):
                break
        if found is None:
            raise SystemExit("the service did not say where it listens")
        self.url = f"http://{found.group(1)}"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=10) == 0


def curl(*args: str) -> tuple[int, dict[str, str], str]:
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--include", *args],
        check=True, capture_output=True, text=True,
    )
    head, _, body = done.stdout.replace("\r\n", "\n").partition("\n\n")
    first, *lines = head.split("\n")
    fields = dict(line.split(": ", 1) for line in lines)
    return int(first.split()[1]), {name.lower(): value for name, value in fields.items()}, body


class Checks:
    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: Any) -> requests.Response:
        return requests.post(f"{self.url}{path}", json=body, timeout=10)

    def curl_is_admitted_and_denied(self) -> None:
        for version in ("--http1.0", "--http1.1", "--http2-prior-knowledge"):
            ask = json.dumps({"policy": "a", "key": version, "cost": 5})
            args = [version, "--json", ask, f"{self.url}/v1/check"]
            status, fields, body = curl(*args)
            assert (status, fields["content-type"]) == (200, JSON), (status, fields, body)
            assert fields["ratelimit-policy"] == '"a";q=5;w=3600', fields
            assert fields["ratelimit"] == '"a";r=0;t=3600', fields
            assert fields["x-ratelimit-limit"] == fields["ratelimit-limit"] == "5", fields
            assert json.loads(body)["decision"]["remaining"] == 0, body
            status, fields, body = curl(*args)
            assert (status, fields["content-type"]) == (429, PROBLEM), (status, fields, body)
            assert 3590 <= int(fields["retry-after"]) <= 3600, fields
            assert json.loads(body)["violated-policies"] == ["a"], body

    def a_form_is_refused_with_what_to_send(self) -> None:
        status, _, body = curl("--data", "policy=a&key=k", f"{self.url}/v1/check")
        assert status == 415 and "application/json" in body, (status, body)

    def curl_sees_health_and_the_document(self) -> None:
        assert curl(f"{self.url}/healthz")[0] == 200
        assert json.loads(curl(f"{self.url}/readyz")[2]) == {"status": "ready", "store": "memory"}
        assert json.loads(curl(f"{self.url}/openapi.json")[2])["openapi"] == "3.1.0"
        status, fields, body = curl("--head", f"{self.url}/metrics")
        assert (status, body) == (200, ""), (status, body)
        assert int(fields["content-length"]) > 0, fields

    def requests_holds_and_releases(self) -> None:
        ask = {"policy": "one", "key": "k"}
        lease = self.post("/v1/admit", ask).json()["lease_id"]
        denied = self.post("/v1/admit", ask)
        assert denied.status_code == 503, denied.text
        assert denied.json()["binding_axis"] == "concurrency", denied.text
        assert self.post("/v1/admit?status=200", ask).json()["decision"]["allowed"] is False
        heard = self.post("/v1/heartbeat", {"lease_ids": [lease]}).json()
        assert heard["live_ids"] == [lease], heard
        assert self.post("/v1/release", {"lease_id": lease}).json() == {}
        assert self.post("/v1/admit", ask).status_code == 200

    def requests_reserves_and_settles(self) -> None:
        charges = [{"policy": "d", "key": "r", "units": 40}]
        lease = self.post("/v1/reserve", {"charges": charges}).json()["lease_id"]
        assert self.post("/v1/reserve", {"charges": charges}).status_code == 429
        charges[0]["units"] = 10
        settle = {"charges": charges, "lease_id": lease}
        account = self.post("/v1/settle", settle).json()["answer"]["accounts"][0]
        assert account["settlement"] == {"kind": "now", "returned": 30, "debt": 0}, account
        assert account["left"] == 40, account

    def one_session_keeps_its_connection(self) -> None:
        with requests.Session() as session:
            for left in range(999_999, 999_949, -1):
                ask = {"policy": "b", "key": "session"}
                reply = session.post(f"{self.url}/v1/check", json=ask, timeout=10)
                assert reply.json()["decision"]["remaining"] == left, reply.text

    def nothing_made_from_the_document_is_unknown_to_it(self) -> None:
        seed = int(os.environ.get("ADMITTANCE_SEED") or 20_261_116)
        print(f"replay with ADMITTANCE_SEED={seed}")
        examples = 200 if os.environ.get("ADMITTANCE_LONG") else 20
        checks = (
            "not_a_server_error,status_code_conformance,content_type_conformance,"
            "response_schema_conformance"
        )
        # Requests that name no policy of ours would all be 404.
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as named:
            document = requests.get(f"{self.url}/openapi.json", timeout=10).json()
            for schema in document["components"]["schemas"].values():
                policy = schema.get("properties", {}).get("policy")
                if policy and schema.get("additionalProperties") is False:
                    policy["enum"] = NAMES
            json.dump(document, named)
            named.flush()
            for where in (f"{self.url}/openapi.json", named.name):
                command = [
                    sys.executable, "-m", "schemathesis.cli", "run", where, "--url", self.url,
                    "--checks", checks, "--mode", "all", "--seed", str(seed),
                    "--max-examples", str(examples), "--phases", "examples,coverage,fuzzing",
                    "--generation-database", "none", "--no-color",
                ]
                done = subprocess.run(command, capture_output=True, text=True)
                print("\n".join(f"| {line}" for line in done.stdout.splitlines()[-12:]))
                assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True, help="the service to start, drive and stop")
    started = Started(os.path.abspath(parser.parse_args().binary))
    checks = Checks(started.url)
    own: list[Callable[[], None]] = [
        checks.curl_is_admitted_and_denied,
        checks.a_form_is_refused_with_what_to_send,
        checks.curl_sees_health_and_the_document,
        checks.requests_holds_and_releases,
        checks.requests_reserves_and_settles,
        checks.one_session_keeps_its_connection,
        checks.nothing_made_from_the_document_is_unknown_to_it,
        started.stop,
    ]
    passed = 0
    try:
        for check in own:
            try:
                check()
                passed += 1
                print(f"ok {check.__name__}")
            except Exception:
                print(f"FAILED {check.__name__}")
                traceback.print_exc()
    finally:
        started.process.kill()
        started.process.wait()
    print(f"{passed} passed, {len(own) - passed} failed")
    return 0 if passed == len(own) else 1


if __name__ == "__main__":
    sys.exit(main())

"""A service behind TLS: with the right certificates, and with none of the wrong ones."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Service

from admittance import (
    FleetBackend,
    MonitorBackend,
    ServiceBackend,
    ServiceUnavailableError,
)

API = {"api": {"strategy": "gcra", "limit": 3, "period": "1h"}}


def authority(directory: Path, name: str) -> Path:
    """One that signs; its certificate."""
    made = directory / f"{name}.pem"
    key = directory / f"{name}.key"
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-days", "2", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(made),
    )  # fmt: skip
    return made


def signed(directory: Path, by: str, name: str, alternative: str) -> tuple[Path, Path]:
    """A certificate and its key."""
    asked, made, key = (directory / f"{name}.{kind}" for kind in ("csr", "pem", "key"))
    openssl(
        "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(asked),
    )  # fmt: skip
    named = directory / f"{name}.cnf"
    named.write_text(f"subjectAltName={alternative}\n", encoding="utf-8")
    openssl(
        "x509", "-req", "-in", str(asked), "-CA", str(directory / f"{by}.pem"),
        "-CAkey", str(directory / f"{by}.key"), "-CAcreateserial", "-days", "2",
        "-extfile", str(named), "-out", str(made),
    )  # fmt: skip
    return made, key


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    authority(directory, "ours")
    authority(directory, "theirs")
    signed(directory, "ours", "service", "IP:127.0.0.1")
    signed(directory, "ours", "client", "DNS:client")
    return directory


@pytest.fixture(scope="module")
def secure(directory: Path) -> Iterator[Service]:
    flags = ["--tls-cert", f"{directory}/service.pem", "--tls-key", f"{directory}/service.key"]
    with Service(API, *flags, "--tls-ca", f"{directory}/ours.pem") as service:
        yield service


def test_both_sides_are_known(secure: Service, directory: Path, key: str) -> None:
    own: Any = {"tls_cert": directory / "client.pem", "tls_key": directory / "client.key"}
    for ca in (directory / "ours.pem", (directory / "ours.pem").read_bytes()):
        for target in (secure.target, f"https://{secure.target}"):
            with ServiceBackend(target, timeout=20, tls_ca=ca, **own) as limits:
                assert limits.peek("api", key).limit == 3


def test_who_is_not_known_is_not_asked(secure: Service, directory: Path, key: str) -> None:
    own: Any = {"tls_cert": directory / "client.pem", "tls_key": directory / "client.key"}
    ours, theirs = directory / "ours.pem", directory / "theirs.pem"
    for limits in (
        ServiceBackend(secure.target, timeout=20, retries=0, tls_ca=theirs, **own),
        ServiceBackend(secure.target, timeout=20, retries=0, tls_ca=ours),
        ServiceBackend(secure.target, timeout=20, retries=0, tls_ca=ours, tls_name="no", **own),
        ServiceBackend(secure.target, timeout=20, retries=0),
    ):
        with limits, pytest.raises(ServiceUnavailableError):
            limits.peek("api", key)


@pytest.mark.parametrize("backend", [ServiceBackend, FleetBackend, MonitorBackend])
def test_nothing_of_tls_goes_in_the_clear(
    backend: type[ServiceBackend], directory: Path
) -> None:
    for given in (
        {"tls_key": directory / "client.key"},
        {"tls_cert": directory / "client.pem"},
        {"tls_name": "service"},
    ):
        with pytest.raises(ValueError, match="TLS needs tls_ca"):
            backend("127.0.0.1:1", **given)
        with pytest.raises(ValueError, match="without TLS"):
            backend("http://127.0.0.1:1", **given)
    with pytest.raises(ValueError, match="belong together"):
        backend("127.0.0.1:1", tls_ca=directory / "ours.pem", tls_key=directory / "client.key")

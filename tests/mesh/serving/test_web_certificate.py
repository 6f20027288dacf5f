"""The certificate of a server of models, which is renewed while the server runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.authority.authority import Authority
from mesh.backends.enrolment import authority_folder
from mesh.commands.web_certificate import WebCertificate


async def test_a_renewal_that_fails_is_told_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, authority = str(tmp_path / "state"), authority_folder("home", str(tmp_path / "state"))
    Authority(authority, "home")
    certificate = WebCertificate("home", state, tmp_path / "state" / "web", ["localhost"])
    file = tmp_path / "state" / "web" / "web.pem"
    first = file.read_bytes()
    authority.rename(authority.with_name("away"))
    keeping = asyncio.create_task(certificate.keep(0.0, 0.01))
    try:
        async with asyncio.timeout(60):
            while "is not renewed" not in caplog.text:
                await asyncio.sleep(0.01)
            assert file.read_bytes() == first
            authority.with_name("away").rename(authority)
            while file.read_bytes() == first:
                await asyncio.sleep(0.01)
    finally:
        keeping.cancel()

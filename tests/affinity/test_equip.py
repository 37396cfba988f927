"""Secrets reach the signed carriers of rules in words."""

from __future__ import annotations

import base64
import json

import itsdangerous
import pytest

from sessionworkers.affinity.carriers import plain
from sessionworkers.affinity.equip import equipped
from sessionworkers.affinity.presets import PresetContext
from sessionworkers.affinity.views import RequestView
from sessionworkers.affinity.words import parse_rule

CONTEXT = PresetContext(cookies=(("session", "of-the-app", 60),), secrets=("from-the-settings",))


def cookie(secret: str) -> RequestView:
    data = base64.b64encode(json.dumps({"sid": "0123456789abcdef0123"}).encode())
    value = itsdangerous.TimestampSigner(secret).sign(data).decode()
    return RequestView("GET", "/", headers=[(b"cookie", f"session={value}".encode())])


def token(secret: str) -> RequestView:
    value = itsdangerous.URLSafeSerializer(secret).dumps({"sid": "0123456789abcdef0123"})
    return RequestView("GET", "/", headers=[(b"x-token", value.encode())])


@pytest.mark.parametrize("words", ["starlette-cookie:session/sid", "starlette-cookie:session/sid@/"])
@pytest.mark.parametrize(("secret", "verified"), [("of-the-app", True), ("from-the-settings", True), ("forged", None)])
def test_cookies_are_verified_by_the_apps_secret_and_the_settings(
    words: str, secret: str, verified: bool | None
) -> None:
    (carrier,) = equipped(parse_rule(words, "r"), CONTEXT).carriers
    read = carrier.read(cookie(secret))
    assert (read.verified if read else None) is verified


def test_tokens_are_verified_by_any_secret() -> None:
    (carrier,) = equipped(parse_rule("token:x-token/sid", "r"), CONTEXT).carriers
    for secret in ("of-the-app", "from-the-settings"):
        read = carrier.read(token(secret))
        assert read is not None and read.verified
    assert carrier.read(token("forged")) is None


def test_without_a_secret_nothing_changes() -> None:
    rule = parse_rule("starlette-cookie:session/sid header:x", "r")
    assert equipped(rule, PresetContext()) is rule
    read = plain(rule.carriers[0]).read(cookie("whoever"))
    assert read is not None and not read.verified

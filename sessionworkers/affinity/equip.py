"""Rules in words hold no secrets: those of signed cookies and tokens come from the loaded app and the settings."""

from __future__ import annotations

from dataclasses import replace

from sessionworkers.affinity.carriers import Carrier, Only, Shaped, StarletteCookie, Token
from sessionworkers.affinity.presets import PresetContext
from sessionworkers.affinity.rules import Rule


def equipped(rule: Rule, context: PresetContext) -> Rule:
    """``rule`` with its signed carriers verifying, where a secret is known: a cookie by the secret that the app itself
    signs it with, a token by any. Without a secret they stay unverified."""
    carriers = tuple(_equipped(carrier, context) for carrier in rule.carriers)
    if all(new is old for new, old in zip(carriers, rule.carriers, strict=True)):
        return rule
    return replace(rule, carriers=carriers)


def _equipped(carrier: Carrier, context: PresetContext) -> Carrier:
    if isinstance(carrier, Only):
        return Only(_equipped(carrier.carrier, context), carrier.paths)
    if isinstance(carrier, Shaped):
        return Shaped(_equipped(carrier.carrier, context), carrier.pattern.pattern)
    if isinstance(carrier, StarletteCookie) and not carrier.secrets:
        for name, secret, max_age in context.cookies:
            if name == carrier.name:
                return carrier.with_secrets((secret, *context.secrets), max_age)
        return carrier.with_secrets(context.secrets) if context.secrets else carrier
    if isinstance(carrier, Token) and not carrier.secrets:
        secrets = (*context.secrets, *(secret for _, secret, _ in context.cookies))
        return carrier.with_secrets(secrets) if secrets else carrier
    return carrier

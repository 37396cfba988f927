"""Which rules are on in this worker: the user's own, the presets that fit the loaded app, and `auto`."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from sessionworkers.affinity.auto import Auto
from sessionworkers.affinity.carriers import parse_carrier
from sessionworkers.affinity.equip import equipped
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.presets import PRESETS, PresetContext, recognised
from sessionworkers.affinity.rules import Rule
from sessionworkers.affinity.ruleset import RuleSet
from sessionworkers.affinity.words import parse_rule
from sessionworkers.ledger.cookie import AffinityCookie
from sessionworkers.members.board import NamesBoard
from sessionworkers.members.runtime import RuntimeDir
from sessionworkers.worker.discover import session_cookies

if TYPE_CHECKING:
    from sessionworkers.settings import Settings

log = logging.getLogger("uvicorn.error")

COOKIE_RULE = "affinity-cookie"


def build_rules(settings: Settings, app: Any, runtime: RuntimeDir | None) -> RuleSet:
    """The rules in force, first match first: the user's own, presets, the router's cookie, `auto`."""
    times = {
        "retry_window": settings.retry_window,
        "return_window": settings.return_window,
        "idle": settings.session_idle,
    }
    context = PresetContext(
        cookies=tuple((each.name, each.secret, each.max_age) for each in session_cookies(app)),
        secrets=tuple(settings.session_secret),
        retry_window=settings.retry_window,
        return_window=settings.return_window,
        idle=settings.session_idle,
    )
    rules = [equipped(parse_rule(text, name, **times), context) for name, text in settings.rule_texts()]
    for name in presets_on(settings):
        rules += PRESETS[name].rules(context)
    if settings.affinity_cookie is not None:
        carrier = parse_carrier(f"cookie:{settings.affinity_cookie}")
        rules.append(Rule(COOKIE_RULE, (carrier,), idle=settings.session_idle, return_window=settings.return_window))
    auto = None
    if settings.auto:
        auto = Auto(
            NamesBoard(runtime) if runtime is not None else None,
            idle=settings.session_idle,
            return_window=settings.return_window,
        )
        auto.on_inferred(lambda text: log.info("%s", text))
    return RuleSet(rules, auto, [PathTemplate(path) for path in settings.no_routing])


def presets_on(settings: Settings) -> list[str]:
    """The presets that are on: named, or recognised by what the app has imported, and not refused."""
    if "all" in settings.no_preset:
        return [name for name in PRESETS if name in settings.preset]
    wanted = {*settings.preset, *recognised(sys.modules)} - set(settings.no_preset)
    return [name for name in PRESETS if name in wanted]


def affinity_cookie(rules: RuleSet, settings: Settings) -> AffinityCookie | None:
    """The router's own cookie, where it is on."""
    rule = rules.named(COOKIE_RULE)
    return AffinityCookie(settings.affinity_cookie, rule) if rule is not None and settings.affinity_cookie else None


def names_for(rules: RuleSet) -> list[str]:
    """The names of the rules in force, for the start lines."""
    return [rule.name for rule in rules.rules] + (["auto"] if rules.auto is not None else [])

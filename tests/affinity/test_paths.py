"""Path templates: which paths match, and which texts are none."""

from __future__ import annotations

import time

import pytest

from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.views import RequestView

MATCHES = [
    # template, path, root_path, the ID ("" for a match without one, None for no match)
    ("/v1/sessions/{id}", "/v1/sessions/abc", "", "abc"),
    ("/v1/sessions/{id}", "/v1/sessions/abc/", "", "abc"),
    ("/v1/sessions/{id}", "/v1/sessions/abc/action/now", "", "abc"),
    ("/v1/sessions/{id}", "/v1/sessions/", "", None),
    ("/v1/sessions/{id}", "/v1/sessions", "", None),
    ("/v1/sessions/{id}", "/v1/sessionsabc", "", None),
    ("/v1/sessions/{id}", "/api/v1/sessions/abc", "", "abc"),  # mounted: two literal segments
    ("/v1/sessions/{id}", "/api/v1/sessions/abc/x", "/api", "abc"),
    ("/v1/sessions/{id}", "/xv1/sessions/abc", "", None),
    ("/v1/sessions/{id}", "/v1//sessions/abc", "", None),
    ("/jobs/{id}", "/jobs/7", "", "7"),
    ("/jobs/{id}", "/api/jobs/7", "", None),  # one literal segment: only at the start ...
    ("/jobs/{id}", "/api/jobs/7", "/api", "7"),  # ... or where root_path ends
    ("/**/jobs/{id}", "/api/jobs/7", "", "7"),
    ("/**/jobs/{id}", "/jobs/7", "", "7"),
    ("/a/*/b/{id}", "/a/x/b/7", "", "7"),
    ("/a/*/b/{id}", "/a/x/y/b/7", "", None),
    ("/files/{id}.json", "/files/abc.json", "", "abc"),
    ("/files/{id}.json", "/files/abc.xml", "", None),
    ("/files/job-{id}", "/files/job-12/x", "", "12"),
    ("/reset", "/reset", "", ""),
    ("/reset", "/reset/", "", ""),
    ("/reset", "/reset/x", "", None),
    ("/reset", "/x/reset", "", None),
    ("/reset", "/x/reset", "/x", ""),
    ("/static/**", "/static", "", ""),
    ("/static/**", "/static/a/b", "", ""),
    ("/static/**", "/statics", "", None),
    ("/**/mcp/**", "/ng-rollout/7/mcp/x", "", ""),
    ("/**/mcp/**", "/mcp", "", ""),
    ("/**/mcp/**", "/mcpx", "", None),
    ("/**", "/anything/at/all", "", ""),
    ("/**", "/", "", ""),
    ("/", "/", "", ""),
    ("/", "/x", "", None),
    ("/{id}", "/abc/def", "", "abc"),
    ("/v1/sessions/{id}", "/v1/sessions/a%20b", "", "a%20b"),  # the server unquotes paths, nobody does it twice
]


@pytest.mark.parametrize(("template", "path", "root", "expected"), MATCHES)
def test_match(template: str, path: str, root: str, expected: str | None) -> None:
    assert PathTemplate(template).match(RequestView("GET", path, root_path=root)) == expected


@pytest.mark.parametrize(
    ("template", "path", "expected"),
    [
        ("/v1/sessions/{id}", "/v1/sessions/abc", "abc"),
        ("/v1/sessions/{id}", "/v1/sessions/abc/", "abc"),
        ("/v1/sessions/{id}", "/v1/sessions/abc/items", None),
        ("/v1/sessions/{id}/**", "/v1/sessions/abc/items", "abc"),
    ],
)
def test_exact(template: str, path: str, expected: str | None) -> None:
    assert PathTemplate(template, exact=True).match(RequestView("GET", path)) == expected


@pytest.mark.parametrize(
    ("template", "path", "root", "expected"),
    [
        ("/static", "/static/a.css", "", True),
        ("/static", "/static", "", True),
        ("/static", "/statics", "", False),
        ("/static", "/app/static/a.css", "/app", True),
        ("/", "/anything", "", True),
    ],
)
def test_covers_all_below(template: str, path: str, root: str, expected: bool) -> None:
    assert PathTemplate(template).covers(RequestView("GET", path, root_path=root)) is expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v1/{id}", "begin with a slash"),
        ("", "begin with a slash"),
        ("/a/{id}/{id}", "once"),
        ("/a/{name}", "other braces"),
        ("/a/{id", "other braces"),
        ("/a?x={id}", "plain path"),
        ("/a b", "plain path"),
        ("/a/*x", "whole segment"),
        ("/a/**/b", "in front and at the end"),
    ],
)
def test_no_template(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PathTemplate(text)


def test_a_hostile_path_takes_no_time() -> None:
    template = PathTemplate("/v1/sessions/{id}/x/*/y")
    path = "/v1/sessions" * 4000 + "/" * 20_000
    start = time.perf_counter()
    assert template.match(RequestView("GET", path)) is None
    assert time.perf_counter() - start < 1

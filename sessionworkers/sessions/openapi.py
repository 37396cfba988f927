"""The session routes as an OpenAPI document."""

from __future__ import annotations

from typing import Any

_OBJECT: dict[str, Any] = {"type": "object"}
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "detail": {"type": "string"}},
    "required": ["error"],
}
_CREDENTIALS = {
    "type": "object",
    "properties": {"session_id": {"type": "string"}, "session_auth": _OBJECT},
    "required": ["session_id", "session_auth"],
}
_CREATE = {
    "type": "object",
    "properties": {
        "auth_data": {
            "type": ["object", "null"],
            "description": "The session's credential, at will with its `cost`; null: the server mints one.",
        },
        "payload": {
            "type": "object",
            "properties": {
                "lifetime": {"type": "number", "exclusiveMinimum": 0, "default": 60},
                "cost": {"type": "number", "minimum": 0, "default": 100},
                "on_close_route": {"type": ["string", "null"]},
                "on_close_payload": {},
            },
        },
    },
    "required": ["auth_data", "payload"],
}


def document(prefix: str, version: str) -> dict[str, Any]:
    """The document for the routes below ``prefix``."""
    errors = {
        "400": "no such session",
        "401": "the credential is not the session's",
        "410": "already closed",
        "413": "the body is too large",
        "422": "the body is not what is asked for",
        "429": "every worker is full; see Retry-After",
        "503": "no worker can be reached; see Retry-After",
    }
    created = {
        "session_id": {"type": "string"},
        "expiration": {"type": "number", "description": "seconds of the epoch"},
        "session_auth": {**_OBJECT, "description": "only if the server minted it"},
    }
    described = {
        "session_id": {"type": "string"},
        "auth_data": {"type": ["object", "null"]},
        "lifetime": {"type": "number"},
        "expiration": {"type": "number"},
        "created_at": {"type": "number"},
        "on_close_route": {"type": ["string", "null"]},
        "on_close_payload": {},
    }
    ended = {"ended": {"type": "boolean"}, "removed_session": {"type": "string"}}
    routes = {
        "create": ("Open a session on the least loaded worker", _CREATE, "201", created, ("401", "422", "429", "503")),
        "end": ("End a session", _CREDENTIALS, "200", ended, ("400", "401", "410", "422")),
        "get": ("What a session is", _CREDENTIALS, "200", described, ("400", "401", "422")),
        "health": ("Whether a session is open", _CREDENTIALS, "200", {"ok": {"type": "boolean"}}, ("401", "422")),
    }
    paths: dict[str, Any] = {}
    for name, (summary, body, status, properties, failures) in routes.items():
        responses = {status: _response(summary, {"type": "object", "properties": properties})}
        responses |= {each: _response(errors[each], _ERROR) for each in (*failures, "413")}
        paths[f"{prefix}/{name}"] = {
            "post": {
                "operationId": f"session_{name}",
                "summary": summary,
                "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
                "responses": responses,
            }
        }
    paths[f"{prefix}/load"] = {
        "get": {
            "operationId": "session_load",
            "summary": "Load, sessions and free slots of every worker",
            "responses": {"200": _response("the figures", _OBJECT)},
        }
    }
    return {"openapi": "3.1.0", "info": {"title": "Worker sessions", "version": version}, "paths": paths}


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}

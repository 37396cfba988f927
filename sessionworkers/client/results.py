"""The dictionary that a request gives back."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from sessionworkers.client.transport import Answer


def result_of(answer: Answer, begun: float, items: AsyncIterator[Any] | None, auth_data: Any) -> dict[str, Any]:
    """The dictionary that `Session.request` returns."""
    ok = 200 <= answer.status < 300
    response: Any = items
    if items is None:
        response = _body(answer)
        if not ok and not isinstance(response, (dict, list)):
            response = {"error": answer.text}
    return {
        "response": response,
        "ok": ok,
        "status": answer.status,
        "text": answer.text,
        "content_type": answer.content_type,
        "latency": time.monotonic() - begun,
        "url": answer.url,
        "auth_data": auth_data,
    }


def _body(answer: Answer) -> Any:
    kind = answer.content_type
    if kind.startswith(("image/", "audio/", "video/")) or kind == "application/octet-stream":
        return answer.body
    try:
        return json.loads(answer.body) if answer.body else None
    except ValueError:
        return answer.text

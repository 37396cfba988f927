"""NeMo Gym's own server classes, unmodified, as ASGI apps: what ``run_webserver()`` returns in a uvicorn worker.

No head server, Ray or model is started. The ports in the configuration are never contacted.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any


def _entry(implementation: str, **extra: Any) -> dict[str, Any]:
    return {"resources_servers": {implementation: {"entrypoint": "app.py", "host": "127.0.0.1", "port": 1, **extra}}}


CONFIG = {
    "head_server": {"host": "127.0.0.1", "port": 2},
    "dry_run": False,
    "counter": _entry("example_session_state_mgmt", domain="agent", expose_tools_over_mcp=True),
    "typed": _entry("example_single_tool_call", domain="agent"),
}


def build(name: str, server_class: str) -> Any:
    """The app of ``server_class`` ("module:Class") configured as ``name``."""
    os.environ["NEMO_GYM_CONFIG_DICT"] = json.dumps(CONFIG)
    os.environ["NEMO_GYM_CONFIG_PATH"] = name
    os.environ["IS_NEMO_GYM_FASTAPI_WORKER"] = "1"  # run_webserver() returns the app and starts no uvicorn
    os.environ["IS_NEMO_GYM_FASTAPI_ENTRYPOINT"] = "none"
    module, _, attribute = server_class.partition(":")
    server = getattr(importlib.import_module(module), attribute)
    if server.ray_enabled is None:
        server.ray_enabled = False
    return server.run_webserver()

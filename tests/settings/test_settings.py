"""Settings: where they come from, in which order, and how problems are told."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from sessionworkers.errors import ConfigError
from sessionworkers.settings import Settings, option_of, settings_from_json, settings_table
from sessionworkers.settings.table import BEGIN, END, renewed
from tests.harness import ROOT

DEFAULTS = Settings()


def load(
    tmp_path: pathlib.Path,
    overrides: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    toml: str | None = None,
    pyproject: str | None = None,
) -> Settings:
    if toml is not None:
        (tmp_path / "sessionworkers.toml").write_text(toml)
    if pyproject is not None:
        (tmp_path / "pyproject.toml").write_text(pyproject)
    return Settings.load(overrides or {}, cwd=str(tmp_path), environ=environ or {})


def problems(tmp_path: pathlib.Path, *args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, *args, **kwargs)
    assert caught.value.exit_code == 2
    return list(caught.value.problems)


def test_defaults_need_no_source(tmp_path: pathlib.Path) -> None:
    assert load(tmp_path) == DEFAULTS
    assert (DEFAULTS.auto, DEFAULTS.retry_window, DEFAULTS.max_body) == (True, 300.0, 64 * 2**20)


def test_a_plain_construction_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONWORKERS_AUTO", "false")
    monkeypatch.setenv("RETRY_WINDOW", "1")
    assert Settings() == DEFAULTS


def test_command_line_before_environment_before_toml_before_default(tmp_path: pathlib.Path) -> None:
    toml = "retry-window = 1\nsession_idle = 1\nreturn-window = 1\n"
    environ = {"SESSIONWORKERS_RETRY_WINDOW": "2", "SESSIONWORKERS_SESSION_IDLE": "2"}
    settings = load(tmp_path, {"retry_window": "3"}, environ, toml)
    found = (settings.retry_window, settings.session_idle, settings.return_window, settings.hop_connect_timeout)
    assert found == (3.0, 2.0, 1.0, 2.0)


def test_pyproject_is_read_unless_there_is_a_file_of_our_own(tmp_path: pathlib.Path) -> None:
    pyproject = "[tool.other]\nx = 1\n[tool.sessionworkers]\nmax-claims = 5\n"
    assert load(tmp_path, pyproject=pyproject).max_claims == 5
    assert load(tmp_path, pyproject=pyproject, toml="").max_claims == DEFAULTS.max_claims


def test_a_pyproject_without_our_table_says_nothing(tmp_path: pathlib.Path) -> None:
    assert load(tmp_path, pyproject='[project]\nname = "x"\n') == DEFAULTS


@pytest.mark.parametrize(
    ("text", "value"),
    [("64MiB", 64 * 2**20), ("1.5 kB", 1500), ("10", 10), ("2GB", 2 * 10**9), ("3kib", 3072), (7, 7)],
)
def test_sizes(text: object, value: int, tmp_path: pathlib.Path) -> None:
    assert load(tmp_path, {"max_body": text}).max_body == value


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 TB", "1.5", "nan", "0", True, -3, [1]])
def test_what_is_no_size(text: object, tmp_path: pathlib.Path) -> None:
    (problem,) = problems(tmp_path, {"max_body": text})
    assert problem.startswith("--max-body is ") and "allowed: bytes, or a number with KiB" in problem


@pytest.mark.parametrize(("text", "value"), [("5m", 300.0), ("1.5", 1.5), ("250ms", 0.25), ("1 d", 86400.0), (3, 3.0)])
def test_durations(text: object, value: float, tmp_path: pathlib.Path) -> None:
    assert load(tmp_path, {"session_idle": text}).session_idle == value


@pytest.mark.parametrize("text", ["", "soon", "-1", "1w", "inf", "1e3", float("nan"), -1, False])
def test_what_is_no_duration(text: object, tmp_path: pathlib.Path) -> None:
    (problem,) = problems(tmp_path, {"session_idle": text})
    assert "allowed: seconds, or a number with ms, s, m, h or d" in problem


@pytest.mark.parametrize(
    ("name", "text", "items"),
    [
        ("session_id", "header:x-a cookie:b; query:c", ["header:x-a cookie:b", "query:c"]),
        ("session_id", "header:x-a\n\nquery:c\n", ["header:x-a", "query:c"]),
        ("session_id", ' ["header:x-a", "path:/a;b/{id}"]', ["header:x-a", "path:/a;b/{id}"]),
        ("preset", "mcp, gradio socketio", ["mcp", "gradio", "socketio"]),
        ("no_preset", "all", ["all"]),
        ("no_routing", "/health;/a,b", ["/health", "/a,b"]),
        ("session_secret", "a;b,c d\ne", ["a;b,c d", "e"]),
    ],
)
def test_lists_in_a_variable(name: str, text: str, items: list[str], tmp_path: pathlib.Path) -> None:
    assert getattr(load(tmp_path, environ={f"SESSIONWORKERS_{name.upper()}": text}), name) == items


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("no", False), ("on", True)])
def test_switches_in_a_variable(text: str, value: bool, tmp_path: pathlib.Path) -> None:
    assert load(tmp_path, environ={"SESSIONWORKERS_AUTO": text}).auto is value


def test_an_empty_variable_is_not_set(tmp_path: pathlib.Path) -> None:
    assert load(tmp_path, environ={"SESSIONWORKERS_MAX_BODY": "", "SESSIONWORKERS_AUTO": ""}) == DEFAULTS


def test_variables_that_kubernetes_makes_for_a_service_of_our_name_are_left_alone(tmp_path: pathlib.Path) -> None:
    environ = {
        "SESSIONWORKERS_SERVICE_HOST": "10.0.0.11",
        "SESSIONWORKERS_SERVICE_PORT": "80",
        "SESSIONWORKERS_SERVICE_PORT_HTTP": "80",
        "SESSIONWORKERS_PORT": "tcp://10.0.0.11:80",
        "SESSIONWORKERS_PORT_80_TCP": "tcp://10.0.0.11:80",
        "SESSIONWORKERS_PORT_80_TCP_ADDR": "10.0.0.11",
        "UNRELATED": "x",
    }
    assert load(tmp_path, environ=environ) == DEFAULTS


def test_every_problem_is_told_at_once_with_value_place_and_what_is_allowed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "sessionworkers.toml"
    found = problems(
        tmp_path,
        {"retry_window": "soon", "preset": ["mcp", "mpc"]},
        {"SESSIONWORKERS_AUTO": "perhaps", "SESSIONWORKERS_MAX_BODYS": "1", "SESSIONWORKERS_SESSION_IDLE": "1h"},
        'max-claims = -1\nretry-windows = 3\nno_routing = ["health"]\nsession_idle = "never"\n',
    )
    assert found == [
        "SESSIONWORKERS_MAX_BODYS in the environment is no setting, did you mean SESSIONWORKERS_MAX_BODY?",
        f"retry-windows in {path} is no setting, did you mean retry-window?",
        "--preset is 'mpc': no preset, did you mean mcp? (known: gradio, mcp, nemo-gym, nicegui, socketio, starlette); "
        "allowed: the name of a preset",
        "SESSIONWORKERS_AUTO in the environment is 'perhaps': not allowed (Input should be a valid boolean, unable to "
        "interpret input); allowed: true or false",
        f"no_routing in {path} is 'health': it does not begin with /; allowed: a path that begins with /, `{{id}}` or "
        "`*` for any one segment",
        "--retry-window is 'soon': not a duration; allowed: seconds, or a number with ms, s, m, h or d",
        f"max-claims in {path} is -1: not allowed (Input should be greater than or equal to 0); allowed: a whole "
        "number, 0 or more",
    ]


def test_a_secret_is_never_shown(tmp_path: pathlib.Path) -> None:
    (problem,) = problems(tmp_path, environ={"SESSIONWORKERS_SESSION_SECRET": '["geheim", ""]'})
    assert "SESSIONWORKERS_SESSION_SECRET in the environment is (a secret)" in problem and "geheim" not in problem
    settings = load(tmp_path, environ={"SESSIONWORKERS_SESSION_SECRET": "geheim"})
    assert "geheim" not in repr(settings) + str(settings)
    assert not option_of(Settings.model_fields["session_secret"]).cli


@pytest.mark.parametrize("rule", ["", "heder:x", "path:no-slash", "header:x idle=soon", "header:x nonsense=1"])
def test_rules_are_checked(rule: str, tmp_path: pathlib.Path) -> None:
    (problem,) = problems(tmp_path, {"session_id": [rule]})
    assert problem.startswith(f"--session-id is {rule!r}: ")


def test_rules_as_tables(tmp_path: pathlib.Path) -> None:
    settings = load(
        tmp_path,
        {"session_id": ["header:x-a"]},
        toml="""
        [[rules]]
        name = "jobs"
        session_id = ["path:/jobs/{id}", "json:job_id"]
        start = ["POST:/jobs", "PUT:/jobs"]
        late_start = "refuse"
        idle = 3600
        [[rules]]
        session_id = "query:sid"
        """,
    )
    assert settings.rule_texts() == [
        ("session-id-1", "header:x-a"),
        ("jobs", "path:/jobs/{id} json:job_id start=POST:/jobs start=PUT:/jobs late-start=refuse idle=3600"),
        ("rule-2", "query:sid"),
    ]


@pytest.mark.parametrize(
    ("toml", "part"),
    [
        ('[[rules]]\nname = "a"\n', "names no place of a session ID"),
        ('[[rules]]\nsession_id = "header:x"\nidel = 3\n', "idel= is no part of a rule"),
        ('[[rules]]\nsession_id = "header:x"\nidle = true\n', "idle must be a text"),
        ('[[rules]]\nsession_id = "header:x"\nname = 3\n', "name must be a text"),
        ('rules = ["header:x"]\n', "not allowed"),
        ('[[rules]]\nname="a"\nsession_id="header:x"\n' * 2, "two rules are named a"),
        ("preset = ['mcp']\nno_preset = ['mcp']\n", "preset mcp is both asked for and refused"),
        ("auto = true\nauto = false\n", "cannot be read"),
        ('[[tool.sessionworkers.rules]]\nname = "a"\n', "in this file the keys stand at the top level"),
        ("retry_window = 1\nretry-window = 2\n", "there twice, with - and with _"),
        ('session_id = 3\n', "not allowed"),
        ('affinity_cookie = "a b"\n', "not the name of a cookie"),
    ],
)  # fmt: skip
def test_problems_in_toml(toml: str, part: str, tmp_path: pathlib.Path) -> None:
    found = problems(tmp_path, toml=toml)
    assert len(found) == 1 and part in found[0]


def test_a_pyproject_whose_table_is_none(tmp_path: pathlib.Path) -> None:
    (problem,) = problems(tmp_path, pyproject="[tool]\nsessionworkers = 3\n")
    assert problem == f"tool.sessionworkers in {tmp_path}/pyproject.toml is not a table"


def test_an_unknown_override_is_a_problem(tmp_path: pathlib.Path) -> None:
    assert problems(tmp_path, {"retry_windo": 1}) == ["--retry-windo is no setting, did you mean --retry-window?"]


def test_the_runtime_directory_is_made_absolute(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert load(tmp_path, {"runtime_dir": "run"}).runtime_dir == str(tmp_path / "run")
    assert load(tmp_path, {"runtime_dir": "~/run"}).runtime_dir == "/home/someone/run"


def test_json_there_and_back_and_from_another_release(tmp_path: pathlib.Path) -> None:
    settings = load(tmp_path, {"session_id": ["header:x"], "session_secret": ["s"], "retry_window": "5m"})
    assert Settings.from_json(settings.to_json()) == settings
    assert Settings.from_json('{"retry_window": 7, "of the next release": [1]}').retry_window == 7.0


def test_a_worker_reads_what_it_is_handed_without_pydantic() -> None:
    settings = Settings(session_id=["header:x"], rules=[{"session_id": ["query:y"], "idle": 3}], max_body="1MiB")
    code = (
        "import sys; from sessionworkers.settings import settings_from_json; s = settings_from_json(sys.argv[1]);"
        "print(s.max_body, s.rule_texts(), s.retry_window, 'pydantic' in sys.modules)"
    )
    given = json.dumps(
        {name: value for name, value in json.loads(settings.to_json()).items() if name != "retry_window"}
    )
    for text, loaded in ((settings.to_json(), False), (given, True)):  # the second lacks a setting: its default
        result = subprocess.run([sys.executable, "-c", code, text], capture_output=True, text=True, cwd=ROOT)
        assert result.stdout == f"{2**20} {settings.rule_texts()} 300.0 {loaded}\n", result.stderr
    assert not hasattr(settings_from_json("{}"), "nonsense")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError):
        DEFAULTS.auto = False


def test_every_setting_is_in_the_table() -> None:
    table = settings_table()
    for name, field in Settings.model_fields.items():
        assert f"`SESSIONWORKERS_{name.upper()}`" in table
        assert field.description
    assert "geheim" not in table and "| `--max-body SIZE` " in table and "| 64MiB |" in table
    assert {line.count("|") - line.count("\\|") for line in table.splitlines() if line.startswith("|")} == {6}


def test_the_table_is_put_between_its_markers() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert renewed(text) == f"before\n{BEGIN}\n{settings_table()}{END}\nafter\n"
    assert renewed(renewed(text)) == renewed(text)
    with pytest.raises(ValueError):
        renewed("no markers")


def test_the_readme_shows_the_settings_as_they_are() -> None:
    readme = ROOT / "README.md"
    if not readme.exists() or BEGIN not in readme.read_text():
        pytest.skip("no settings table in README.md yet")
    text = readme.read_text()
    assert text == renewed(text), "run: python -m sessionworkers.settings.table README.md"


def test_nothing_else_reads_the_environment() -> None:
    """Only settings read variables; what else looks at the environment at all is listed here, with its reason."""
    allowed = {
        "settings/model.py": "reads it",
        "manager/process.py": "hands it to a worker as it is",
        "manager/sockets.py": "tells the app the loopback port",
    }
    found = set()
    for path in (ROOT / "sessionworkers").rglob("*.py"):
        text = path.read_text()
        if "os.environ" in text or "os.getenv" in text or "getenv(" in text:
            found.add(str(path.relative_to(ROOT / "sessionworkers")))
    assert {name for name in found if name.split(os.sep)[0] in ("settings", "manager", "cli")} == set(allowed)

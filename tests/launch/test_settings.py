"""One settings model gives flags, environment, file and docs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import sysconfig
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, get_args

import pytest
from localhost_certificate import TEST_CERTIFICATE, TEST_KEY

from constrained.engines.auto import BUILT_IN_BACKENDS
from constrained.preparation import Limits
from constrained.spec import GrammarBackendName
from model_runner.attention import registry
from model_runner.config import AttentionBackendName
from server.cli import main
from server.cli.arguments import settings
from server.cli.docs import with_current_tables
from server.cli.errors import UsageError
from server.cli.load_settings import load_settings, unknown_variables
from server.config import HttpConfig
from server.models.assets import ModelAssets
from server.settings import ServeSettings

SCANSION = Path(sysconfig.get_path("scripts")) / "scansion"
ROOT = Path(__file__).parents[2]

# Made for these tests and used nowhere else. The first is TEST_KEY, and its password is "secret".
ENCRYPTED_KEY = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgFvVGVZBbg8AICA+gw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEPnvGdKG/OuxxczAYo8d2ygEgZDi
qYmmrPw6/cnSUSwHPtB3Ggwj3NF8OLa6u0cCxqCFTprHPUZtWXYEWjzoeS+NcvYK
Hs7UToka8yJYney58PuiP1X0i0+aPAyvfsJB6xb/EXjBitxIEAUIWNzvGl/NGi0h
AjbteRSQUtgQEGqv7y1425Ymt3p92UZBb5Llov/OxIR1mAcBWU5Jgchw4UGk6Dc=
-----END ENCRYPTED PRIVATE KEY-----
"""
OTHER_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg0i6Y3ok4AwVKYU3u
wUgmHn1fFt4c5CjS6HgY0vvS/FahRANCAASKdT+IIduKzjnGXdc3+jom+x2+grng
Q9Sp4BZGUIm2kq92jL7ud9JjwPDsmArAI9mK2HpdACg7LA87ezRPob44
-----END PRIVATE KEY-----
"""


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in settings():
        monkeypatch.delenv(setting.environment_variable, raising=False)


def yaml_file(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = yaml_file(tmp_path, "port: 1\nhost: file\nmax-running-requests: 3\n")
    monkeypatch.setenv("SCANSION_PORT", "2")
    monkeypatch.setenv("SCANSION_HOST", "environment")
    loaded = load_settings({"port": "4"}, path)
    assert (loaded.port, loaded.host, loaded.max_running_requests) == (4, "environment", 3)
    assert loaded.max_queued_requests == ServeSettings().max_queued_requests


def test_several_values_come_from_flags_commas_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({"api_key": ["a", "b"]}, None).api_key == ("a", "b")
    assert load_settings({}, yaml_file(tmp_path, "api_key: [c, d]")).api_key == ("c", "d")
    monkeypatch.setenv("SCANSION_API_KEY", "e, f")
    assert load_settings({}, None).api_key == ("e", "f")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 3", "there is no setting 'prot'; did you mean port?"),
        ("tensor-parallel-size: 2", "there is no setting 'tensor-parallel-size'; did you mean tp?"),
        ("port: many", "port (--port): must be a whole number, got 'many'"),
        ("http_workers: 0", "http_workers (--http-workers): must be at least 1, got 0"),
        ("dtype: int3", "dtype (--dtype): must be 'auto', 'bfloat16', 'float16' or 'float32', got 'int3'"),
        ("- port", "must hold settings as `name: value` lines"),
        ("port: [", "line 1, column"),
        ("ssl_keyfile: /nowhere", "there is no file '/nowhere'"),
        ("grammar_disk_cache: /dev/null", "'/dev/null' is no folder"),
        ("grammar_backend: foo", "--grammar-backend: there is no 'foo'; there are auto, xgrammar, llguidance"),
        ("grammar_plugins: [no_such_module.here]", "there is no module 'no_such_module.here'"),
        ("attention_backend: foo", "must be 'auto' or 'torch', got 'foo'"),
        ("api_key: 123", "api_key (--api-key): must be a string: put it in quotes"),
        ("api_key: [abc, 123]", "api_key (--api-key): must be a string: put it in quotes"),
        ("model: 2024-01-01", "model (--model): must be a string: put it in quotes, got"),
        ("served_model_name: {a: b}", "must be a string, got {'a': 'b'}"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings({}, yaml_file(tmp_path, text))
    assert said in str(caught.value)


def test_a_password_without_a_key_is_refused() -> None:
    with pytest.raises(UsageError, match="--ssl-keyfile-password needs --ssl-certfile"):
        load_settings({"ssl_keyfile_password": "x"}, None)


def test_every_mistake_is_named_with_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANSION_DEVICE", "gpu")
    with pytest.raises(UsageError) as caught:
        load_settings({"memory_fraction": "2", "ssl_keyfile_password": "x"}, None)
    lines = str(caught.value).splitlines()
    assert any(line.startswith("SCANSION_DEVICE (--device): must be auto, cpu, cuda or cuda:N") for line in lines)
    assert any(line.startswith("--memory-fraction: must be at most 1") for line in lines)


@pytest.mark.parametrize(
    "given",
    [{"tool_call_parser": "foo"}, {"reasoning_parser": "foo"}, {"ssl_certfile": "foo"}, {"grammar_plugins": ["foo"]}],
)
def test_a_message_that_quotes_the_value_is_not_followed_by_it(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"there is no .*'foo'") as caught:
        load_settings(given, None)
    assert str(caught.value).count("foo") == 1


def test_a_secret_is_neither_echoed_nor_in_the_repr() -> None:
    with pytest.raises(UsageError) as caught:
        load_settings({"api_key": ["hush", " "]}, None)
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(ServeSettings(api_key=("hush",)))


def test_an_unknown_variable_is_a_warning_with_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANSION_PROT", "3")
    assert "the environment variable SCANSION_PROT sets nothing; did you mean SCANSION_PORT?" in unknown_variables()


def derived(values: ServeSettings) -> tuple[Any, ...]:
    assets = ModelAssets(
        name="m", weights_path=Path("w"), tokenizer_json=Path("t"), chat_template=None, bos_token=None,
        eos_token=None, eos_token_ids=(), add_bos=False, context_length=8,
    )  # fmt: skip
    configs = (
        values.scheduler_config("ipc://x"),
        values.runner_config(assets),
        values.grammar_config(),
        values.http_config(("ipc://x",), metrics_directory=None),
    )
    return tuple(dataclasses.astuple(config) for config in configs)


@pytest.mark.parametrize(
    ("certificate", "key", "password", "said"),
    [
        (TEST_CERTIFICATE, OTHER_KEY, None, "--ssl-keyfile does not belong to the certificate in --ssl-certfile"),
        ("x", TEST_KEY, None, "--ssl-certfile: there is no PEM certificate in "),
        ("", TEST_KEY, None, "--ssl-certfile: there is no PEM certificate in "),
        (TEST_CERTIFICATE, "x", None, "--ssl-keyfile: "),
        (TEST_CERTIFICATE, ENCRYPTED_KEY, None, "--ssl-keyfile is encrypted: give --ssl-keyfile-password"),
        (TEST_CERTIFICATE, ENCRYPTED_KEY, "wrong", "--ssl-keyfile cannot be decrypted with --ssl-keyfile-password"),
        (TEST_CERTIFICATE, ENCRYPTED_KEY, "secret", None),
    ],
)
def test_a_certificate_and_key_that_cannot_serve_are_told_before_anything_starts(
    tmp_path: Path, certificate: str, key: str, password: str | None, said: str | None
) -> None:
    given = {"ssl_certfile": str(tmp_path / "certificate.pem"), "ssl_keyfile": str(tmp_path / "key.pem")}
    (tmp_path / "certificate.pem").write_text(certificate)
    (tmp_path / "key.pem").write_text(key)
    if password is not None:
        given["ssl_keyfile_password"] = password
    if said is None:
        load_settings(given, None)
        return
    with pytest.raises(UsageError, match=said):
        load_settings(given, None)


# Used by the launcher itself, not handed to a process.
_LAUNCHER = {"model", "revision", "tokenizer", "chat_template", "host", "port", "http_workers", "draft_model"}
# What becomes of these is in test_placement.py.
_LAUNCHER |= {"tp", "dp", "nnodes", "node_rank", "dist_init_addr", "start_timeout", "check_plans"}


@pytest.mark.parametrize("setting", [s for s in settings() if s.name not in _LAUNCHER], ids=lambda s: s.name)
def test_every_setting_reaches_a_process(setting: Any, tmp_path: Path) -> None:
    tls = {name: tmp_path / f"{name}.pem" for name in ("ssl_certfile", "ssl_keyfile")}
    tls["ssl_certfile"].write_text(TEST_CERTIFICATE)
    tls["ssl_keyfile"].write_text(TEST_KEY)
    value: Any
    if setting.name in tls:
        assert derived(ServeSettings(**tls))[3] != derived(ServeSettings())[3]
        return
    if setting.name == "ssl_keyfile_password":
        assert derived(ServeSettings(**tls, ssl_keyfile_password="x"))[3] != derived(ServeSettings(**tls))[3]
        return
    if setting.is_boolean:
        value = not setting.default
    elif setting.choices:
        value = next(choice for choice in setting.choices if choice != setting.default)
    elif setting.name in ("device", "grammar_backend", "grammar_plugins"):
        value = {"device": "cuda:7", "grammar_backend": "xgrammar", "grammar_plugins": ("json",)}[setting.name]
    elif setting.is_repeated:
        value = ("other",)
    elif setting.name.endswith("_parser"):
        value = {"tool_call_parser": "json", "reasoning_parser": "think"}[setting.name]
    elif isinstance(setting.default, float):
        value = setting.default * 0.5
    elif isinstance(setting.default, int):
        value = setting.default + 1
    else:
        value = 777 if "TOKENS" in (setting.metavar or "") or setting.metavar == "N" else "other"
    assert derived(ServeSettings(**{setting.name: value})) != derived(ServeSettings())


@pytest.mark.parametrize(
    "given", [{"draft_model": "x"}, {"speculative": "draft-model"}, {"speculative": "ngram", "draft_model": "x"}]
)
def test_a_draft_model_and_its_use_are_given_together(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--draft-model must be given together"):
        load_settings(given, None)


@pytest.mark.parametrize("name", ["tool_call_parser", "reasoning_parser", "grammar_backend"])
def test_an_unknown_parser_or_backend_is_named_with_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match=rf"--{name.replace('_', '-')}: .*'foo'") as caught:
        load_settings({name: "foo"}, None)
    known = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3", "grammar_backend": "xgrammar"}[name]
    assert known in str(caught.value)


def test_on_and_off_may_be_written_as_yaml_reads_them(tmp_path: Path) -> None:
    for name in ("jump-forward", "speculative", "reasoning-parser"):
        assert getattr(load_settings({}, yaml_file(tmp_path, f"{name}: off")), name.replace("-", "_")) == "off"
    assert load_settings({}, yaml_file(tmp_path, "docs: off")).docs is False
    assert load_settings({}, yaml_file(tmp_path, "docs: false")).docs is False
    assert load_settings({"jump_forward": "on"}, None).jump_forward == "on"


def test_a_plugin_may_name_the_grammar_backend() -> None:
    assert load_settings({"grammar_backend": "mine", "grammar_plugins": "json"}, None).grammar_backend == "mine"


def test_the_names_that_are_checked_before_anything_loads_are_those_that_exist() -> None:
    assert set(get_args(AttentionBackendName)) == {"auto", *registry._BACKENDS}
    assert set(get_args(GrammarBackendName)) == {"auto", "none", *BUILT_IN_BACKENDS}


def test_the_table_in_the_docs_is_current() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert with_current_tables(text) == text, "run `make docs`"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--prot", "3"], "unknown argument --prot; did you mean --port?"),
        (["serve", "--max-model-len", "9"], "unknown argument --max-model-len; did you mean --context-length?"),
        (["serve", "--nonsense"], "unknown argument --nonsense\n"),
        (["serve", "owner/name"], "unknown argument owner/name; did you mean --model owner/name?"),
        (["serve", "--port", "x"], "--port: must be a whole number, got 'x'"),
        (["serve", "--config", "/nowhere.yaml"], "--config: /nowhere.yaml cannot be read"),
        (["sevre"], "invalid choice: 'sevre'"),
    ],
)
def test_a_usage_mistake_exits_with_2_and_without_a_traceback(arguments: list[str], said: str) -> None:
    result = subprocess.run([SCANSION, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_during_the_imports_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(MetaPathFinder):
        def find_spec(self, *_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "server.cli.command", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


@pytest.mark.parametrize("columns", ["80", "120"])
def test_help_fits_the_terminal_and_names_every_setting(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = subprocess.run([SCANSION, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    assert max(map(len, text.splitlines())) <= int(columns)
    for setting in settings():
        assert setting.flag.removeprefix("--") in text


def test_help_lists_the_commands() -> None:
    text = subprocess.run([SCANSION, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(f"\n    {command} " in text for command in ("serve", "bench", "models", "grammar"))


@pytest.mark.parametrize(
    ("queued", "running", "copies", "most"), [(16, 24, 1, 40), (16, 24, 2, 80), (0, 1, 1, 1), (1024, 64, 1, 256)]
)
def test_a_request_has_no_more_prompts_than_can_ever_wait_or_run(
    queued: int, running: int, copies: int, most: int
) -> None:
    settings = ServeSettings(max_queued_requests=queued, max_running_requests=running)
    assert settings.http_config(("ipc://s",) * copies, metrics_directory=None).max_prompts == most


def test_one_number_bounds_a_constraint_wherever_it_is_checked() -> None:
    settings = ServeSettings(max_constraint_bytes=3_000_000)
    assert settings.grammar_config().max_spec_bytes == 3_000_000
    assert settings.http_config(("ipc://s",), metrics_directory=None).max_constraint_bytes == 3_000_000
    default = ServeSettings()
    assert default.grammar_config().max_spec_bytes == HttpConfig.max_constraint_bytes == Limits().max_bytes

"""Settings: four sources in order, exact types, and an error that names the nearest key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.config import STANDARD_OTLP, ProcessSettings, load, setting
from shared.errors import StartupError


@dataclass(frozen=True, slots=True, kw_only=True)
class Example(ProcessSettings):
    queue_limit: int = setting(1024, "waiting requests")
    share: float = setting(0.5, "a share")
    strict: bool = setting(False, "refuse more")
    serve: tuple[str, ...] = setting(("public", "admin"), "listeners")
    keys_file: str | None = setting(None, "keys")
    route: str = setting("auto", "route", choices=("auto", "colocated"))


def _load(
    *argv: str, environ: dict[str, str] | None = None, file: str = "", tmp: Path | None = None
) -> Example:
    if tmp is not None:
        (tmp / "baton.toml").write_text(file)
        argv = ("--config", str(tmp / "baton.toml"), *argv)
    return load(Example, "gateway", argv, environ or {})


def test_defaults() -> None:
    found = _load()
    assert (found.queue_limit, found.worker_id, found.heartbeat_s) == (1024, "gateway-0", 1.0)
    assert found.serve == ("public", "admin")
    assert found.keys_file is None


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = "heartbeat_s = 2\n[gateway]\nqueue_limit = 2\nshare = 0.2\n[decode]\nanything = 1\n"
    environ = {"BATON_GATEWAY_QUEUE_LIMIT": "3", "BATON_GATEWAY_STRICT": "true"}
    found = _load("--queue-limit", "4", environ=environ, file=file, tmp=tmp_path)
    assert (found.queue_limit, found.share, found.strict, found.heartbeat_s) == (4, 0.2, True, 2.0)
    assert _load(environ=environ, file=file, tmp=tmp_path).queue_limit == 3
    assert _load(file=file, tmp=tmp_path).queue_limit == 2


def test_a_service_may_overrule_a_shared_setting_in_its_table(tmp_path: Path) -> None:
    found = _load(file='log_level = "error"\n[gateway]\nlog_level = "debug"\n', tmp=tmp_path)
    assert found.log_level == "debug"


def test_shared_settings_have_no_service_in_their_variable() -> None:
    assert _load(environ={"BATON_NATS_URL": "nats://h:1"}).nats_url == "nats://h:1"


def test_every_kind_of_value_has_a_flag() -> None:
    found = _load(
        "--share=0.25", "--strict", "--serve", "traces, admin", "--keys-file", "k", "--route=auto"
    )
    assert (found.share, found.strict, found.serve) == (0.25, True, ("traces", "admin"))
    assert (found.keys_file, found.route) == ("k", "auto")
    assert _load("--no-strict").strict is False
    assert _load("--keys-file", "").keys_file is None


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--queue-limits", "1"), "did you mean --queue-limit?"),
        (("--queue-limit", "many"), "queue_limit: must be a whole number"),
        (("--queue-limit", "1.5"), "must be a whole number"),
        (("--share", "nan"), "must be a finite number"),
        (("--strict", "perhaps"), "must be true or false"),
        (("--route", "carrier-pigeon"), "must be one of auto, colocated"),
        (("--queue-limit",), "expected one argument"),
        (("surplus",), "surplus is not a flag"),
        (("--config", "/nowhere.toml"), "cannot read settings file"),
        (("--lease-s", "1.5"), "lease_s must be at least two heartbeat_s"),
        (("--heartbeat-s", "0"), "heartbeat_s must be above 0"),
        (("--nats-url", "nats://me:secret@host"), "use nats_credentials_file"),
        (("--worker-id", "a.b"), "worker_id"),
        (("--worker-id", "*"), "worker_id"),
        (("--probe-port", "70000"), "probe_port must be 0..65535"),
    ],
)
def test_wrong_flags_are_one_clear_line(argv: tuple[str, ...], words: str) -> None:
    with pytest.raises(StartupError) as caught:
        _load(*argv)
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("BATON_GATEWAY_QUEUE_LIMITS", "did you mean BATON_GATEWAY_QUEUE_LIMIT?"),
        ("BATON_NATS_URI", "did you mean BATON_NATS_URL?"),
        ("BATON_GATEWAY_ZZZ", "is not a setting"),
    ],
)
def test_misspelt_variables_are_caught(variable: str, words: str) -> None:
    with pytest.raises(StartupError) as caught:
        _load(environ={variable: "1"})
    assert words in caught.value.message


def test_variables_of_other_services_and_tools_are_left_alone() -> None:
    _load(environ={"BATON_DECODE_STEP_TOKENS": "1", "BATON_TEST_MODEL": "x", "PATH": "/bin"})


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("[gatway]\nqueue_limit = 1\n", "did you mean gateway?"),
        ("[gateway]\nqueue_limits = 1\n", "did you mean queue_limit?"),
        ("queue_limit = 1\n", "queue_limit is not a setting"),
        ('[gateway]\nqueue_limit = "1"\n', "must be of type int"),
        ("[gateway]\nqueue_limit = true\n", "must be of type int"),
        ("[gateway]\nshare = inf\n", "must be of type float"),
        ('[gateway]\nserve = "public"\n', "must be a list of texts"),
        ("[gateway]\nserve = [1]\n", "must be a list of texts"),
        ("gateway = [\n", "cannot read settings file"),
        ("gateway = 1\n", "gateway is not a setting"),
    ],
)
def test_wrong_files_are_one_clear_line(tmp_path: Path, file: str, words: str) -> None:
    with pytest.raises(StartupError) as caught:
        _load(file=file, tmp=tmp_path)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_standard_variables_choose_the_collector() -> None:
    variable = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert _load(environ=variable).otlp_endpoint == STANDARD_OTLP
    assert str(_load().otlp_endpoint).endswith(":4318/v1/traces")
    assert _load("--otlp-endpoint", "").otlp_endpoint is None
    both = f"{STANDARD_OTLP},http://127.0.0.1:4318/v1/traces"
    assert _load("--otlp-both", environ=variable).otlp_endpoint == both
    assert _load(environ=variable | {"BATON_OTLP_BOTH": "true"}).otlp_endpoint == both
    nowhere = variable | {"BATON_OTLP_BOTH": "true", "BATON_OTLP_ENDPOINT": ""}
    assert _load(environ=nowhere).otlp_endpoint == STANDARD_OTLP


def test_print_config_names_each_source(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _load("--print-config", "--queue-limit", "7", environ={"BATON_LOG_LEVEL": "debug"})
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "queue_limit = 7  # flag\n" in printed
    assert "log_level = 'debug'  # environment\n" in printed
    assert "lease_s = 30.0  # default\n" in printed


def test_help_lists_each_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _load("--help")
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "--queue-limit" in printed
    assert "[1024]" in printed
    assert "--nats-credentials-file" in printed

"""API keys, request ids, CORS, log lines, metrics, and the endpoints around generation."""

from __future__ import annotations

import json
import logging
import re

import pytest

from server.http.access_log import _JsonFormatter, _TextFormatter

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello world"}]


@pytest.fixture(scope="module")
def guarded(start_server):
    """A server with two API keys and one allowed origin."""
    with start_server(api_keys=("first-key", "zweiter-schlüssel"), cors_origins=("https://a.example",)) as server:
        yield server


ROUTES = [
    ("GET", "/"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply_template"),
    ("POST", "/parse_tool_calls"),
    ("POST", "/separate_reasoning"),
    ("GET", "/version"),
    ("GET", "/server_info"),
    ("GET", "/metrics"),
    ("POST", "/flush_cache"),
    ("POST", "/abort_request"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_but_health_asks_for_a_key(guarded, method, path):
    with guarded.client() as client:
        answer = client.request(method, path)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
        for key in ("first-key", "zweiter-schlüssel"):
            headers = {"Authorization": f"Bearer {key}".encode()}
            assert client.request(method, path, headers=headers).status_code != 401


def test_no_route_is_left_out_of_the_key_test(guarded):
    schema = guarded.get("/openapi.json", headers={"Authorization": "Bearer first-key"}).json()
    documented = {path.replace("{model_id}", "tiny") for path in schema["paths"]}
    assert documented - {path for _, path in ROUTES} == {"/health"}


def test_health_asks_for_no_key(guarded):
    assert guarded.get("/health").status_code == 200


def test_health_may_be_asked_for_its_head(shared_server):
    with shared_server.client() as client:
        answer = client.head("/health")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer wrong", "first-key", "Basic first-key", "Bearer first-key x", "Bearer first-ke"],
)
def test_a_wrong_key_is_a_401(guarded, header):
    assert guarded.get("/v1/models", headers={"Authorization": header}).status_code == 401


def test_cors_lets_the_named_origin_in_and_no_other(guarded):
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with guarded.client() as client:
        assert client.options(CHAT, headers=preflight).headers["access-control-allow-origin"] == "https://a.example"
        refusal = client.options(CHAT, headers={**preflight, "Origin": "https://b.example"})
        assert refusal.status_code == 400
        assert refusal.json()["error"]["code"] == "cors_refused"
        assert "origin" in refusal.json()["error"]["message"]
        assert "access-control-allow-origin" not in refusal.headers
        refused = client.get("/v1/models", headers={"Origin": "https://a.example"})
        assert refused.headers["access-control-allow-origin"] == "https://a.example"


@pytest.mark.parametrize("given", ["abc-123", "a.b:c_d", "x" * 128])
def test_a_sane_request_id_is_echoed(shared_server, given):
    assert shared_server.get("/health", headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a;b", '"', "é".encode()])
def test_any_other_request_id_is_replaced(shared_server, given):
    answer = shared_server.get("/health", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"].startswith("req_")


def test_errors_carry_the_request_id(shared_server):
    assert shared_server.post(CHAT, {}, headers={"X-Request-Id": "e1"}).headers["x-request-id"] == "e1"


def test_probes_are_logged_only_when_they_answer_something_unusual(make_server, caplog):
    server = make_server(scheduler_runs=False)
    with caplog.at_level(logging.DEBUG, logger="scansion.access"):
        assert server.get("/health").status_code == 503
        assert server.get("/metrics").status_code == 200
        assert server.post("/health").status_code == 405
        assert server.get("/version").status_code == 200
    lines = [record for record in caplog.records if record.name == "scansion.access"]
    assert [(line.fields["path"], line.fields["status"], line.levelname) for line in lines] == [
        ("/health", 503, "DEBUG"),
        ("/metrics", 200, "DEBUG"),
        ("/health", 405, "INFO"),
        ("/version", 200, "INFO"),
    ]


def test_each_request_is_one_log_line(shared_server, caplog):
    with caplog.at_level(logging.INFO, logger="scansion.access"):
        shared_server.post(
            CHAT, {"messages": MESSAGES, "max_tokens": 4, "stream": True}, headers={"X-Request-Id": "r7"}
        )
        shared_server.post(CHAT, {"messages": []}, headers={"X-Request-Id": "r8"})
    lines = {record.fields["request_id"]: record.fields for record in caplog.records}
    assert lines["r7"]["status"] == 200
    assert lines["r7"]["completion_tokens"] == 4
    assert lines["r7"]["prompt_tokens"] > 0
    assert 0 <= lines["r7"]["ttft_ms"] <= lines["r7"]["duration_ms"]
    assert lines["r8"]["status"] == 400
    assert "messages" in lines["r8"]["error"]


def record_with(**fields):
    record = logging.LogRecord("scansion.access", logging.INFO, "", 0, "request", (), None)
    record.fields = fields
    return record


@pytest.mark.parametrize(
    "evil", ["/a\nscansion.access request status=200", "/a\x1b[2J", "/a\u2028b", '/a" status="200', "/a b=c"]
)
def test_no_path_can_forge_a_log_line(evil):
    line = _TextFormatter().format(record_with(path=evil, status=404))
    assert line.isprintable()
    assert json.loads(line[line.index("path=") + 5 : line.rindex(" status=")]) == evil
    assert json.loads(_JsonFormatter().format(record_with(path=evil)))["path"] == evil


def test_metrics_count_requests_tokens_and_show_the_scheduler(server):
    server.post(CHAT, {"messages": MESSAGES, "max_tokens": 4, "stream": True})
    server.post(CHAT, {"messages": []})
    server.get("/a/path/made/up")
    text = server.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert all(name.startswith("scansion_") for name in lines)
    ok = 'scansion_requests_total{endpoint="/v1/chat/completions",method="POST",status="200"}'
    assert float(lines[ok]) == 1
    assert float(lines[ok.replace("200", "400")]) == 1
    assert float(lines['scansion_requests_total{endpoint="other",method="GET",status="404"}']) == 1
    assert float(lines["scansion_generated_tokens_total"]) == 4
    assert float(lines["scansion_time_to_first_token_seconds_count"]) == 1
    assert float(lines["scansion_inter_token_latency_seconds_count"]) == 3
    assert float(lines["scansion_kv_tokens_used"]) == 128
    assert float(lines["scansion_kv_usage_ratio"]) == 128 / 4096
    assert float(lines["scansion_prefix_cache_hit_ratio"]) == 0.25
    assert float(lines["scansion_grammar_compile_seconds_total"]) == 1.5
    assert float(lines["scansion_scheduler_up"]) == 1


def test_metrics_are_served_while_the_scheduler_is_gone(make_server):
    server = make_server(scheduler_runs=False)
    answer = server.get("/metrics")
    assert answer.status_code == 200
    assert "scansion_scheduler_up 0.0" in answer.text


def test_models_are_listed_and_found_by_every_served_name(make_server):
    server = make_server(served_model_names=("org/name", "alias"))
    with server.openai() as client:
        assert [model.id for model in client.models.list()] == ["org/name", "alias"]
        assert client.models.retrieve("org/name").created == 1700000000
    assert server.get("/v1/models/tiny").status_code == 404
    answer = server.post(CHAT, {"messages": MESSAGES, "max_tokens": 1, "model": "alias"})
    assert answer.json()["model"] == "alias"
    assert server.post(CHAT, {"messages": MESSAGES, "max_tokens": 1}).json()["model"] == "org/name"


def test_tokenize_and_detokenize_are_each_others_inverse(shared_server):
    text = "hello wörld <|im_end|> ☃"
    tokens = shared_server.post("/tokenize", {"prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert 2 in tokens["tokens"]
    assert shared_server.post("/detokenize", {"tokens": tokens["tokens"]}).json()["prompt"] == text
    skipped = shared_server.post("/detokenize", {"tokens": tokens["tokens"], "skip_special_tokens": True})
    assert skipped.json()["prompt"] == text.replace("<|im_end|>", "")


def test_tokenize_renders_messages(shared_server):
    tokens = shared_server.post("/tokenize", {"messages": MESSAGES, "return_token_strs": True}).json()
    assert "".join(tokens["token_strs"]) == "<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n"


def test_flush_version_info_and_index_answer(shared_server):
    assert shared_server.post("/flush_cache").json() == {"freed_tokens": 7}
    version = shared_server.get("/version").json()["version"]
    info = shared_server.get("/server_info").json()
    assert info["version"] == version
    assert info["scheduler"]["attention_backend"] == "fake"
    assert info["stats"]["kv_tokens_capacity"] == 4096
    page = shared_server.get("/").text
    assert all(path in page for path in shared_server.get("/openapi.json").json()["paths"])


def test_openapi_holds_the_request_models(shared_server):
    schema = shared_server.get("/openapi.json").json()
    body = schema["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    model = schema["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]
    assert {"messages", "temperature", "stream"} <= set(model["properties"])
    page = shared_server.get("/docs")
    assert page.status_code == 200
    # Every script and style comes from this server: it may have no way out.
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert sources
    assert [shared_server.get(source).status_code for source in sources] == [200] * len(sources)

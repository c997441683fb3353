"""Every setting of ``scansion serve``, once: flags, environment variables, the YAML file and the docs come from here.

Precedence: flag, then environment (``SCANSION_`` and the name in capitals), then ``--config`` file, then default.
"""

from __future__ import annotations

import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, JsonValue, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from constrained.config import GrammarConfig, JsonWhitespace, UndeclaredProperties
from constrained.spec import GrammarBackendName
from model_runner.config import AttentionBackendName, DtypeName, LoadFormat, RankConfig, RunnerConfig
from scheduler.config import SchedulePolicy, SchedulerConfig, Speculation
from server.config import HttpConfig, LogFormat, LogLevel
from server.formats.registry import tool_parser
from server.http.tls import check_tls
from server.models.assets import ModelAssets
from server.reasoning.formats import reasoning_format

ENVIRONMENT_PREFIX = "SCANSION_"

_HOST_AND_PORT = re.compile(r"(?:\[([0-9a-fA-F:.%a-z]+)\]|([^\[\]:\s]+)):([0-9]{1,5})")

OnOff = Literal["on", "off"]
Texts = Annotated[tuple[str, ...], NoDecode]
"""Several texts: a repeated flag, a YAML list, or a comma-separated environment variable."""


def _option(group: str, default: object, description: str, *, metavar: str | None = None, **constraints: Any) -> Any:
    """A field that knows its help group and how its value is called in the help."""
    extra: dict[str, JsonValue] = {"group": group, "metavar": metavar}
    return Field(default, description=description, json_schema_extra=extra, **constraints)


_model = partial(_option, "Model")
_server = partial(_option, "Server")
_limit = partial(_option, "Limits of a request")
_scheduling = partial(_option, "Scheduling")
_drafts = partial(_option, "Drafts")
_device = partial(_option, "Device and memory")
_ranks = partial(_option, "Several devices and machines")
_grammar = partial(_option, "Grammars")


class ServeSettings(BaseSettings):
    """Settings of ``scansion serve``."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, protected_namespaces=(), env_ignore_empty=True
    )

    model: str | None = _model(
        None,
        "A .gguf file, a folder of safetensors, or a Hugging Face id. Unset: SmolLM2-135M-Instruct, fetched once.",
        metavar="MODEL",
    )
    served_model_name: Texts = _model(
        (),
        "Model id that clients use; several may be given, the first is the one shown. Unset: taken from --model.",
        metavar="NAME",
    )
    revision: str | None = _model(None, "Branch, tag or commit of a Hugging Face id.", metavar="REVISION")
    tokenizer: str | None = _model(
        None, "Another folder or Hugging Face id to take tokenizer and chat template from.", metavar="FOLDER"
    )
    chat_template: str | None = _model(
        None, "A Jinja file, or the name of one of the model's own templates.", metavar="FILE"
    )
    tool_call_parser: str = _model(
        HttpConfig.tool_call_parser,
        "How the model writes tool calls: hermes, qwen3_coder, llama3_json, pythonic, harmony, json. auto: as its chat "
        "template says.",
        metavar="NAME",
    )
    reasoning_parser: str = _model(
        HttpConfig.reasoning_parser,
        "How the model marks its thinking: deepseek-r1, qwen3, gpt-oss, think; off leaves it in the text. auto: as its "
        "chat template says.",
        metavar="NAME",
    )
    load_format: LoadFormat = _model(
        RunnerConfig.load_format, "How weights are read. dummy: random ones, from config.json alone."
    )
    dtype: DtypeName = _model(
        RunnerConfig.dtype,
        "Type to compute in. auto: bfloat16, and float32 on a GPU without it. Only under float32 does an answer not "
        "depend on what else runs; it is slower.",
    )
    context_length: int | None = _model(
        None, "Most tokens of prompt and answer together. Unset: the model's own.", metavar="TOKENS", ge=1
    )
    seed: int = _model(RunnerConfig.seed, "Seed of the weights of --load-format dummy.", metavar="N")

    host: str = _server(
        "127.0.0.1",
        "Address to listen on. 0.0.0.0 is every interface: give --api-key with it.",
        metavar="ADDRESS",
        min_length=1,
    )
    port: int = _server(30000, "TCP port. 0 takes a free one and prints it.", metavar="PORT", ge=0, le=65535)
    http_workers: int = _server(1, "HTTP processes, all on the same port.", metavar="N", ge=1, le=64)
    api_key: Texts = _server(
        (),
        "Key that clients must send on every route but /health; several may be given. Flags can be read by other users "
        "of the machine: prefer SCANSION_API_KEY or the file.",
        metavar="KEY",
        repr=False,
    )
    ssl_certfile: Path | None = _server(None, "TLS certificate chain, PEM.", metavar="FILE")
    ssl_keyfile: Path | None = _server(None, "TLS private key, PEM.", metavar="FILE")
    ssl_keyfile_password: str | None = _server(None, "Password of the private key.", metavar="TEXT", repr=False)
    cors_origins: Texts = _server(
        HttpConfig.cors_origins,
        "Web origin that browsers may call from; several may be given, * is any.",
        metavar="ORIGIN",
    )
    root_path: str = _server(HttpConfig.root_path, "Path prefix that a reverse proxy strips.", metavar="PATH")
    docs: bool = _server(HttpConfig.docs, "Serve /docs and /openapi.json.")
    drain_timeout: float = _server(
        HttpConfig.drain_timeout, "How long running requests may go on after SIGTERM.", metavar="SECONDS", ge=0
    )
    scheduler_timeout: float = _server(
        HttpConfig.scheduler_timeout,
        "How long the scheduler may be silent, one step included, until waiting clients get an error and /health turns "
        "503; after four times that it is killed and started again.",
        metavar="SECONDS",
        gt=0,
    )
    log_level: LogLevel = _server(HttpConfig.log_level, "Least serious log line to print.")
    log_format: LogFormat = _server(HttpConfig.log_format, "Log lines for people or for machines.")
    access_log: bool = _server(HttpConfig.access_log, "Log one line a request.")

    max_body_bytes: int = _limit(HttpConfig.max_body_bytes, "Longest request body.", metavar="BYTES", ge=1024)
    max_choices: int = _limit(HttpConfig.max_choices, "Largest n.", metavar="N", ge=1)
    max_prompts: int = _limit(HttpConfig.max_prompts, "Most prompts of one completions request.", metavar="N", ge=1)
    max_tools: int = _limit(HttpConfig.max_tools, "Most tools of one request.", metavar="N", ge=0)
    max_stop_strings: int = _limit(HttpConfig.max_stop_strings, "Most stop strings.", metavar="N", ge=0)
    max_top_logprobs: int = _limit(HttpConfig.max_top_logprobs, "Most log-probabilities a token.", metavar="N", ge=0)
    request_timeout: float = _limit(
        HttpConfig.request_timeout, "Longest time from admission to the last token.", metavar="SECONDS", gt=0
    )

    max_running_requests: int = _scheduling(
        SchedulerConfig.max_running_requests, "Most choices that run at once.", metavar="N", ge=1
    )
    max_queued_requests: int = _scheduling(
        SchedulerConfig.max_queued_requests, "Most requests that wait; one more is answered 429.", metavar="N", ge=0
    )
    max_batch_tokens: int = _scheduling(
        SchedulerConfig.max_batch_tokens,
        "Token budget of one step; longer prompts are computed in chunks.",
        metavar="TOKENS",
        ge=1,
    )
    schedule_policy: SchedulePolicy = _scheduling(
        SchedulerConfig.policy, "Who runs first. lpm: the longest prefix match. fcfs: first come, first served."
    )
    prefix_cache: bool = _scheduling(SchedulerConfig.prefix_cache, "Reuse the computed beginnings of earlier prompts.")
    overlap: bool = _scheduling(SchedulerConfig.overlap, "Plan a step while its predecessor still runs on the device.")

    jump_forward: OnOff = _drafts(
        "on",
        "Propose what a grammar forces, many tokens in one step. Under --dtype float32 no answer "
        "changes; at other dtypes rounding may.",
    )
    speculative: Speculation = _drafts(
        SchedulerConfig.speculative,
        "Propose how an answer may go on. ngram: as the same words went on before in the request. draft-model: as "
        "--draft-model says. Under --dtype float32 no answer changes; at other dtypes rounding may.",
    )
    draft_model: str | None = _drafts(
        None,
        "A smaller model with the same tokenizer: a .gguf file, a folder of safetensors, or a Hugging Face id.",
        metavar="MODEL",
    )
    max_draft_tokens: int = _drafts(
        SchedulerConfig.max_draft_tokens,
        "Most tokens proposed for one choice in one step.",
        metavar="TOKENS",
        ge=1,
        le=64,
    )

    device: str = _device(
        RunnerConfig.device,
        "cpu, cuda, or cuda:N. auto: CUDA when there is one.",
        metavar="DEVICE",
    )
    attention_backend: AttentionBackendName = _device("auto", "Attention kernels. auto: the best for the device.")
    page_size: int = _device(
        RunnerConfig.page_size, "Tokens in a page of the KV cache.", metavar="TOKENS", ge=1, le=1024
    )
    kv_cache_tokens: int | None = _device(
        None, "Capacity of the KV cache. Unset: from the memory that is free.", metavar="TOKENS", ge=1
    )
    memory_fraction: float = _device(
        RunnerConfig.memory_fraction,
        "Share of the free memory that the KV cache may take.",
        metavar="SHARE",
        gt=0,
        le=1,
    )
    num_threads: int | None = _device(
        None,
        "CPU compute threads of a rank. Unset: one a core, shared among the ranks here. With other busy programs on "
        "the machine, 1 or one less than the cores can be much faster.",
        metavar="N",
        ge=1,
    )

    tp: int = _ranks(
        1, "Ranks that share one copy of the model (tensor parallel), one device each.", metavar="N", ge=1, le=1024
    )
    dp: int = _ranks(
        1,
        "Copies of the model (data parallel), --tp ranks each. A request goes to the copy that has its beginning "
        "cached or has less to do.",
        metavar="N",
        ge=1,
        le=1024,
    )
    nnodes: int = _ranks(1, "Machines that the ranks of each copy are spread over.", metavar="N", ge=1, le=1024)
    node_rank: int = _ranks(0, "Which of them this is; 0 has the HTTP port.", metavar="N", ge=0)
    dist_init_addr: str | None = _ranks(
        None,
        "Where ranks meet: an address of node 0, and a free port there (with --dp one more for each further copy). "
        "Anyone who can reach it can disturb the server. Unset, with one machine: a free port of 127.0.0.1.",
        metavar="HOST:PORT",
    )
    start_timeout: float = _ranks(
        RankConfig.start_timeout,
        "How long ranks wait for each other to start and load.",
        metavar="SECONDS",
        gt=0,
    )
    check_plans: bool = _ranks(
        RankConfig.checks_plans, "Compare each step's plan between ranks before it runs, to debug them."
    )

    grammar_backend: str = _grammar(
        GrammarConfig.backend,
        "Engine that enforces response formats: xgrammar, llguidance, outlines, or what --grammar-plugins register. "
        "auto: for each request one that can. none: no formats.",
        metavar="NAME",
    )
    grammar_timeout: float = _grammar(
        GrammarConfig.timeout, "Longest time to compile a grammar.", metavar="SECONDS", gt=0
    )
    grammar_workers: int = _grammar(
        GrammarConfig.compile_workers, "Warm processes that compile grammars.", metavar="N", ge=1, le=64
    )
    grammar_memory_bytes: int = _grammar(
        GrammarConfig.compile_memory_bytes, "Most memory one compile may take.", metavar="BYTES", ge=64 << 20
    )
    grammar_cache_bytes: int = _grammar(
        GrammarConfig.cache_bytes, "Memory for compiled grammars.", metavar="BYTES", ge=0
    )
    grammar_disk_cache: Path | None = _grammar(
        None, "Folder of compiled grammars that survive a restart.", metavar="FOLDER"
    )
    max_constraint_bytes: int = _grammar(
        HttpConfig.max_constraint_bytes, "Longest schema, pattern or grammar.", metavar="BYTES", ge=1
    )
    json_whitespace: JsonWhitespace = _grammar(
        GrammarConfig.json_whitespace, "Whitespace between JSON tokens: none, at most 8 characters, or any amount."
    )
    json_number_digits: int = _grammar(
        GrammarConfig.json_number_digits,
        "Most digits of a JSON number before the point, and again behind it, where the schema sets no bound. "
        "0: any number of them.",
        metavar="N",
        ge=0,
        le=300,
    )
    json_undeclared_properties: UndeclaredProperties = _grammar(
        GrammarConfig.json_undeclared_properties,
        "Whether objects that declare properties and do not say additionalProperties take other keys.",
    )
    grammar_plugins: Texts = _grammar(
        GrammarConfig.plugins, "Python module that registers further backends; several may be given.", metavar="MODULE"
    )

    @field_validator("api_key", "cors_origins", "served_model_name", "grammar_plugins", mode="before")
    @classmethod
    def _split_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("tool_call_parser")
    @classmethod
    def _is_a_tool_call_parser(cls, name: str) -> str:
        return name if name == "auto" else tool_parser(name).name

    @field_validator("reasoning_parser")
    @classmethod
    def _is_a_reasoning_parser(cls, name: str) -> str:
        return name if name in ("auto", "off") else reasoning_format(name).name

    @field_validator("api_key")
    @classmethod
    def _no_empty_key(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if any(not key.strip() for key in keys):
            raise ValueError("an empty key would let everyone in")
        return keys

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", device):
            raise ValueError("must be auto, cpu, cuda or cuda:N")
        return device

    @field_validator("dist_init_addr")
    @classmethod
    def _is_host_and_port(cls, address: str | None) -> str | None:
        found = None if address is None else _HOST_AND_PORT.fullmatch(address)
        if address is not None and (found is None or not 0 < int(found[3]) < 1 << 16):
            raise ValueError("must be HOST:PORT, such as 10.0.0.1:29500 or [fd00::1]:29500")
        return address

    @field_validator("ssl_certfile", "ssl_keyfile")
    @classmethod
    def _is_a_file(cls, path: Path | None) -> Path | None:
        if path is not None and not path.expanduser().is_file():
            raise ValueError(f"there is no file {str(path)!r}")
        return None if path is None else path.expanduser().absolute()

    @field_validator("grammar_disk_cache")
    @classmethod
    def _is_a_folder(cls, path: Path | None) -> Path | None:
        if path is None:
            return None
        path = path.expanduser().absolute()
        if path.exists() and not path.is_dir():
            raise ValueError(f"{str(path)!r} is no folder")
        return path

    @field_validator("grammar_plugins")
    @classmethod
    def _are_modules(cls, plugins: tuple[str, ...]) -> tuple[str, ...]:
        for plugin in plugins:
            if find_spec(plugin.partition(".")[0]) is None:  # what registers itself is imported by the scheduler alone
                raise ValueError(f"there is no module {plugin!r}")
        return plugins

    @model_validator(mode="after")
    def _grammar_backend_exists(self) -> ServeSettings:
        built_in = get_args(GrammarBackendName)
        if self.grammar_backend not in built_in and not self.grammar_plugins:
            raise ValueError(
                f"--grammar-backend: there is no {self.grammar_backend!r}; there are {', '.join(built_in)}, and what "
                "--grammar-plugins register"
            )
        return self

    @model_validator(mode="after")
    def _draft_model_fits_speculative(self) -> ServeSettings:
        if (self.speculative == "draft-model") != (self.draft_model is not None):
            raise ValueError("--speculative draft-model and --draft-model must be given together")
        return self

    @model_validator(mode="after")
    def _ranks_fit_nodes(self) -> ServeSettings:
        if self.node_rank >= self.nnodes:
            raise ValueError(f"--node-rank must be below --nnodes, {self.nnodes}, got {self.node_rank}")
        if self.nnodes > 1 and self.dist_init_addr is None:
            raise ValueError("--nnodes needs --dist-init-addr, an address of node 0 and a free port there")
        if self.tp == 1 and self.nnodes == 1 and self.dist_init_addr is not None:
            raise ValueError("--dist-init-addr is where the ranks of --tp meet; with --tp 1 there is one alone")
        if self.tp % self.nnodes:
            raise ValueError(
                f"--tp {self.tp} cannot be spread evenly over --nnodes {self.nnodes}: it must be a multiple. For whole "
                "copies of the model on other machines start a server on each, and put a load balancer in front"
            )
        if self.rendezvous is not None and (last := self.rendezvous[1] + self.dp - 1) >= 1 << 16:
            raise ValueError(f"--dp {self.dp} needs the ports from {self.rendezvous[1]} to {last}: the last is 65535")
        if self.tp * self.dp // self.nnodes > 1 and re.fullmatch("cuda:[0-9]+", self.device):
            raise ValueError(
                f"--device {self.device} is one device: with several ranks give cuda; "
                "CUDA_VISIBLE_DEVICES chooses which"
            )
        return self

    @model_validator(mode="after")
    def _tls_can_be_served(self) -> ServeSettings:
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("--ssl-certfile and --ssl-keyfile must be given together")
        if self.ssl_keyfile_password is not None and self.ssl_keyfile is None:
            raise ValueError(
                "--ssl-keyfile-password needs --ssl-certfile and --ssl-keyfile: without them there is no TLS"
            )
        if self.ssl_certfile is not None and self.ssl_keyfile is not None:
            check_tls(self.ssl_certfile, self.ssl_keyfile, self.ssl_keyfile_password)
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What was given to the constructor, and nothing read behind its back."""
        return (init_settings,)

    @property
    def rendezvous(self) -> tuple[str, int] | None:
        """Host and port of ``dist_init_addr``."""
        found = _HOST_AND_PORT.fullmatch(self.dist_init_addr or "")
        return None if found is None else (found[1] or found[2], int(found[3]))

    def scheduler_config(self, endpoint: str) -> SchedulerConfig:
        """What the scheduler process is told."""
        return SchedulerConfig(
            endpoint=endpoint,
            heartbeat_interval=min(SchedulerConfig.heartbeat_interval, self.scheduler_timeout / 4),
            max_running_requests=self.max_running_requests,
            max_queued_requests=self.max_queued_requests,
            max_batch_tokens=self.max_batch_tokens,
            policy=self.schedule_policy,
            prefix_cache=self.prefix_cache,
            overlap=self.overlap,
            jump_forward=self.jump_forward == "on",
            speculative=self.speculative,
            max_draft_tokens=self.max_draft_tokens,
        )

    def runner_config(self, assets: ModelAssets) -> RunnerConfig:
        """What the model runner is told."""
        return RunnerConfig(
            model_path=assets.weights_path,
            load_format=self.load_format,
            dtype=self.dtype,
            device=self.device,
            attention_backend=self.attention_backend,
            page_size=self.page_size,
            kv_cache_tokens=self.kv_cache_tokens,
            memory_fraction=self.memory_fraction,
            context_length=self.context_length,
            num_threads=self.num_threads,
            max_batch_tokens=self.max_batch_tokens,
            seed=self.seed,
        )

    def grammar_config(self) -> GrammarConfig:
        """What the grammar layer is told."""
        return GrammarConfig(
            backend=self.grammar_backend,
            timeout=self.grammar_timeout,
            compile_workers=self.grammar_workers,
            max_compile_workers=max(GrammarConfig.max_compile_workers, self.grammar_workers),
            compile_memory_bytes=self.grammar_memory_bytes,
            max_spec_bytes=self.max_constraint_bytes,
            cache_bytes=self.grammar_cache_bytes,
            disk_cache=self.grammar_disk_cache,
            json_whitespace=self.json_whitespace,
            json_number_digits=self.json_number_digits,
            json_undeclared_properties=self.json_undeclared_properties,
            plugins=self.grammar_plugins,
        )

    def _most_requests(self, endpoint: str) -> int:
        """That one scheduler can ever have: more at once would be told to come back later, and could not."""
        return self.max_queued_requests + self.scheduler_config(endpoint).effective_max_running_requests

    def http_config(self, endpoints: tuple[str, ...], *, metrics_directory: Path | None) -> HttpConfig:
        """What an HTTP process is told."""
        return HttpConfig(
            endpoints=endpoints,
            served_model_names=self.served_model_name,
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
            max_tools=self.max_tools,
            serves_grammars=self.grammar_backend != "none",
            api_keys=self.api_key,
            cors_origins=self.cors_origins,
            root_path=self.root_path,
            ssl_certfile=self.ssl_certfile,
            ssl_keyfile=self.ssl_keyfile,
            ssl_keyfile_password=self.ssl_keyfile_password,
            max_body_bytes=self.max_body_bytes,
            max_choices=self.max_choices,
            max_prompts=min(self.max_prompts, len(endpoints) * self._most_requests(endpoints[0])),
            max_stop_strings=self.max_stop_strings,
            max_top_logprobs=self.max_top_logprobs,
            max_constraint_bytes=self.max_constraint_bytes,
            first_answer_timeout=max(HttpConfig.first_answer_timeout, self.grammar_timeout + 60),
            request_timeout=self.request_timeout,
            drain_timeout=self.drain_timeout,
            scheduler_timeout=self.scheduler_timeout,
            log_level=self.log_level,
            log_format=self.log_format,
            access_log=self.access_log,
            metrics_directory=metrics_directory,
            docs=self.docs,
        )

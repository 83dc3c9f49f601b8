"""What vulture takes for unused: used by libraries, by name or from outside. `make check` finds everything else."""

# ruff: noqa: B018, F821
# pyright: reportUndefinedVariable=false, reportUnusedExpression=false

# Called or read by Python, torch, transformers, tokenizers, aiohttp and html.parser.
find_spec
exec_module
__getattr__
forward
all_tied_weights_keys
encode_special_tokens
pre_tokenizer
_retry_connection
handle_starttag
handle_endtag
handle_data
attrs
trace
on_step_begin
on_step_end
__call__

# Called by rich, and read by Python's module of temporary files.
on_broken_pipe
tempdir

# Read by TRL and transformers from a tokenizer and a model.
eos_token
response_template
parse_response
use_cache

# Read by vLLM from a request's parameters, and from the handler of its protocol.
structured_outputs
system_fingerprint

# Called by Ray Train, with arguments by name.
after_report
run_context

# Called by vLLM, which finds the class by its entry point.
init_info_cls
update_info_cls
init_transfer_engine
init_info

# Named by a text, `module:function`.
format_in

# Keys of report.json, and fields that are read as a whole (`asdict`).
repeated
ci95
tokens_per_success
tool_calls_per_success
disk_hits
defects
retries
waiting
kl_rollout
clip_fraction
truncated_weight_fraction
ratio_mean
fresh_tokens

# Found by name: worlds.
TinyWorld

# Read by tests: what an executor's disk did, and what a window holds.
disk_failures
outstanding
next_group

# Called by scripts/settings.py.
as_markdown

# Called by Ray Train, whose own it replaces.
_initialize_and_run_controller

# Methods that Ray or vLLM call by name, from another process.
next_order
has_recorded
emit
released
WeightWorker
coa_receive
coa_received
coa_report
coa_drop

# Set for torch.distributed, which reads them.
rootRank
rootTensor

# A model in memory as weights to load: what tests and one's own scripts begin from.
serialise

# An episode on any policy, for tests and for users' scripts.
run_episode

# Routes, which FastAPI finds by their decorators, and what Ray Serve and MCP ask for by name.
completions
responses
healthz
readyz
check_health
record_autoscaling_stats
__annotations__

# What uvicorn's protocol asks for, what uvicorn takes for its protocol, and what Ray Serve's proxy calls by its name.
_should_upgrade_to_ws
AutoHTTPProtocol
middlewares

# Columns of evaluation.json, which users read.
tokens_per_task
sampled_tokens_per_task
selector_tokens_per_task

# Read from metrics.jsonl.
shared_fraction

# Registered by their module and name.
Ablated

# What vLLM's handlers ask an engine for.
input_processor
check_admission
is_tracing_enabled

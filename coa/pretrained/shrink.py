"""Makes a tiny configuration of the same family from a model's own: what layers compute stays, how large they are does
not. A model of it, with random weights, is built and run in a fraction of a second.

Rules go by the names of settings, and know no family. Layers are one of each kind; windows and the positions at which
rotary embeddings change are so small that a short sequence is beyond them."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from coa.json_object import Json, JsonView

if TYPE_CHECKING:
    import transformers

Config = TypeVar("Config", bound="transformers.PreTrainedConfig")

VOCABULARY = 96
"""Words of the vocabulary."""
WIDTH, HEADS, KEY_HEADS, HEAD_DIM, INNER = 32, 4, 2, 8, 48
"""Width of the residual stream, attention heads of a layer, those of grouped keys, width of a head, and of the layers
between."""
EXPANDED = 2 * WIDTH // HEAD_DIM
"""Heads of a state space layer, which is twice as wide as the residual stream."""
WINDOW = 8
"""Tokens of a sliding window, of a chunk of attention, and those that an index chooses."""
ORIGINAL_POSITIONS = 16
"""Positions that rotary embeddings were trained for, where they are scaled to more."""
POSITIONS = 2048
_LAYERS = "num_hidden_layers"
_MOST: tuple[tuple[int, str], ...] = (
    (VOCABULARY, "*vocab_size* num_image_tokens num_centroids"),
    (EXPANDED, "mamba_n_heads mamba_num_heads"),
    (HEADS, "*attention_heads n_head n_heads num_heads *_n_heads linear_num_heads linear_num_value_heads"),
    (KEY_HEADS, "*key_value_heads num_kv_heads linear_num_key_heads num_query_groups"),
    (HEAD_DIM, "hidden_size_per_layer_input"),
    (WIDTH, "*hidden_size n_embd d_model dim_model embedding_dim embedding_size emb_dim word_embed_proj_dim lru_width"),
    (2 * WIDTH, "mamba_d_ssm"),
    (2 * HEAD_DIM, "qk_head_dim"),
    (HEAD_DIM, "*head_dim head_size d_head kv_channels mamba_d_head mamba_headdim rotary_dim dim_head"),
    (INNER, "*intermediate_size* *ffn_dim *ffn_hidden_size dim_ff dff n_inner d_inner feed_forward_size"),
    (4, "num_experts n_routed_experts num_local_experts moe_num_experts zero_expert_num"),
    (2, "num_experts_per_tok num_experts_per_token moe_topk moe_k index_topk_blocks encoder_layers decoder_layers"),
    (1, "n_group n_groups mamba_n_groups mamba_ngroups topk_group num_expert_group n_shared_experts"),
    (1, "num_kv_shared_layers num_dense_layers first_k_dense_replace *_offset"),
    (HEAD_DIM, "*_rank d_rel state_size ssm_state_size mamba_d_state"),
    (WINDOW, "*sliding_window *sliding_window_size attention_chunk_size window_size attention_window_size"),
    (WINDOW, "keep_window_size local_attention index_topk chunk_size mamba_chunk_size block_size index_block_size"),
    (WINDOW, "rel_extent"),
    (2, "*_period *_interval *_sparse_step"),
    (ORIGINAL_POSITIONS, "original_max_position_embeddings"),
    (POSITIONS, "max_position_embeddings n_positions n_ctx max_seq_len model_max_length"),
)
"""The largest number that settings keep, by their names, in which * stands for anything; the first that fits counts."""
_PERIODS = "*_period *_interval *_sparse_step"
_INDICES = "*_layers *_idxs *_layer_ids"
"""Lists of the numbers of layers."""


def shrunk(config: Config) -> Config:
    """A configuration of the same class, and of the same classes in it."""
    tree: Json = config.to_dict()
    tree.pop("model_type", None)
    parts = [name for name in getattr(config, "sub_configs", {}) if _has(config, name)]
    changed: Json = {name: shrunk(getattr(config, name)) for name in parts}
    if _has(config, _LAYERS) and isinstance(config.num_hidden_layers, int):
        changed |= _fewer_layers(config, tree)
    changed |= dict(_smaller(tree, changed))
    if _whole_heads(config):
        names = getattr(type(config), "attribute_map", {})
        changed[names.get("num_key_value_heads", "num_key_value_heads")] = min(config.num_attention_heads, HEADS)
    return type(config)(**{**tree, **changed})


def _fits(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns.split())


def _has(config: "transformers.PreTrainedConfig", name: str) -> bool:
    try:
        return getattr(config, name, None) is not None
    except NotImplementedError:  # a configuration without this setting may raise it
        return False


def _whole_heads(config: "transformers.PreTrainedConfig") -> bool:
    """Whether each attention head has keys of its own."""
    both = ("num_key_value_heads", "num_attention_heads")
    return all(_has(config, one) for one in both) and config.num_key_value_heads == config.num_attention_heads


def _fewer_layers(config: "transformers.PreTrainedConfig", tree: JsonView) -> Json:
    """One layer of each kind, two at least. Kinds are told apart by what has an entry a layer."""
    layers: int = config.num_hidden_layers
    columns = {name: column for name, value in tree.items() if (column := _by_layer(name, value, layers)) is not None}
    first: dict[str, int] = {}
    for i in range(layers):
        first.setdefault(repr([column[i] for column in columns.values()]), i)
    kept = sorted(first.values())
    if len(kept) == 1:
        kept *= 4 if any(_fits(name, _PERIODS) for name in tree) else 2
    names = getattr(type(config), "attribute_map", {})
    return {names.get(_LAYERS, _LAYERS): len(kept), **{name: _keep(tree[name], kept, layers) for name in columns}}


def _by_layer(name: str, value: object, layers: int) -> list[object] | None:
    """The entry of each layer: of a list of them, of numbers of layers, of a dictionary by number; None for others."""
    if isinstance(value, (list, tuple)):
        entries = list(value)
        if len(entries) == layers:
            return entries
        return [i in entries for i in range(layers)] if _fits(name, _INDICES) else None
    if isinstance(value, dict) and value and all(str(key).isdigit() for key in value):
        if not _fits(name, _INDICES) and "layer" not in name:
            return None
        by_number = {int(key): one for key, one in value.items()}
        return [by_number.get(i) for i in range(layers)]
    return None


def _keep(value: Json | Sequence[object], kept: Sequence[int], layers: int) -> Json | list[object]:
    """The entries of the layers that are kept, in the form that they have."""
    if isinstance(value, dict):
        by_number = {int(key): one for key, one in value.items()}
        return {str(new): by_number[old] for new, old in enumerate(kept) if old in by_number}
    return [value[i] for i in kept] if len(value) == layers else [new for new, old in enumerate(kept) if old in value]


def _smaller(tree: JsonView, done: JsonView) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if name in done or isinstance(value, bool):
            continue
        if name in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            yield name, _rotation(value)
        elif name.endswith("token_id") and isinstance(value, int):
            yield name, value % VOCABULARY if value >= 0 else value
        elif name.endswith("token_id") and isinstance(value, list):
            yield name, [one % VOCABULARY for one in value]
        elif isinstance(value, int):
            most = next((most for most, names in _MOST if _fits(name, names)), value)
            yield name, min(value, most)


def _rotation(tree: JsonView) -> Json:
    """Rotary embeddings for few positions; by kind of layer, or one for all."""
    found: Json = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found[name] = _rotation(value)
        elif name == "original_max_position_embeddings" and isinstance(value, int):
            found[name] = ORIGINAL_POSITIONS
        elif isinstance(value, (list, tuple)):  # a factor for each pair of dimensions
            found[name] = list(value)[: HEAD_DIM // 2]
        else:
            found[name] = value
    return found

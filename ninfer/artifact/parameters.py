"""Logical parameters of a version-3 artifact, in canonical order (artifact spec, sections 11.1 and 11.2).

A logical parameter has a name, a shape, the checkpoint tensor it is made from and the activations it multiplies
(use inputs). All of it follows from the component configs; this module needs the standard library alone, so that the
upgrade can use it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ninfer.artifact.config import FULL_ATTENTION, DraftConfig, MtpConfig, TextConfig, VisionConfig

DRAFTERS = ("dflash", "dflash2")
VISION_PREFIX = "model.visual."

# Element kinds: what a recipe chooses a format for, always binary32 (recurrence constants), and token ids.
FLOATING, FP32, INT32 = "floating", "fp32", "int32"


@dataclass(frozen=True, slots=True)
class Components:
    """What an artifact holds: the text decoder, and every optional part that is present.

    drafts           drafter name (``dflash``, ``dflash2``) to its config
    proposal_rows    rows of the draft head over a subset of the vocabulary, or None
    """

    text: TextConfig
    mtp: MtpConfig | None = None
    vision: VisionConfig | None = None
    drafts: dict[str, DraftConfig] = field(default_factory=dict)
    proposal_rows: int | None = None

    @property
    def drafters(self) -> tuple[str, ...]:
        """Every component that proposes tokens, in the order its inputs are listed."""
        return (("mtp",) if self.mtp else ()) + tuple(name for name in DRAFTERS if name in self.drafts)


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """`count` runs of `length` rows, the first at row `begin`, each `stride` rows after the one before."""

    begin: int
    length: int
    stride: int
    count: int


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter's values are in a checkpoint.

    checkpoint   ``base``, or the drafter whose own checkpoint holds it
    tensor       name in the safetensors files
    shape        shape it must have there
    rows         rows of the matrix [product of all dimensions but the last, last] to take; None takes all
    taps_first   the convolution's axes (channel, 1, tap) are permuted to (tap, channel)
    """

    checkpoint: str
    tensor: str
    shape: tuple[int, ...]
    rows: RowBlocks | None = None
    taps_first: bool = False


@dataclass(frozen=True, slots=True)
class LogicalParameter:
    """One parameter of section 11.1.

    name        e.g. ``text/layers/3/attention/query``
    component   component that must be present: text, mtp, vision, dflash, dflash2, proposal
    layer       layer number inside the component, or None
    role        the name without component and layer, e.g. ``attention/query``
    shape       logical shape
    kind        FLOATING, FP32 or INT32
    source      checkpoint tensor, or None for the draft head, which is made by section 13
    inputs      use inputs in listed order
    alias_of    another parameter whose binding this one shares
    """

    name: str
    component: str
    layer: int | None
    role: str
    shape: tuple[int, ...]
    kind: str
    source: Source | None
    inputs: tuple[str, ...] = ()
    alias_of: str | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class PackingGroup:
    """Parameters that may share one parent object, rows concatenated in this order."""

    component: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """Parameters of one decoder block, and the part of the checkpoint that they come from."""

    component: str
    path: str
    layer: int | None
    checkpoint: str
    source_prefix: str

    def parameter(
        self,
        role: str,
        shape: tuple[int, ...],
        tensor: str,
        *inputs: str,
        kind: str = FLOATING,
        source_shape: tuple[int, ...] | None = None,
        rows: RowBlocks | None = None,
        taps_first: bool = False,
    ) -> LogicalParameter:
        """A parameter of this block; inputs beginning with ``@`` stand below the block's own path."""
        source = Source(self.checkpoint, self.source_prefix + tensor, source_shape or shape, rows, taps_first)
        resolved = tuple(self.path + name[1:] if name.startswith("@") else name for name in inputs)
        return LogicalParameter(self.path + role, self.component, self.layer, role, shape, kind, source, resolved)


def iterate_parameters(
    components: Components, text_prefix: str = "model.language_model."
) -> Iterator[LogicalParameter]:
    """Every parameter of `components` in canonical order, one at a time: a config from a file may ask for billions.

    text_prefix   start of the text tensors' names in the checkpoint: ``model.language_model.`` or ``model.``
    """
    yield from _text(components, text_prefix)
    if components.mtp is not None:
        yield from _mtp(components.text)
    if components.vision is not None:
        yield from _vision(components.vision, components.text.hidden_size)
    for name in DRAFTERS:
        if name in components.drafts:
            yield from _drafter(name, components.drafts[name], components.text)
    if components.proposal_rows is not None:
        rows, hidden = components.proposal_rows, components.text.hidden_size
        inputs = tuple(f"{c}/final_hidden" for c in components.drafters)
        yield LogicalParameter("proposal/head", "proposal", None, "head", (rows, hidden), FLOATING, None, inputs)
        yield LogicalParameter("proposal/token_ids", "proposal", None, "token_ids", (rows,), INT32, None)


def logical_parameters(components: Components, text_prefix: str = "model.language_model.") -> list[LogicalParameter]:
    """All of :func:`iterate_parameters`, for components that are known to be sane."""
    return list(iterate_parameters(components, text_prefix))


def packing_groups(components: Components) -> Iterator[PackingGroup]:
    """Candidate parents in the order they are tried, block after block in parameter order (section 11.2)."""
    text = components.text
    for i, kind in enumerate(text.layer_types):
        yield from _decoder_groups("text", f"text/layers/{i}/", kind == FULL_ATTENTION, text)
    if components.mtp is not None:
        yield from _decoder_groups("mtp", "mtp/layers/0/", True, text)
    if components.vision is not None:
        for b in range(components.vision.depth):
            for suffix in ("", "_bias"):
                names = tuple(f"vision/layers/{b}/attention/{m}{suffix}" for m in ("query", "key", "value"))
                yield PackingGroup("vision", names)
    for name in DRAFTERS:
        if name in components.drafts:
            for i in range(len(components.drafts[name].layer_types)):
                path = f"{name}/layers/{i}/"
                yield PackingGroup(name, tuple(f"{path}attention/{m}" for m in ("query", "key", "value")))
                yield PackingGroup(name, (f"{path}mlp/gate", f"{path}mlp/up"))


def _decoder_groups(component: str, path: str, full: bool, text: TextConfig) -> Iterator[PackingGroup]:
    if full:
        folder, groups = "attention", ["query key gate value", "query key", "gate value"]
    else:
        folder = "gdn"
        groups = ["query key value z", "query key", "value z", "a_projection b_projection"]
    for group in groups:
        yield PackingGroup(component, tuple(f"{path}{folder}/{member}" for member in group.split()))
    if text.moe is None:
        yield PackingGroup(component, (f"{path}mlp/gate", f"{path}mlp/up"))
        return
    experts = range(text.moe.num_experts)
    yield PackingGroup(component, (f"{path}moe/router", f"{path}moe/shared_score"))
    yield PackingGroup(component, tuple(f"{path}moe/experts/{e}/{m}" for e in experts for m in ("gate", "up")))
    yield PackingGroup(component, tuple(f"{path}moe/experts/{e}/down" for e in experts))
    yield PackingGroup(component, (f"{path}moe/shared/gate", f"{path}moe/shared/up"))


def _text(components: Components, prefix: str) -> Iterator[LogicalParameter]:
    text = components.text
    root = _Block("text", "text/", None, "base", "")
    hidden, vocab = text.hidden_size, text.vocab_size
    embedding = f"{prefix}embed_tokens.weight"
    yield root.parameter("token_embedding", (vocab, hidden), embedding)
    head = embedding if text.tie_word_embeddings else "lm_head.weight"
    readers = [f"{c}/final_hidden" for c in components.drafters]
    yield root.parameter("output_head", (vocab, hidden), head, "text/final_hidden", *readers)
    yield root.parameter("final_norm", (hidden,), f"{prefix}norm.weight")
    for i, kind in enumerate(text.layer_types):
        block = _Block("text", f"text/layers/{i}/", i, "base", f"{prefix}layers.{i}.")
        yield from _decoder_block(block, text, full=kind == FULL_ATTENTION)


def _decoder_block(block: _Block, text: TextConfig, *, full: bool) -> Iterator[LogicalParameter]:
    hidden = text.hidden_size
    yield block.parameter("input_norm", (hidden,), "input_layernorm.weight")
    yield from _attention(block, text) if full else _gdn(block, text)
    yield block.parameter("post_attention_norm", (hidden,), "post_attention_layernorm.weight")
    if text.intermediate_size is not None:
        inner = text.intermediate_size
        yield block.parameter("mlp/gate", (inner, hidden), "mlp.gate_proj.weight", "@ffn_input")
        yield block.parameter("mlp/up", (inner, hidden), "mlp.up_proj.weight", "@ffn_input")
        yield block.parameter("mlp/down", (hidden, inner), "mlp.down_proj.weight", "@mlp/product")
    else:
        yield from _experts(block, text)


def _attention(block: _Block, text: TextConfig) -> Iterator[LogicalParameter]:
    hidden, dim, query, kv = text.hidden_size, text.head_dim, text.query_width, text.kv_width
    # The checkpoint interleaves query and gate head by head in one matrix of twice the query's rows.
    for role, begin in (("attention/query", 0), ("attention/gate", dim)):
        yield block.parameter(
            role,
            (query, hidden),
            "self_attn.q_proj.weight",
            "@mixer_input",
            source_shape=(2 * query, hidden),
            rows=RowBlocks(begin, dim, 2 * dim, text.heads),
        )
    yield block.parameter("attention/key", (kv, hidden), "self_attn.k_proj.weight", "@mixer_input")
    yield block.parameter("attention/value", (kv, hidden), "self_attn.v_proj.weight", "@mixer_input")
    yield block.parameter("attention/query_norm", (dim,), "self_attn.q_norm.weight")
    yield block.parameter("attention/key_norm", (dim,), "self_attn.k_norm.weight")
    yield block.parameter("attention/output", (hidden, query), "self_attn.o_proj.weight", "@attention/gated_output")


def _gdn(block: _Block, text: TextConfig) -> Iterator[LogicalParameter]:
    hidden, heads = text.hidden_size, text.gdn_value_heads
    key, value, channels = text.gdn_key_width, text.gdn_value_width, text.conv_channels
    yield block.parameter("gdn/a_log", (heads,), "linear_attn.A_log", kind=FP32)
    yield block.parameter("gdn/dt_bias", (heads,), "linear_attn.dt_bias", kind=FP32)
    yield block.parameter(
        "gdn/convolution",
        (text.conv_kernel, channels),
        "linear_attn.conv1d.weight",
        source_shape=(channels, 1, text.conv_kernel),
        taps_first=True,
    )
    for name in ("a", "b"):
        tensor = f"linear_attn.in_proj_{name}.weight"
        yield block.parameter(f"gdn/{name}_projection", (heads, hidden), tensor, "@mixer_input")
    for role, begin, width in (("query", 0, key), ("key", key, key), ("value", 2 * key, value)):
        yield block.parameter(
            f"gdn/{role}",
            (width, hidden),
            "linear_attn.in_proj_qkv.weight",
            "@mixer_input",
            source_shape=(channels, hidden),
            rows=RowBlocks(begin, width, width, 1),
        )
    yield block.parameter("gdn/z", (value, hidden), "linear_attn.in_proj_z.weight", "@mixer_input")
    yield block.parameter("gdn/norm", (text.gdn_value_dim,), "linear_attn.norm.weight")
    yield block.parameter("gdn/output", (hidden, value), "linear_attn.out_proj.weight", "@gdn/gated_output")


def _experts(block: _Block, text: TextConfig) -> Iterator[LogicalParameter]:
    moe, hidden = text.moe, text.hidden_size
    assert moe is not None
    count, inner, shared = moe.num_experts, moe.expert_intermediate_size, moe.shared_intermediate_size
    yield block.parameter("moe/router", (count, hidden), "mlp.gate.weight", "@ffn_input")
    yield block.parameter("moe/shared_score", (1, hidden), "mlp.shared_expert_gate.weight", "@ffn_input")
    for e in range(count):
        for half, role in enumerate(("gate", "up")):
            yield block.parameter(
                f"moe/experts/{e}/{role}",
                (inner, hidden),
                "mlp.experts.gate_up_proj",
                "@ffn_input",
                source_shape=(count, 2 * inner, hidden),
                rows=RowBlocks((2 * e + half) * inner, inner, inner, 1),
            )
        yield block.parameter(
            f"moe/experts/{e}/down",
            (hidden, inner),
            "mlp.experts.down_proj",
            f"@moe/experts/{e}/product",
            source_shape=(count, hidden, inner),
            rows=RowBlocks(e * hidden, hidden, hidden, 1),
        )
    yield block.parameter("moe/shared/gate", (shared, hidden), "mlp.shared_expert.gate_proj.weight", "@ffn_input")
    yield block.parameter("moe/shared/up", (shared, hidden), "mlp.shared_expert.up_proj.weight", "@ffn_input")
    tensor = "mlp.shared_expert.down_proj.weight"
    yield block.parameter("moe/shared/down", (hidden, shared), tensor, "@moe/shared/product")


def _mtp(text: TextConfig) -> Iterator[LogicalParameter]:
    hidden = text.hidden_size
    root = _Block("mtp", "mtp/", None, "base", "mtp.")
    yield root.parameter("input_projection", (hidden, 2 * hidden), "fc.weight", "@stem_input")
    yield root.parameter("embedding_norm", (hidden,), "pre_fc_norm_embedding.weight")
    yield root.parameter("hidden_norm", (hidden,), "pre_fc_norm_hidden.weight")
    yield root.parameter("final_norm", (hidden,), "norm.weight")
    yield from _decoder_block(_Block("mtp", "mtp/layers/0/", 0, "base", "mtp.layers.0."), text, full=True)


def _vision(vision: VisionConfig, text_hidden: int) -> Iterator[LogicalParameter]:
    width, inner = vision.hidden_size, vision.intermediate_size
    root = _Block("vision", "vision/", None, "base", VISION_PREFIX)
    yield root.parameter(
        "patch_embedding",
        (width, vision.patch_width),
        "patch_embed.proj.weight",
        "@patch_input",
        source_shape=(width, 3, vision.temporal_patch_size, vision.patch_size, vision.patch_size),
    )
    yield root.parameter("patch_embedding_bias", (width,), "patch_embed.proj.bias")
    yield root.parameter("position_embedding", (vision.num_position_embeddings, width), "pos_embed.weight")
    for b in range(vision.depth):
        block = _Block("vision", f"vision/layers/{b}/", b, "base", f"{VISION_PREFIX}blocks.{b}.")
        for norm in ("norm1", "norm2"):
            for part in ("weight", "bias"):
                yield block.parameter(f"{norm}_{part}", (width,), f"{norm}.{part}")
        for third, role in enumerate(("query", "key", "value")):
            rows = RowBlocks(third * width, width, width, 1)
            yield block.parameter(
                f"attention/{role}",
                (width, width),
                "attn.qkv.weight",
                "@attention_input",
                source_shape=(3 * width, width),
                rows=rows,
            )
            # A vector's rows are its elements.
            yield block.parameter(
                f"attention/{role}_bias", (width,), "attn.qkv.bias", source_shape=(3 * width,), rows=rows
            )
        yield block.parameter("attention/output", (width, width), "attn.proj.weight", "@attention_output")
        yield block.parameter("attention/output_bias", (width,), "attn.proj.bias")
        yield block.parameter("mlp/fc1", (inner, width), "mlp.linear_fc1.weight", "@mlp_input")
        yield block.parameter("mlp/fc1_bias", (inner,), "mlp.linear_fc1.bias")
        yield block.parameter("mlp/fc2", (width, inner), "mlp.linear_fc2.weight", "@mlp_activation")
        yield block.parameter("mlp/fc2_bias", (width,), "mlp.linear_fc2.bias")
    merged = vision.merger_width
    merger = _Block("vision", "vision/merger/", None, "base", f"{VISION_PREFIX}merger.")
    for item in (
        merger.parameter("norm_weight", (width,), "norm.weight"),
        merger.parameter("norm_bias", (width,), "norm.bias"),
        merger.parameter("fc1", (merged, merged), "linear_fc1.weight", "@input"),
        merger.parameter("fc1_bias", (merged,), "linear_fc1.bias"),
        merger.parameter("fc2", (text_hidden, merged), "linear_fc2.weight", "@activation"),
        merger.parameter("fc2_bias", (text_hidden,), "linear_fc2.bias"),
    ):
        yield replace(item, role=f"merger/{item.role}")


def _drafter(name: str, draft: DraftConfig, text: TextConfig) -> Iterator[LogicalParameter]:
    hidden, inner = text.hidden_size, draft.intermediate_size
    query, kv, dim = draft.heads * draft.head_dim, draft.kv_heads * draft.head_dim, draft.head_dim
    root = _Block(name, f"{name}/", None, name, "")
    taps = len(draft.target_layer_ids)
    yield root.parameter("feature_projection", (hidden, taps * hidden), "fc.weight", "@target_features")
    yield root.parameter("context_norm", (hidden,), "hidden_norm.weight")
    yield root.parameter("final_norm", (hidden,), "norm.weight")
    for i in range(len(draft.layer_types)):
        block = _Block(name, f"{name}/layers/{i}/", i, name, f"layers.{i}.")
        yield block.parameter("input_norm", (hidden,), "input_layernorm.weight")
        yield block.parameter("post_attention_norm", (hidden,), "post_attention_layernorm.weight")
        tensor, projected = "self_attn.q_proj.weight", "@query_projection_input"
        yield block.parameter("attention/query", (query, hidden), tensor, projected)
        for role in ("key", "value"):
            tensor = f"self_attn.{role[0]}_proj.weight"
            yield block.parameter(f"attention/{role}", (kv, hidden), tensor, projected)
            context = block.parameter(f"attention/context_{role}", (kv, hidden), tensor, f"{name}/context_input")
            yield replace(context, alias_of=f"{block.path}attention/{role}")
        yield block.parameter("attention/query_norm", (dim,), "self_attn.q_norm.weight")
        yield block.parameter("attention/key_norm", (dim,), "self_attn.k_norm.weight")
        yield block.parameter("attention/output", (hidden, query), "self_attn.o_proj.weight", "@attention_output")
        yield block.parameter("mlp/gate", (inner, hidden), "mlp.gate_proj.weight", "@mlp_input")
        yield block.parameter("mlp/up", (inner, hidden), "mlp.up_proj.weight", "@mlp_input")
        yield block.parameter("mlp/down", (hidden, inner), "mlp.down_proj.weight", "@mlp_product")
        if draft.conv_kernel_size is not None:
            yield from _draft_convolutions(block, draft, hidden)
    if draft.selector_rank is not None:
        selector, rank = "candidate_selector", draft.selector_rank
        tensor = f"{selector}.hidden_projection.weight"
        yield root.parameter(f"{selector}/hidden_projection", (rank, hidden), tensor, f"{name}/final_hidden")
        for book in ("predecessor_codebook", "successor_codebook"):
            yield root.parameter(f"{selector}/{book}", (text.vocab_size, rank), f"{selector}.{book}")


def _draft_convolutions(block: _Block, draft: DraftConfig, hidden: int) -> Iterator[LogicalParameter]:
    taps, group = draft.conv_kernel_size, draft.conv_group_size
    assert taps is not None
    assert group is not None
    # Two sides (before and after the sublayer), each with `taps` taps per group of channels.
    for conv in ("attention_conv", "mlp_conv"):
        yield block.parameter(f"{conv}/base_kernel", (2, taps, hidden), f"{conv}.base_kernel")
        rows = 2 * taps * hidden // group
        tensor = f"{conv}.kernel_projection.weight"
        yield block.parameter(f"{conv}/kernel_projection", (rows, hidden), tensor, f"@{conv}_input")

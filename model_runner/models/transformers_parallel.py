"""A model of transformers cut among ranks by the tensor-parallel plan that its architecture states.

transformers cuts the parameters while it loads them, so that each rank reads its share. The products and the embedding
are then computed by our layers, and experts in one tensor by their own code, with sums over :class:`Ranks`, which
depend on no batch at float32. Anything else that the plan names transformers sums itself, over the same process group.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel

from model_runner.errors import ModelLoadError
from model_runner.layers.linear import Linear, build_linear
from model_runner.layers.parallel import (
    GatheredOverRanks,
    SummedOverRanks,
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
)
from model_runner.models.sharding import Share, refuse_indivisible
from model_runner.models.transformers_layers import compute_by
from model_runner.ranks import Ranks

_GATHERED = ("colwise_gather_output", "colwise_rep")
_SPLITTING = ("rowwise_split_input", "rowwise_rep")


def check_plan(model_config: PretrainedConfig, ranks: Ranks) -> None:
    """
    Refuse a model that transformers has no plan for, and a number of ranks that does not divide its sizes.

    Raises
    ------
    ModelLoadError
        Saying which, before any weight is read.
    """
    name = model_config.model_type
    if not hasattr(PreTrainedModel, "maybe_distribute_model"):
        raise ModelLoadError(
            f"architecture {name!r} runs through transformers' own code, and version {transformers.__version__} of it "
            "does not cut models among ranks in the way we use; install the newest version 5"
        )
    plan: Mapping[str, str] = getattr(model_config, "base_model_tp_plan", None) or {}
    if not plan:
        raise ModelLoadError(
            f"architecture {name!r} runs through transformers' own code, which has no tensor-parallel plan for it; "
            "serve it without --tp"
        )
    accelerator = torch._C._get_accelerator().type
    if accelerator != ranks.device.type:
        raise ModelLoadError(
            f"architecture {name!r} runs through transformers' own code, which cuts models on this machine's "
            f"{accelerator} devices alone, not on {ranks.device.type}"
        )
    sizes = {}
    if any(style == "colwise" and "att" in module for module, style in plan.items()):
        sizes["attention heads"] = model_config.num_attention_heads
        sizes["key-value heads"] = getattr(model_config, "num_key_value_heads", None) or sizes["attention heads"]
    for setting in ("intermediate_size", "moe_intermediate_size"):
        width = getattr(model_config, setting, None)
        if isinstance(width, int):
            sizes[setting] = width
    refuse_indivisible(
        lambda size: [f"{number} {what}" for what, number in sizes.items() if number % size],
        ranks.size,
        limit=model_config.num_attention_heads,
    )


def distributed_settings(ranks: Ranks) -> Any:
    """What ``from_pretrained`` is told."""
    from transformers.distributed.configuration_utils import (
        DistributedConfig,  # not in every version that serves without ranks
    )

    if ranks.device.index is not None:
        os.environ["LOCAL_RANK"] = str(ranks.device.index)  # transformers takes its device from there alone
    return DistributedConfig(tp_size=ranks.size, tp_plan="auto")


def cut_whole_model(model: Any, ranks: Ranks) -> Any:
    """A model whose parameters are all here, with this rank's share of them."""
    from transformers.distributed.utils import initialize_distributed_mesh

    settings = distributed_settings(ranks)
    _, mesh = initialize_distributed_mesh(settings)
    return model.maybe_distribute_model(model, settings, mesh)


def compute_over_ranks(model: Any, ranks: Ranks, *, is_exact: bool) -> None:
    """Let our own layers compute the cut products and embeddings of a model that transformers has loaded."""
    head = model.get_output_embeddings()
    parts = _OwnParts()
    for name, module in model.named_modules():
        style = model.tp_plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if style is None:
            continue
        if style == "moe_tp_experts" and all(_is_cut(parameter) for parameter in module.parameters(recurse=False)):
            _sum_experts(module, parts, ranks, is_exact=is_exact)
            continue
        layer: Callable[[torch.Tensor], torch.Tensor] | None = None
        if type(module) is nn.Linear:
            layer = _build_product(module, style, parts, ranks, is_exact=is_exact, is_head=module is head)
        elif type(module) is nn.Embedding and style == "embedding_rowwise":
            width = Share(size=ranks.size).padded_width(module.num_embeddings)
            table = parts.take(module, "weight", width)
            assert table is not None
            layer = VocabularyParallelEmbedding(table, ranks.rank * width, ranks)
        if layer is not None:
            compute_by(module, layer)


def _build_product(
    module: nn.Linear, style: str, parts: _OwnParts, ranks: Ranks, *, is_exact: bool, is_head: bool
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    share = Share(ranks.rank, ranks.size)
    if style == "colwise" or style in _GATHERED:
        width = share.padded_width(module.out_features)
        weight, bias = parts.take(module, "weight", width), parts.take(module, "bias", width)
        product = build_linear(weight, bias, is_exact=is_exact, is_shared=True)
        if style == "colwise":
            return product
        gathered = VocabularyParallelHead if is_head else GatheredOverRanks
        return gathered(product, module.out_features, ranks)
    if style == "rowwise" or style in _SPLITTING:
        weight, bias = parts.take(module, "weight"), parts.take(module, "bias")
        product = build_linear(weight, None if ranks.rank else bias, is_exact=is_exact, is_shared=True)
        if style in _SPLITTING:
            product = _OwnColumns(product, share.of(module.in_features))
        return SummedOverRanks(product, ranks, is_exact=is_exact)
    return None


def _is_cut(parameter: nn.Parameter) -> bool:
    return isinstance(parameter.data, DTensor) and not any(each.is_replicate() for each in parameter.data.placements)


def _sum_experts(module: nn.Module, parts: _OwnParts, ranks: Ranks, *, is_exact: bool) -> None:
    """Experts in one tensor, of each of which this rank has a part of the inner width."""
    for name, _ in module.named_parameters(recurse=False):
        parts.take(module, name)
    compute = partial(type(module).forward, module)

    def forward(*arguments: Any, **keywords: Any) -> torch.Tensor:
        return ranks.sum_(compute(*arguments, **keywords).contiguous(), is_exact=is_exact)

    object.__setattr__(module, "forward", forward)


class _OwnColumns:
    """A product of this rank's part of whole rows."""

    def __init__(self, product: Linear, columns: slice) -> None:
        self._product = product
        self._columns = columns

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x[:, self._columns].contiguous())


class _OwnParts:
    """This rank's rows and columns of parameters, as plain tensors; modules that share a parameter share its part."""

    def __init__(self) -> None:
        self._parts: dict[nn.Parameter, nn.Parameter] = {}

    def take(self, module: nn.Module, name: str, num_rows: int = 0) -> Any:
        """The part, filled up to ``num_rows``, which takes the parameter's place in the module."""
        parameter = module._parameters[name]
        if parameter is None:
            return None
        if parameter not in self._parts:
            part = parameter.data
            part = part.to_local() if isinstance(part, DTensor) else part
            if len(part) < num_rows:
                part = functional.pad(part, (0, 0) * (part.dim() - 1) + (0, num_rows - len(part)))
            self._parts[parameter] = nn.Parameter(part, requires_grad=False)
        module._parameters[name] = self._parts[parameter]
        return self._parts[parameter].data

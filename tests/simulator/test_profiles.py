from __future__ import annotations

import dataclasses

import pytest

from concur_agents.errors import InvalidValueError
from concur_agents.simulator.profiles import (
    DEEPSEEK_V3,
    DEEPSEEK_V3_AS_PUBLISHED,
    H100_SXM,
    MOE_TWO_NODES,
    QWEN3_32B,
    profile_named,
    profiles,
    roofline,
)


def test_qwen_capacity_and_costs_by_hand():
    line = roofline(H100_SXM, QWEN3_32B, 8)
    # 80 GB x 0.85 - 65.6 GB / 8 = 59.8 GB per GPU; 262,144 B / 8 = 32,768 B per token.
    assert line.kv_tokens == int(59.8e9 / 32768)
    assert line.costs.token == pytest.approx(2 * 32.8e9 / (8 * 989e12 * 0.5))
    assert line.costs.kv_read == pytest.approx(32768 / (3.35e12 * 0.7))
    # 8.2 GB of weights at 70% of 3.35 TB/s, 2 ms of host time, 64 layers x 30 us.
    assert line.costs.overhead == pytest.approx(8.2e9 / 2.345e12 + 2e-3 + 1.92e-3)


def test_latent_cache_is_not_sharded():
    assert DEEPSEEK_V3.kv_bytes == 70_272
    one = roofline(H100_SXM, DEEPSEEK_V3, 16, MOE_TWO_NODES)
    assert one.kv_tokens == int((80e9 * 0.85 - 671e9 / 16) / 70_272)
    assert one.costs.kv_read == pytest.approx(70_272 / (3.35e12 * 0.7))


def test_published_footprint_of_deepseek():
    assert DEEPSEEK_V3_AS_PUBLISHED.kv_bytes * 16 * 4096 == pytest.approx(6.67e9)


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(InvalidValueError, match="use more GPUs"):
        roofline(H100_SXM, DEEPSEEK_V3, 8)


def test_efficiency_is_checked():
    with pytest.raises(InvalidValueError, match=r"efficiency\.compute=1\.5"):
        dataclasses.replace(MOE_TWO_NODES, compute=1.5)


def test_named_profiles():
    assert sorted(profiles()) == ["cpu-tiny", "h100-deepseek-v3-tp16", "h100-qwen3-32b-tp8"]
    assert profile_named("cpu-tiny").kv_tokens == 32_768
    with pytest.raises(InvalidValueError, match="choose one of cpu-tiny"):
        profile_named("tpu")


def test_a_mixture_reads_more_experts_the_more_tokens_there_are():
    costs = roofline(H100_SXM, DEEPSEEK_V3, 16, MOE_TWO_NODES).costs
    # 58 layers x 256 experts x 3 x 7168 x 2048 bytes over 16 GPUs at 70% of 3.35 TB/s.
    assert costs.experts == pytest.approx(654e9 / 16 / 2.345e12, rel=1e-3)
    one, many = (costs.iteration(0, 0, n, 0) - n * costs.sequence - costs.overhead for n in (1, 1000))
    assert one == pytest.approx(costs.experts * 8 / 256)
    assert many == pytest.approx(costs.experts)

"""`unpack bench`: its table, and the memory it reports against the bound that it states."""
import json

import pytest

# Narrow, so that it is quick, with heads enough for what grows with the pairs of positions to
# outweigh the rest.
SHAPE = json.dumps(
    {
        "model_type": "gpt2",
        "n_layer": 3,
        "n_head": 4,
        "n_embd": 32,
        "n_positions": 1024,
        "vocab_size": 512,
    }
)


def rows_of(length):
    return {row["name"]: row for row in length["rows"]}


def test_table_of_a_small_shape(unpack):
    result = unpack.json(
        "bench", "--shape", SHAPE, "--tokens", "8,16", "--repeat", "1", "--prompts", "2",
        "--threads", "2", "--device", "cpu"
    )
    assert result["gemm_gflops"] > 0 and result["read_gbytes"] > 0
    assert [length["tokens"] for length in result["lengths"]] == [8, 16]
    assert "2 prompts in a batch" in rows_of(result["lengths"][0])
    for length in result["lengths"]:
        rows = rows_of(length)
        for name in [
            "forward pass", "one-shot trace", "prepare", "rerooting", "another target",
            "another beta", "with weight products"
        ]:
            assert rows[name]["seconds"] > 0, name
        assert (
            rows["one-shot trace"]["gflop"]
            > rows["prepare"]["gflop"]
            > rows["forward pass"]["gflop"]
            > 0
        )
        assert rows["with weight products"]["gflop"] < rows["one-shot trace"]["gflop"]


@pytest.mark.parametrize("tokens", [64, 1024])
def test_peak_memory_stays_under_the_stated_bound(unpack, tokens):
    result = unpack.json(
        "bench", "--shape", SHAPE, "--tokens", tokens, "--repeat", "1", "--prompts", "0",
        "--threads", "2", "--device", "cpu"
    )
    length = result["lengths"][0]
    assert 0 < result["base_memory_mib"] <= length["peak_memory_mib"] <= length["memory_bound_mib"]
    if tokens == 1024:
        held = length["peak_memory_mib"] - result["base_memory_mib"]
        allowed = length["memory_bound_mib"] - result["base_memory_mib"]
        assert held > 0.5 * allowed, "the bound is so wide that it says nothing"


def test_a_longer_prompt_of_the_same_call_stays_under_its_own_bound(unpack):
    """What a shorter one left in the allocator once counted as its peak."""
    result = unpack.json(
        "bench", "--shape", SHAPE, "--tokens", "16,32", "--repeat", "1", "--prompts", "0",
        "--threads", "2", "--device", "cpu"
    )
    for length in result["lengths"]:
        assert 0 < length["peak_memory_mib"] <= length["memory_bound_mib"], length["tokens"]


def test_a_prompt_past_the_context_is_refused_before_anything_is_measured(unpack):
    assert "past the model's context of 1024" in unpack.fails(
        1, "bench", "--shape", SHAPE, "--tokens", "16,1025"
    )

# %% [markdown]
# # A metric of one's own
#
# `unpack` answers with plain arrays, so a new question is a few lines of numpy. Here: **how early
# is a prediction decided?** We measure the layer at which half of the direct credit has been
# written, compare it with what the layers would predict themselves, and ask how *concentrated* the
# token credit is.

# %%
import numpy as np

import unpack_engine as up

m = up.load("pocket-gpt2")
prompts = {
    "indirect object": ("Mary and John went to the store. John gave a drink to", " Mary"),
    "the other name": ("Mary and John went to the store. Mary gave a drink to", " John"),
    "frequent words": ("Once upon a time there was a", None),
}


# %% [markdown]
# ## The metric
# `importance` holds the direct credit of every writer, in canonical order; the layer is part of a
# writer's name.


# %%
def layer_of(writer: str) -> int:
    """-1 for the embeddings."""
    if writer in ("emb", "pos"):
        return -1
    return int(writer[3:]) if writer.startswith("MLP") else int(writer[1:].split(".")[0])


def half_way(result: up.Trace) -> int:
    """The first layer by whose end half of the absolute direct credit was written."""
    layers = np.array([layer_of(w) for w in result.writers])
    size = np.abs(np.array(list(result.importance.values())))
    by_layer = np.array([size[layers == layer].sum() for layer in range(-1, layers.max() + 1)])
    return int(np.searchsorted(np.cumsum(by_layer) / by_layer.sum(), 0.5)) - 1


def concentration(result: up.Trace) -> float:
    """How many tokens the credit comes from: 1 / sum of squared shares (the inverse Simpson
    index).
    """
    share = np.abs(result.token_credit) / np.abs(result.token_credit).sum()
    return float(1 / (share**2).sum())


# %% [markdown]
# ## On some prompts

# %%
rows = []
for name, (text, target) in prompts.items():
    result = m.trace(text, target=target, top_paths=0)
    lens = m.predict(text, lens=True, top=1).lens
    wanted = result.target["ids"][0]
    first_right = next(i for i, best in enumerate(lens) if best[0].id == wanted)
    rows.append(
        {
            "prompt": name,
            "target": result.target["text"],
            "probability": result.target["probability"],
            "half of the credit by layer": half_way(result),
            "lens right before layer": first_right,
            "effective tokens": concentration(result),
        }
    )

import pandas

pandas.DataFrame(rows).round(2)

# %% [markdown]
# ## How it depends on the method's floor
# A metric should not hang on a setting. `beta` is the floor of every denominator; a prepared prompt
# answers for any of its values without another forward pass.

# %%
p = m.prepare(prompts["indirect object"][0])
for beta in (0.5, 0.8, 1.0):
    result = p.trace(target=" Mary", versus=" John", beta=beta, top_paths=0)
    print(
        f"beta {beta}: half of the credit by layer {half_way(result)}, effective tokens"
        f" {concentration(result):.2f}"
    )

# %% [markdown]
# ## Against a baseline
# The same function on other attribution methods: results have one shape.

# %%
for method in ("unpack", "ifr", "attnlrp"):
    print(
        f"{method:>8}: effective tokens"
        f" {concentration(p.trace(target=' Mary', versus=' John', method=method)):.2f}"
    )

# %%
p.trace(target=" Mary", versus=" John", top_paths=8)

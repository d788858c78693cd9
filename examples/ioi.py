# %% [markdown]
# # Who gets the drink?
#
# *Mary and John went to the store. John gave a drink to* ... Mary. A small GPT-2 that comes with
# `unpack` solves this task. Here we ask it how: which tokens the answer comes from, through which
# heads, and whether these heads are really needed.

# %%
import unpack_engine as up

m = up.load("pocket-gpt2")
prompt = "Mary and John went to the store. John gave a drink to"
m.predict(prompt, top=5)

# %% [markdown]
# ## One prediction, explained
# A prompt is prepared once; every question after that is cheap. We ask what speaks for " Mary"
# against " John".

# %%
p = m.prepare(prompt)
r = p.trace(target=" Mary", versus=" John", top_paths=12)
r

# %% [markdown]
# The same as numbers. Credit can be negative: the first " John" speaks for the other name.

# %%
r.to_pandas("words").round(3)

# %%
r.to_pandas("paths")[["text", "credit", "percent"]].round(3)

# %% [markdown]
# ## The strongest head, and what feeds it
# The path at the top ends in a head that copies the name it attends to: a *name mover*. We look at
# it, and then ask where its queries, keys and values come from.

# %%
node_total = r.to_pandas("nodes").sum(axis=1)
heads = node_total[node_total.index.str.startswith("A")].sort_values(ascending=False)
mover = heads.index[0]
heads.head(5).round(3)

# %%
layer, head = (int(x) for x in mover[1:].split(".H"))
looks_at = p.cache["pattern", layer][head, -1]
[(t.text, round(float(a), 2)) for t, a in zip(p.tokens, looks_at) if a > 0.05]

# %%
inside = p.trace(root=f"{mover}@-1", top_paths=8)
for branch in "QKV":
    strongest = inside.composition[branch][:3]
    print(branch, [(x["component"], round(x["mass"], 3)) for x in strongest])

# %% [markdown]
# Only the routes through the queries: how the head knows which name to look for.

# %%
for path in p.trace(root=f"{mover}@-1", branch="Q", top_paths=6).paths:
    print(f"{path.credit:+.4f}  {path.text}")

# %% [markdown]
# ## Is it needed?
# Attribution is a claim about the model; an intervention tests it. We set the tokens' embeddings to
# zero one by one and compare the change of the logit difference with the credit.

# %%
import numpy as np

drop = []
for t in p.tokens:
    after = m.intervene(p.ids, zero=[t.position], target=" Mary", versus=" John")
    drop.append(after.clean["target"] - after.cut["target"])
for t, credit, d in zip(p.tokens, r.token_credit, drop):
    print(f"{t.text!r:>16} {credit:+.3f} {d:+.3f}")


# %%
def ranks(values):
    return np.argsort(np.argsort(values))


print(
    "rank correlation of credit and drop:"
    f" {np.corrcoef(ranks(r.token_credit), ranks(drop))[0, 1]:.2f}"
)

# %% [markdown]
# ## Many prompts
# The head is no accident of one sentence.

# %%
pairs = [("Mary", "John"), ("Kate", "David"), ("Alice", "Mark"), ("Martha", "Walter")]
prompts = [f"{io} and {s} went to the store. {s} gave a drink to" for io, s in pairs]
total = np.zeros(len(m.writers))
for one, (io, s) in zip(m.prepare_many(prompts), pairs):
    answer = one.trace(target=f" {io}", versus=f" {s}", top_paths=0)
    total += answer.node_array.sum(axis=1)
    print(f"{io:>8} over {s:<8} logit difference {answer.target['logit_difference']:+.2f}")
order = np.argsort(-np.abs(total))[:6]
[(m.writers[i], round(float(total[i] / len(pairs)), 3)) for i in order]

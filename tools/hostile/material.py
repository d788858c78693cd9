"""What hostile input is made of: values, requests, changed bytes, and how a case is made
smaller.
"""
import json

NUMBERS = [
    "0", "-0", "-1", "1", "1e400", "-1e400", "1e308", "1e-320", "NaN", "Infinity", "1.5",
    "18446744073709551614", "18446744073709551615", "9223372036854775808", "-9223372036854775809",
    "2147483648", "-2147483649", "9" * 400, "0x10", "1e", "+1", ".5", "00"
]
STRINGS = [
    "", " ", "x" * 5000, "\n", "\x1b[31m", "\u202e", "\u0000", "..", "/", "../../etc/passwd", "{}",
    "[]", "%s%n", "A0.H0@0", "MLP99@0", "emb@-1", "é" * 300, "\ud800", "a\tb", "-", "--", "--json",
    "null"
]
FIELDS = [
    "prompt", "ids", "id", "target", "target_id", "versus", "versus_id", "raw_logit", "position",
    "root", "reroot", "top_paths", "tau", "tau_rule", "branch", "through", "from", "min_layer",
    "sign", "beta", "weights", "mlp_weights", "dispatch", "mlp", "scores", "method", "no_bos",
    "format", "model", "unknown", "top", "lens", "query", "all", "cut", "channel", "edges", "zero",
    "patch_prompt", "patch_ids", "preset", "direction", "floor", "keys", "expert_weights", "chat",
    "system", "chat_template", "messages", "answer", "versus_answer", "group", "group_by",
    "target_ids", "versus_ids", "generate", "continuation", "documents", "question", "template",
    "document_template", "strongest", "sentences", "node", "neurons", "components", "ablate",
    "scale", "heads", "text", "experts"
]
DOCUMENTS = [
    ["A drink."],
    [{"name": "a", "text": "Mary gave it."}],
    [{"name": "\x1b", "text": ""}],
    [{"text": 1}],
    [""],
    [],
    {"a": "b"},
    ["x" * 3000],
    ["{question}"],
    [{"name": "a"}],
]
TEMPLATES = [
    "{{ messages[0].content }}",
    "{% for m in messages %}{{ m.role }}{% endfor %}",
    "{{ range(1000000000) }}",
    "{documents}{question}",
    "{question}",
    "{documents",
    "{nothing}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 1/0 }}",
]
WORDS = [
    "output", "target", "named", "entry", "K", "Q", "V", "G", "U", "positive", "negative",
    "aligned", "gate", "per-neuron", "linearized", "l2", "raw", "centered", "unpack", "ifr",
    "attnlrp", "cplrp", "json", "html", "svg", "tikz", "attention", "mlp", "A0.H0", "MLP0", "emb",
    "A1.H1@-1", " a"
]


def text_of(value):
    """JSON text, with the liberties that a hostile sender takes."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(json.dumps(k) + ":" + text_of(v) for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return json.dumps(value)


class Raw:
    """Text that goes into JSON as it is."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return f"Raw({self.text[:60]!r})"


DEEP = Raw("[" * 100_000 + "]" * 100_000)
TALKS = [
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ],
    [{}],
    [[]],
    ["Hi"],
    [{"role": "user"}],
    [{"role": 1, "content": None}],
    [{"role": "user", "content": "a" * 5000}] * 3,
    [{"role": "user", "content": DEEP}],
    {"messages": [{"role": "user", "content": "Hi"}], "further": DEEP},
    [{"role": "user", "content": Raw("[" * 62 + "]" * 62)}],
]


def value(rng, depth=0):
    kind = rng.randrange(9)
    if kind == 0:
        return Raw(rng.choice(NUMBERS))
    if kind == 1:
        return rng.choice(STRINGS)
    if kind in (2, 3):
        return rng.choice(WORDS)
    if kind == 4:
        return rng.choice([True, False, None])
    if kind == 5:
        return rng.randint(-3, 12)
    if kind == 6:
        return rng.choice([rng.random() * 3 - 1, 0.5, 1.0])
    if kind == 7 and depth < 3:
        return [value(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 3, 3, 3, 50]))]
    if kind == 8 and depth < 3:
        return {rng.choice(FIELDS): value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return Raw(
        rng.choice(
            [
                "[" * 100_000 + "]" * 100_000,
                "[" * 70 + "]" * 70,
                "{\"a\":" * 100 + "1" + "}" * 100,
                "[" + "{}," * 100_000 + "{}]",
                "1" * 400,
            ]
        )
    )


def fields(rng):
    """A request or a line: mostly sound, so that it gets far."""
    out = {}
    if rng.random() < 0.9:
        out.update(
            rng.choice(
                [
                    {"prompt": "Mary and John"},
                    {"ids": [3, 17, 5]},
                    {"prompt": value(rng)},
                    {"ids": value(rng)},
                ]
            )
        )
    for _ in range(rng.randrange(4)):
        name = rng.choice(FIELDS)
        out[name] = value(rng)
        if rng.random() < 0.7:  # sound, or nearly so
            sound = {
                "messages": TALKS,
                "documents": DOCUMENTS,
                "chat_template": TEMPLATES,
                "template": TEMPLATES,
                "document_template": TEMPLATES,
                "chat": [True],
                "preset": ["paper", "released", "best"],
                "direction": ["output", "read"],
                "keys": ["source", "spread"],
                "group_by": ["sentence", "line", "turn"],
                "group": ["a=0:1", "a=1:0", "=0:1", "a=-5:99"],
                "node": ["A0.H0@0", "MLP1@-1", "A9.H9@9"],
                "components": [["A0.H0"], ["MLP0", "MLP0"]],
                "heads": [["A0.H0"], []],
                "ablate": ["zero", "mean", "resample"],
                "neurons": [[0], [-1], [99999]],
                "answer": [" a drink"],
                "generate": [1, 3],
            }
            out[name] = rng.choice(sound.get(name, [out[name]]))
    if rng.random() < 0.05:  # a conversation as the text of a prompt
        out.update(
            {
                "prompt": text_of(rng.choice(TALKS)),
                "chat": True,
                "chat_template": "{{ messages[0].content }}",
            }
        )
    if rng.random() < 0.1:
        out.update({"question": "Who?", "documents": rng.choice(DOCUMENTS)})
        out.pop("prompt", None)
    return out


def mangle(rng, data):
    """Bytes with a few of them changed."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            data[at:at] = bytes(
                rng.choices(b'{}[]",:0123456789-+.eE\\u \x00\xff', k=rng.randint(1, 4))
            )
        elif kind == 1:
            del data[at : at + rng.choice([1, 2, 8, 64])]
        elif kind == 2 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 3:
            data[at:at] = data[rng.randrange(len(data) + 1) :][: rng.randint(1, 30)]
        else:
            data += bytes(rng.choices([0, 32, 10, 125], k=rng.randint(1, 9)))
    return bytes(data)


def smaller_bytes(data):
    size = len(data) // 2
    while size > 0:
        for at in range(0, len(data), size):
            yield data[:at] + data[at + size :]
        size //= 2


def smaller_dict(case):
    for key in list(case):
        yield {k: v for k, v in case.items() if k != key}
    for key, inner in case.items():
        if isinstance(inner, list) and inner:
            yield {**case, key: inner[: len(inner) // 2]}
        if isinstance(inner, Raw) and len(inner.text) > 40:
            yield {
                **case,
                key: Raw(inner.text[: len(inner.text) // 4] + inner.text[-len(inner.text) // 4 :]),
            }


def bend(rng, tree):
    """Changes a value somewhere in the tree."""
    for _ in range(rng.randint(1, 3)):
        at = tree
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(at[key], (dict, list)) and at[key] and rng.random() < 0.7:
                at = at[key]
                continue
            if rng.random() < 0.2 and isinstance(at, dict):
                del at[key]
            elif isinstance(at[key], int) and rng.random() < 0.5:
                at[key] = at[key] + rng.choice([-1, 1, 4, 1 << 31, 1 << 62, -(1 << 40)])
            else:
                at[key] = value(rng)
            break

"""Chat templates: statements and expressions put together at random, and the conversations that go
into them.
"""
import json

from hostile.material import TALKS, mangle, smaller_bytes, text_of, value
from hostile.rules import run_program


class ChatTemplates:
    """A template in a file, with a conversation on the command line."""

    NAMES = [
        "messages", "m", "m.role", "m['content']", "messages[0]", "messages[-1:]", "loop.index",
        "add_generation_prompt", "bos_token", "nothing", "ns.x", "messages[0].content", "f"
    ]
    CONSTANTS = [
        "0", "1", "-1", "9223372036854775807", "1e308", "1e999", "''", "'a'", "'%s%d'", "[]", "{}",
        "none", "true", "[1, [2]]", "'\\ud800'", "'\\x00'", "'é'", "99999999999999999999"
    ]
    FILTERS = [
        "upper", "trim", "length", "tojson", "tojson(indent=2000000000)", "list", "string", "int",
        "float", "default('x')", "join(',')", "sort", "unique", "first", "last", "batch(2)",
        "batch(0)", "indent(1000000000)", "replace('', 'ab')", "round(400)", "round(-400)", "items",
        "map('upper')", "select('odd')", "sum", "format(1)", "abs", "reverse", "dictsort",
        "attr('x')", "nosuch", "wordcount", "map('map', 'map')", "title", "max"
    ]
    TESTS = [
        "defined", "none", "string", "odd", "divisibleby(0)", "divisibleby(3)", "in(messages)",
        "sameas(none)", "nosuch", "mapping", "filter", "lt('a')"
    ]
    CALLS = [
        "range(3)", "range(1000000000)", "range(0, 10, 0)",
        "range(-9223372036854775808, 9223372036854775807)", "namespace(x=1)", "dict(a=1)",
        "raise_exception('no')", "strftime_now('%Y')", "strftime_now('%' * 1000)", "f(1)",
        "loop(messages)", "caller()", "'a'.join(messages)", "'x'.split('')",
        "'ab'.replace('', 'x' * 100000)", "m.items()", "'x'.center(1000000000)", "'{}'.format(1)",
        "''.zfill(1000000000)"
    ]
    OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "not in", "and", "or"]

    def expression(self, rng, depth=0):
        kind = rng.randrange(10 if depth < 3 else 3)
        inner = lambda: self.expression(rng, depth + 1)
        if kind <= 1:
            return rng.choice(self.NAMES)
        if kind == 2:
            return rng.choice(self.CONSTANTS)
        if kind == 3:
            return rng.choice(self.CALLS)
        if kind == 4:
            return f"{inner()} {rng.choice(self.OPERATORS)} {inner()}"
        if kind == 5:
            return f"({inner()}) | {rng.choice(self.FILTERS)}"
        if kind == 6:
            return f"{inner()} is {rng.choice(['', 'not '])}{rng.choice(self.TESTS)}"
        if kind == 7:
            return f"({inner()} if {inner()} else {inner()})"
        if kind == 8:
            whole = inner()
            places = [inner(), "::-1", "1:9223372036854775807", "-9223372036854775808:", "::0"]
            return f"({whole})[{rng.choice(places)}]"
        return f"[{inner()}, {inner()}] * {rng.choice(['2', '1000000000', '-1'])}"

    def block(self, rng, depth=0):
        kind = rng.randrange(9 if depth < 3 else 2)
        inner = lambda: "".join(self.block(rng, depth + 1) for _ in range(rng.randint(1, 2)))
        shown = self.expression(rng)
        if kind == 0:
            return rng.choice(
                [
                    "text ",
                    "\n",
                    "{# note #}",
                    "{{ '{{' }}",
                    "{%- raw %}{{ x }}{% endraw %}",
                    "\x00",
                    "é",
                    "{% break %}",
                ]
            )
        if kind == 1:
            return f"{{{{ {shown} }}}}"
        if kind == 2:
            return f"{{% if {shown} %}}{inner()}{{% else %}}{inner()}{{% endif %}}"
        if kind in (3, 4):
            return (
                "{% for m in"
                f" {rng.choice(['messages', shown])} {rng.choice(['', 'recursive', 'if ' + shown])}"
                f" %}}{inner()}{{%"
                " endfor %}"
            )
        if kind == 5:
            return f"{{% set {rng.choice(['f', 'ns.x', 'a, b', 'ns'])} = {shown} %}}"
        if kind == 6:
            return (
                f"{{% macro f(m, x={rng.choice(self.CONSTANTS)}) %}}{inner()}{{{{ f(m) }}}}{{%"
                f" endmacro %}}{{{{ f({shown}) }}}}"
            )
        if kind == 7:
            return f"{{% call(m) f({shown}) %}}{inner()}{{% endcall %}}"
        return f"{{% filter {rng.choice(self.FILTERS)} %}}{inner()}{{% endfilter %}}"

    def draw(self, rng):
        odd = rng.choice(
            [
                "(" * 20_000,
                "{% if 1 %}" * 20_000,
                "{{ " + "-" * 50_000 + "1 }}",
                "{{ " + "not " * 30_000 + "1 }}",
                "{% for a in [1,2,3,4] %}" * 30,
                "{{ [" * 10_000,
                "{{ 'a'" + "|upper" * 50_000 + " }}",
                "{{ 1" + " + 1" * 100_000 + " }}",
                "{{ a" + ".b" * 50_000 + " }}",
                "{% set a = 'x' * 1000 %}" + "{% set a = a ~ a %}" * 60 + "{{ a }}",
            ]
        )
        data = (
            "".join(self.block(rng) for _ in range(rng.randint(1, 4)))
            if rng.random() < 0.93
            else odd
        )
        data = data.encode("utf-8", "surrogatepass")
        talk = (
            [{"role": "user", "content": "Hi"}]
            if rng.random() < 0.8
            else rng.choice(TALKS) if rng.random() < 0.6 else value(rng)
        )
        return {
            "template": mangle(rng, data) if rng.random() < 0.15 else data,
            "talk": text_of(talk)[:400_000],
        }

    def run(self, case, place):
        (place / "t.jinja").write_bytes(case["template"])
        (place / "talk.json").write_bytes(case["talk"].encode("utf-8", "surrogatepass"))
        return run_program(
            [
                "predict", "--messages", place / "talk.json", "--chat-template", place / "t.jinja",
                "--json", "-"
            ],
            results=["-"],
        )

    def smaller(self, case):
        if case["talk"] != (plain := json.dumps([{"role": "user", "content": "Hi"}])):
            yield {**case, "talk": plain}
        for data in smaller_bytes(case["template"]):
            yield {**case, "template": data}

"""The Answer tab's documents: what every sentence of an answer came from."""
import csv
import io

from asking import MARY, why
from test_exports import save

DOCUMENTS = (
    "# park\nTom went to the park. He saw a dog.\n\nMary and John went to the store. John gave a"
    " drink to Mary."
)
QUESTION, ANSWER = "Who got the drink?", "Mary got it. Tom saw a dog."


def credits(page):
    return page.js(
        "return [...document.querySelectorAll('.source')].map((e) => Number(e.dataset.credit))"
    )


def test_a_sentence_of_the_answer_lights_up_its_sources(page, server, downloaded):
    page.open(why(tab="answer"))
    page.click("#by-documents")
    assert page.js("return document.querySelector('#find-sources').disabled"), "nothing to ask yet"
    page.js(
        """
        const put = (id, text) => {
          const e = document.getElementById(id);
          e.value = text;
          e.dispatchEvent(new Event('input', {bubbles: true})); };
        put('documents', arguments[0]);
        put('source-question', arguments[1]);
        put('source-answer', arguments[2])""",
        DOCUMENTS,
        QUESTION,
        ANSWER,
    )
    page.wait(lambda: not page.js("return document.querySelector('#find-sources').disabled"))
    # Before it is asked the page says what it will take.
    page.wait(lambda: "about" in page.text("#sources-cost"))
    documents = [
        {"name": "park", "text": "Tom went to the park. He saw a dog."},
        {
            "name": "document 2",
            "text": "Mary and John went to the store. John gave a drink to Mary.",
        },
    ]
    assert (
        page.text("#sources-cost").split(":")[0]
        == server.ok("cost", question=QUESTION, answer=ANSWER, documents=documents)["text"].split(
            ":"
        )[0]
    )
    assert not page.all(".answer-sentence")
    page.js("document.querySelector('#find-sources').click()")
    page.wait(lambda: page.texts(".answer-sentence") == ["Mary got it.", "Tom saw a dog."])
    assert not page.all("#sources-cost"), "it was asked"
    want = server.ok(
        "sources",
        question=QUESTION,
        answer=ANSWER,
        documents=[
            {"name": "park", "text": "Tom went to the park. He saw a dog."},
            {
                "name": "document 2",
                "text": "Mary and John went to the store. John gave a drink to Mary.",
            },
        ],
    )
    for index in (0, 1):
        page.js("document.querySelectorAll('.answer-sentence')[arguments[0]].click()", index)
        expected = [
            part["credit"]
            for document in want["sentences"][index]["documents"]
            for part in document["sentences"]
        ]
        page.wait(
            lambda: page.all(".answer-sentence")[index].get_attribute("aria-pressed") == "true"
        )
        assert [round(x, 6) for x in credits(page)] == [round(x, 6) for x in expected] and len(
            expected
        ) == 4
        strongest = max(range(4), key=lambda i: abs(expected[i]))
        shades = page.js(
            "return [...document.querySelectorAll('.source')].map((e) =>"
            " parseInt(/(\\d+)%/.exec(e.style.background)[1]))"
        )
        assert shades[strongest] == max(shades) == 72
    assert [text.split(" ")[0] for text in page.texts(".document h3")] == ["park", "document"]
    page.shot("sources")
    name, content = save(page, downloaded, "csv")
    table = list(csv.reader(io.StringIO(content.decode("utf-8-sig"))))
    assert name.endswith("-sources.csv") and len(table) == 5 and {len(row) for row in table} == {4}
    # A link shows the same; the tokens are one click away.
    seen = credits(page)
    page.open(page.js("return location.hash"))
    page.wait(lambda: credits(page) == seen)
    page.click("#by-tokens")
    page.wait(lambda: page.all(".output .chip"))
    assert page.hash().startswith("#prompt=" + MARY[:4])


def test_what_is_wrong_with_documents_is_said(page):
    page.open(why(tab="answer", question="Who?", documents="word " * 700))
    page.wait(lambda: "token" in page.text(".problem"))
    page.driver.get_log("browser")  # the refused request itself is logged by the browser

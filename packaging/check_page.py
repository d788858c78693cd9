#!/usr/bin/env python3
"""check_page.py PROGRAM: starts `PROGRAM serve` on a free port, asks it for the page, the models
and a trace, and ends it as Ctrl-C does. check_page.py --at URL: the same questions to a server that
runs. With the standard library alone, in whatever system the package is tried."""
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request


def ask(url):
    for _ in range(100):
        try:
            page = urllib.request.urlopen(url + "/").read()
            break
        except OSError:
            time.sleep(0.2)
    else:
        sys.exit(f"page: nobody answers at {url}")
    assert b"<html" in page.lower() and b"Preact, Copyright" in page, "no page with its notices"
    models = [
        model["name"] for model in json.load(urllib.request.urlopen(url + "/api/models"))["models"]
    ]
    assert "pocket-gpt2" in models, models
    question = {
        "model": "pocket-gpt2",
        "prompt": "Mary and John went to the store. John gave a drink to",
        "target": " Mary",
        "versus": " John",
    }
    request = urllib.request.Request(
        url + "/api/trace", json.dumps(question).encode(), {"Content-Type": "application/json"}
    )
    credit = json.load(urllib.request.urlopen(request))["token_credit"]
    assert credit and credit[0] > 0, credit
    print(f"page: served, {len(page)} bytes, with {len(models)} models; a trace is answered")


def main():
    if sys.argv[1] == "--at":
        return ask(sys.argv[2])
    server = subprocess.Popen(
        [sys.argv[1], "serve", "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        line = server.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        ask(found.group().rstrip("/"))
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)
    return None


if __name__ == "__main__":
    main()

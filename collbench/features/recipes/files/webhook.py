#!/usr/bin/env python3
"""collbench recipe: posts a verdict to a webhook.

    export COLLBENCH_WEBHOOK_URL=https://hooks.slack.com/services/...
    collbench health --on-unhealthy ./webhook.py

Reads the verdict as JSON on standard input. Where it is "unhealthy" it posts {"text": ...}, which
Slack, Mattermost, Rocket.Chat and Google Chat take; with --teams an adaptive card, for a workflow
of Microsoft Teams; with --json the verdict itself. The address is read from the environment, as it
is a secret. A verdict on a planted fault is posted, too, and says so: so an alert is tested.
Needs Python 3.9.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import urllib.request
from typing import Any

FINDINGS = 10  # of which a message speaks


def main() -> int:
    """Post the verdict; 0 where that was done, or there was nothing to post."""
    parser = argparse.ArgumentParser(description="Post a verdict to $COLLBENCH_WEBHOOK_URL.")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--teams", action="store_true", help="as an adaptive card")
    form.add_argument("--json", action="store_true", help="as it is")
    options = parser.parse_args()
    url = os.environ.get("COLLBENCH_WEBHOOK_URL", "")
    if not url.startswith(("https://", "http://")):
        fault = "does not begin with https:// or http://" if url else "is not set"
        print(f"webhook: COLLBENCH_WEBHOOK_URL {fault}", file=sys.stderr)
        return 2
    try:
        verdict = json.load(sys.stdin)
        if verdict["schema"] != 1:
            raise ValueError("a verdict of another version")
        if verdict["state"] != "unhealthy":
            return 0
        message = describe(verdict)
    except (ValueError, KeyError, TypeError) as error:
        print(f"webhook: this is no verdict of collbench: {error!r}", file=sys.stderr)
        return 2
    return post(url, verdict if options.json else card(message) if options.teams else chat(message))


def describe(verdict: dict[str, Any]) -> list[str]:
    """The lines of a message: the verdict, then its findings but for hints."""
    mark = f"TEST, fault injected ({verdict['injected']}): " if verdict["injected"] else ""
    hosts = ", ".join(verdict["hosts"][:3]) + (" ..." if len(verdict["hosts"]) > 3 else "")
    ended = f" (runs until {verdict['ended']})" if verdict.get("ended") else ""
    lines = [f"{mark}collbench ({hosts}): {verdict['state']}: {verdict['summary']}{ended}"]
    found = [finding for finding in verdict["findings"] if finding["severity"] != "hint"]
    for finding in found[:FINDINGS]:
        subject = finding["subject"]["name"]
        lines.append(f"{finding['severity']}: {subject}: {finding['what']} ({finding['advice']})")
    if len(found) > FINDINGS:
        lines.append(f"and {len(found) - FINDINGS} more findings")
    return lines


def chat(lines: list[str]) -> dict[str, Any]:
    """A message, in which no name is a link or calls people: after an @ stands a space."""
    text = "\n".join(lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = text.replace("@", "@ ")
    return {"text": text}


def card(lines: list[str]) -> dict[str, Any]:
    """An adaptive card, a block of text for each line."""
    blocks = [{"type": "TextBlock", "text": line, "wrap": True} for line in lines]
    content = {"type": "AdaptiveCard", "version": "1.4", "body": blocks}
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": content}]}


def post(url: str, body: dict[str, Any]) -> int:
    """Post JSON. The address is a secret, and not printed."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20):
            return 0
    except (OSError, ValueError, http.client.HTTPException) as error:
        code = getattr(error, "code", "")
        why = f"it answered {code}" if code else f"it cannot be reached ({type(error).__name__})"
        print(f"webhook: not posted: {why}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""What Ant's schema of JUnit's XML wants, and Jenkins' bears: elements in order, attributes that
must be there, and of which type."""

from __future__ import annotations

import re
from xml.etree import ElementTree

WHOLE, DECIMAL, ANY = r"\d+", r"\d+(\.\d+)?", r"(?s).*"
TOKEN = r"\S(.*\S)?"
ATTRIBUTES = {
    "testsuites": {},
    "testsuite": {
        **dict.fromkeys(("name", "hostname", "package"), TOKEN),
        **dict.fromkeys(("id", "tests", "failures", "errors", "skipped"), WHOLE),
        "timestamp": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d",
        "time": DECIMAL,
    },
    "properties": {},
    "property": {"name": TOKEN, "value": ANY},
    "testcase": {"name": TOKEN, "classname": TOKEN, "time": DECIMAL},
    "failure": {"message": ANY, "type": TOKEN},
    "error": {"message": ANY, "type": TOKEN},
    "system-out": {},
    "system-err": {},
}
CHILDREN = {  # of an element, in order, as an expression over "name,name,"
    "testsuites": r"(testsuite,)*",
    "testsuite": r"properties,(testcase,)*system-out,system-err,",
    "properties": r"(property,)*",
    "testcase": r"((skipped|error|failure),)?",
}


def faults(text: str) -> list[str]:
    """What breaks the schema, in words; empty where nothing does."""
    found = []
    root = ElementTree.fromstring(text)
    if root.tag != "testsuites":
        found.append(f"root {root.tag}")
    for element in root.iter():
        inside = "".join(f"{child.tag}," for child in element)
        if not re.fullmatch(CHILDREN.get(element.tag, ""), inside):
            found.append(f"{element.tag} holds {inside}")
        wanted = ATTRIBUTES.get(element.tag, {})
        found += [f"{element.tag} lacks {name}" for name in wanted.keys() - element.keys()]
        if element.tag != "skipped":
            found += [f"{element.tag} has {name}" for name in element.keys() - wanted.keys()]
        for name in wanted.keys() & element.keys():
            if not re.fullmatch(wanted[name], element.get(name, "")):
                found.append(f"{element.tag} {name}={element.get(name)!r}")
    return found

"""A fleet as a document: odd nodes, nodes without a verdict, groups, racks, and a map of heat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from collbench.core.text import format_count, plain_line
from collbench.features.health.findings import (
    Checked,
    Evidence,
    Finding,
    Outcome,
    Severity,
    State,
    Subject,
    Verdict,
)
from collbench.features.health.fleet.judgement import (
    ALL,
    CHANCE,
    CRITICAL,
    FEWEST,
    Fleet,
    Group,
    Node,
    natural_key,
)
from collbench.features.health.fleet.reading import WATCHED, NodeRun
from collbench.features.health.night import list_several
from collbench.features.health.views import health
from collbench.records import stats
from collbench.show.document import (
    Column,
    Figure,
    Gauge,
    Judgement,
    Line,
    Section,
    Table,
    make_columns,
)
from collbench.show.figure_style import escape_plotly, join_hover, round_finite
from collbench.show.words import format_signed
from collbench.suite.case_words import describe_case

SHOWN = 3  # rows in the evidence of a finding, and reasons in a note

LISTED = 200  # lines of a table

WIDEST = 40  # cells of a rack beside each other

HOT = 0.10  # the least that the colours of the map span, so that little never looks like much

SCALE = [[0.0, "#3b82c4"], [0.5, "#c9ced4"], [0.75, "#e8a33d"], [1.0, "#b3261e"]]

ONE_BLOCK = "all nodes"

NOT_VERIFIED = "not verified"  # the state of a node of whose data nobody compared an element

TROUBLES = {  # what is said of nodes apart, in the order in which they are named
    "missing": "gave no run",
    "running": "is still running",
    "unfinished": "did not finish",
    "unreadable": "cannot be read",
    "disturbed": "was disturbed",
    "few like it": "has too few nodes like it",
    "unlike rows": "measured other rows",
    "scatter": "is of nodes that scatter too much",
    "another night": "is of another night",
    "not measured": "was not measured",
    "not of one node": "is not of one node",
}


def make_verdict(fleet: Fleet, max_missing: int = 0) -> Verdict:
    """The fleet's verdict, as of a night: unhealthy where a node is odd, unsound or has wrong data;
    healthy only where all but ``max_missing`` nodes have a verdict and verified data."""
    findings = [
        *map(_find_wrong, fleet.wrong_nodes),
        *map(_find_wrong_unnamed, fleet.wrong_unnamed),
        *(finding for node in fleet.unsound_nodes for finding in node.findings),
        *(_find_slow(fleet, node) for node in fleet.odd),
        *(finding for group in fleet.groups if (finding := _find_unlike(group, fleet.groups[0]))),
        *(_find_levels(group) for group in fleet.groups if group.levels),
    ]
    ranks: tuple[Severity, ...] = ("critical", "warning", "hint")
    findings.sort(key=lambda finding: ranks.index(finding.severity))
    unverified = {node.host for node in fleet.unverified}
    lacking = len(fleet.apart) + len(fleet.unnamed) + len(unverified)
    grave = [finding for finding in findings if finding.severity != "hint"]
    state: State = (
        "unhealthy"
        if grave
        else "no verdict"
        if lacking > max_missing or not fleet.judged
        else "healthy"
    )
    return Verdict(
        state=state,
        summary=plain_line(_summarise(fleet, state)),
        findings=findings,
        checks=_list_checks(fleet),
        runs=fleet.runs,
        injected=fleet.injected,
        fake=fleet.fake,
        hosts=[node.host for node in fleet.nodes],
        judged_hosts=[node.host for node in fleet.judged if node.host not in unverified],
        ended=fleet.ended,
        night=fleet.night,
    )


def _summarise(fleet: Fleet, state: State) -> str:
    odd = fleet.odd
    total = len(fleet.nodes) + len(fleet.unnamed)
    judged = f"{len(fleet.judged):,} of {format_count(total, 'node')} judged"
    parts = []
    if wrong := fleet.wrong_nodes:
        parts.append(f"wrong data on {list_several(node.host for node in wrong)}")
    if runs := fleet.wrong_unnamed:
        parts.append(f"wrong data in {list_several(map(_name_run, runs))}, not of one node")
    if odd:
        names = list_several(f"{node.host} ({format_signed(node.worst[1])})" for node in odd)
        parts.append(f"{format_count(len(odd), 'odd node')}: {names}")
    if unsound := fleet.unsound_nodes:
        names = list_several(f"{node.host} ({_name_checks(node)})" for node in unsound)
        parts.append(f"{format_count(len(unsound), 'unsound node')}: {names}")
    lacking = [*describe_apart(fleet), *_describe_unverified(fleet)]
    if state == "no verdict":
        none = "none odd" if fleet.judged else "nobody can be called odd"
        return "; ".join([*(lacking or ["no node has a run"]), f"{judged}, {none}"])
    return "; ".join([*(parts or [f"{judged}, none odd"]), *([judged] * bool(parts)), *lacking])


def _name_checks(node: Node) -> str:
    """The checks that found something at a node."""
    return ", ".join(dict.fromkeys(finding.check for finding in node.findings))


def describe_apart(fleet: Fleet) -> list[str]:
    """A phrase for each trouble that keeps nodes from a verdict, with their names."""
    names: dict[str, list[str]] = {}
    for node in fleet.apart:
        names.setdefault(node.trouble or "unlike rows", []).append(node.host)
    for run in fleet.unnamed:
        names.setdefault(run.trouble or "not of one node", []).append(_name_run(run))
    ordered = sorted(names.items(), key=lambda item: [*TROUBLES, item[0]].index(item[0]))
    return [
        f"{format_count(len(members), 'node')} without a verdict ({trouble}):"
        f" {list_several(members)}"
        for trouble, members in ordered
    ]


def _name_run(run: NodeRun) -> str:
    return run.run or run.path


def _describe_unverified(fleet: Fleet) -> list[str]:
    """A phrase for nodes of whose data nobody compared an element; none where there are none."""
    nodes = fleet.unverified
    if not nodes:
        return []
    count = format_count(len(nodes), "node")
    return [f"{count} whose data nobody verified: {list_several(node.host for node in nodes)}"]


def _find_slow(fleet: Fleet, node: Node) -> Finding:
    part, delta, chance = node.worst
    members = fleet.parts[part]
    rows = {name: node.rows[name] for name in members if name in node.rows}
    where = f"in {format_count(len(rows), 'row')}" if part == ALL else f"in {part}"
    if part != ALL:
        where += f" ({format_count(len(rows), 'row')})"
    group = next(group for group in fleet.groups if group.digest == node.digest)
    like = format_count(sum(n.deviation is not None for n in group.nodes) - 1, "node")
    rest = node.deviations[ALL]
    also = f"; {format_signed(rest)} in all rows" if part != ALL else ""
    worst = sorted(rows.items(), key=lambda item: -item[1])[:SHOWN]
    return Finding(
        check="fleet",
        severity="critical" if delta >= CRITICAL else "warning",
        subject=Subject("host", node.host),
        what=f"is {delta:.1%} slower than the median of {like} like it {where}{also}",
        advice=(
            f"take a second run of {node.host}; if it is slow again, look at its clocks, cooling,"
            " memory and what else runs there, or take it out of service"
        ),
        # by one run some are odd by chance where a fleet's slow side is skewed
        sure=1 - chance if delta >= CRITICAL or len(node.runs) > 1 else None,
        evidence=[
            Evidence(
                what=describe_case(fleet.cases[name]),
                value=f"{format_signed(value)} against the median of like nodes",
                run=node.runs[-1] if node.runs else "",
                case=fleet.cases[name].key,
            )
            for name, value in worst
        ],
    )


def _find_wrong(node: Node) -> Finding:
    return Finding(
        check="data",
        severity="critical",
        subject=Subject("host", node.host),
        what=_describe_wrong(sum(node.wrong_runs.values()), node.wrong_cases),
        advice="take the host out of service: memory, GPU or link corrupts data",
        sure=1.0,
        alone=True,
        evidence=[
            Evidence(what="wrong elements", value=wrong, expected=0, run=run)
            for run, wrong in [*node.wrong_runs.items()][:SHOWN]
        ],
    )


def _find_wrong_unnamed(run: NodeRun) -> Finding:
    """Wrong data in a run that is of no one node: it is known of no host that it is to blame."""
    return Finding(
        check="data",
        severity="critical",
        subject=Subject("cluster", _name_run(run)),
        what=f"{_describe_wrong(run.wrong, run.wrong_cases)}; {run.why}",
        advice="give this run to collbench health without --fleet: it names the rank",
        sure=1.0,
        evidence=[Evidence(what="wrong elements", value=run.wrong, expected=0, run=run.run)],
    )


def _describe_wrong(elements: int, cases: Sequence[str]) -> str:
    count = format_count(elements, "element")
    return f"received wrong data: {count} in {list_several(dict.fromkeys(cases))}"


def _find_unlike(group: Group, largest: Group) -> Finding | None:
    """A hint that some nodes are unlike the most."""
    if group is largest or not group.unlike:
        return None
    names = list_several(node.host for node in group.nodes)
    return Finding(
        check="alike",
        severity="hint",
        subject=Subject("host" if len(group.nodes) == 1 else "cluster", names),
        what=(
            f"{'is' if len(group.nodes) == 1 else 'are'} unlike the"
            f" {len(largest.nodes):,} nodes of the largest group: {group.unlike}"
        ),
        advice="bring them to one state, or expect their speed to differ: they are compared apart",
        sure=1.0,
    )


def _find_levels(group: Group) -> Finding:
    low, high = group.levels or (0.0, 0.0)
    return Finding(
        check="fleet",
        severity="hint",
        subject=Subject("cluster", format_count(len(group.nodes), "like node")),
        what=(
            f"gather around two times, {format_signed(low)} and {format_signed(high)} of their"
            " median, and nothing that is recorded tells them apart"
        ),
        advice="look for what half of the nodes have: cooling, a firmware, a switch, a neighbour",
    )


def _list_checks(fleet: Fleet) -> list[Checked]:
    odd = fleet.odd
    judged = [group for group in fleet.groups if group.limit is not None and not group.why]
    if judged:
        limit = max(group.limit or 0.0 for group in judged)
        note = (
            f"{format_count(len(fleet.judged), 'node')} in {format_count(len(judged), 'group')} of"
            f" like nodes; detection threshold: {limit:.1%} slower in all rows, with a chance of"
            f" {CHANCE:g} that any node of a healthy fleet is marked"
        )
        checks = [Checked("fleet", "found" if odd else "passed", note)]
    else:
        why = next((group.why for group in fleet.groups if group.why), "no usable run")
        checks = [Checked("fleet", "no data", f"{why}; at least {FEWEST} like nodes are needed")]
    checks.append(_check_data(fleet))
    checks += [_check_completeness(fleet), *(_check_nodes(fleet, name) for name in WATCHED)]
    if fleet.groups:
        sizes = ", ".join(f"{len(group.nodes):,}" for group in fleet.groups[:10])
        alike = f"{format_count(len(fleet.groups), 'group')} of like nodes, of {sizes}"
        several = len(fleet.groups) > 1
        checks.append(Checked("alike", "found" if several else "passed", alike))
    return checks


def _has_found(fleet: Fleet, check: str) -> bool:
    return any(finding.check == check for node in fleet.unsound_nodes for finding in node.findings)


def _check_completeness(fleet: Fleet) -> Checked:
    """Whether every node has a verdict, and no case broke."""
    apart = "; ".join(describe_apart(fleet))
    found = _has_found(fleet, "completeness")
    return Checked(
        "completeness",
        "found" if found else "no data" if apart else "passed",
        apart or ("cases failed" if found else "every node has a verdict"),
    )


def _check_nodes(fleet: Fleet, check: str) -> Checked:
    """Of how many nodes a check saw something, and why nothing of others; not applicable where it
    is idle at all of them."""
    nodes = [node for node in fleet.nodes if node.runs]
    blind = [node.blind[check] for node in nodes if check in node.blind]
    observed = len(nodes) - len(blind)
    notes = [f"{format_count(observed, 'node')} looked at"] * bool(observed)
    reasons = Counter(reason.why for reason in blind).most_common(SHOWN)
    notes += [f"{format_count(count, 'node')}: {why}" for why, count in reasons]
    unfound: Outcome = (
        "passed"
        if observed
        else "not applicable"
        if blind and all(reason.idle for reason in blind)
        else "no data"
    )
    return Checked(
        check,
        "found" if _has_found(fleet, check) else unfound,
        plain_line("; ".join(notes)) or "no usable run",
    )


def _check_data(fleet: Fleet) -> Checked:
    """Whether data were right: passed only where those of every judged node were verified."""
    compared = f"{fleet.checked:,} elements compared bit for bit"
    notes = [compared if fleet.checked else "nothing verified yet", *_describe_unverified(fleet)]
    wrong = bool(fleet.wrong_nodes or fleet.wrong_unnamed)
    lacking = not fleet.checked or fleet.unverified
    return Checked(
        "data", "found" if wrong else "no data" if lacking else "passed", "; ".join(notes)
    )


def make_document(fleet: Fleet, verdict: Verdict) -> Judgement:
    """The page: findings, the map, nodes apart, racks and groups, checks."""
    page = health.make_document(verdict)
    fleet_sections = [*_map_sections(fleet), *_table_sections(fleet)]
    findings, checks, *rest = page.sections
    tables = [table for table in checks.tables if table.name != "grid"]
    checks = msgspec.structs.replace(checks, tables=tables)
    brief = [*page.brief]
    racks = _racks_table(fleet)
    if racks and len(racks.lines) <= LISTED // 4:
        brief += ["", racks]
    elif racks:
        brief += ["", msgspec.structs.replace(racks, lines=racks.lines[:10])]
    return msgspec.structs.replace(
        page,
        title=f"Fleet of {format_count(len(fleet.nodes), 'node')}",
        sections=[findings, *fleet_sections, checks, *rest],
        runs=[_describe_runs(fleet)],
        data=_list_nodes(fleet),
        brief=brief,
        values={**page.values, "fleet": flatten_fleet(fleet)},
        gauges=[*page.gauges, *list_gauges(fleet)],
        suite=f"collbench {health.describe_mark(verdict)}health --fleet",
    )


def _describe_runs(fleet: Fleet) -> str:
    night = f" of the night {fleet.night}" if fleet.night else ""
    rows = f", {format_count(len(fleet.cases), 'row')}" if fleet.cases else ""
    nodes = format_count(len(fleet.nodes), "node")
    return plain_line(f"{format_count(len(fleet.runs), 'run')} of {nodes}{night}{rows}")


class _Cell(NamedTuple):
    """A node's place on the map."""

    node: Node
    x: int
    y: int


def _place_nodes(fleet: Fleet) -> tuple[list[_Cell], list[str]]:
    """A cell for each node, and a label for each line of the map: racks, each in lines of at most
    WIDEST nodes; without racks one block, about as wide as it is high."""
    racks: dict[str, list[Node]] = {}
    for node in fleet.nodes:
        racks.setdefault(node.rack or ONE_BLOCK, []).append(node)
    widest = WIDEST
    if len(racks) == 1:
        widest = max(8, min(WIDEST, round((2 * len(fleet.nodes)) ** 0.5)))
    cells: list[_Cell] = []
    labels: list[str] = []
    for rack, nodes in sorted(racks.items(), key=lambda item: natural_key(item[0])):
        for begin in range(0, len(nodes), widest):
            line = nodes[begin : begin + widest]
            cells += [_Cell(node, x, len(labels)) for x, node in enumerate(line)]
            if len(racks) == 1:  # of one block, lines are named by their first node
                labels.append(line[0].host)
            else:
                labels.append(rack if not begin else f"{rack} ({begin // widest + 1})")
    return cells, labels


def _hover_lines(node: Node) -> list[str]:
    if node.deviation is None:
        return [node.host, f"no verdict: {node.trouble}", node.why]
    lines = [node.host, f"{format_signed(node.deviation)} in all rows"]
    lines += [
        f"{format_signed(node.deviations[part])} in {part}: odd"
        for part, _ in node.odd[:3]
        if part != ALL
    ]
    return [*lines, "odd" if node.odd else "not odd"]


def _map_sections(fleet: Fleet) -> list[Section]:
    """The map of heat: a cell for each node, coloured by its deviation; odd nodes have a cross, and
    nodes without a verdict a circle."""
    if not fleet.nodes:
        return []
    cells, labels = _place_nodes(fleet)
    width = max(cell.x for cell in cells) + 1
    heat: list[list[float | None]] = [[None] * width for _ in labels]
    text = [[""] * width for _ in labels]
    for cell in cells:
        heat[cell.y][cell.x] = round_finite(cell.node.deviation, 4)
        text[cell.y][cell.x] = join_hover(_hover_lines(cell.node))
    most = max([HOT, *(2 * (group.limit or 0.0) for group in fleet.groups if not group.why)])
    ticks = [-most, -most / 2, 0.0, most / 2, most]
    trace = {
        "type": "heatmap",
        "z": heat,
        "text": text,
        "meta": {},
        "hovertemplate": "%{text}<extra></extra>",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
        "zmin": round_finite(-most, 4),
        "zmax": round_finite(most, 4),
        "colorscale": [list(stop) for stop in SCALE],
        "showscale": True,
        "colorbar": {
            "title": {"text": "slower"},
            "tickvals": [round_finite(tick, 4) for tick in ticks],
            "ticktext": [*map(format_signed, ticks[:-1]), f"{format_signed(most)} or more"],
            "thickness": 12,
            "len": 1.0,
        },
    }
    odd = [cell for cell in cells if cell.node.odd]
    apart = [cell for cell in cells if cell.node.deviation is None]
    wrong = [cell for cell in cells if cell.node.wrong_cases]
    marks = [
        _draw_marks("odd", "x-thin", "#000000", odd),
        _draw_marks("no verdict", "circle-open", "#7a8793", apart),
        _draw_marks("wrong data", "square-open", "#8e2f9e", wrong),
    ]
    several = any(node.rack for node in fleet.nodes)
    caption = (
        "A cell is a node, its colour how much slower (or faster) than the median of like nodes it"
        f" is in all rows. Crosses: {list_several([c.node.host for c in odd], 10) or 'none'} odd."
        f" Circles: {format_count(len(apart), 'node')} without a verdict."
    )
    figure = Figure(
        name="racks",
        title="Nodes by rack" if several else "Nodes, in the order of their names",
        caption=caption,
        data=[trace, *(mark for mark in marks if mark["x"])],
        layout=_make_layout(width, labels, several),
        height=180 + max(8, min(18, 1800 // len(labels))) * len(labels),
    )
    return [Section(name="map", title="Racks", sentences=[], figures=[figure])]


def _make_layout(width: int, labels: Sequence[str], several: bool) -> dict[str, Any]:
    """The map's axes: places in a line, and lines from above."""
    return {
        "xaxis": {
            "title": {"text": "place in the rack" if several else "place in the line"},
            "range": [-0.5, width - 0.5],
            "dtick": max(1, width // 8),
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {
            "tickvals": list(range(len(labels))),
            "ticktext": [escape_plotly(label) for label in labels],
            "range": [len(labels) - 0.5, -0.5],
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
        },
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
    }


def _draw_marks(name: str, symbol: str, colour: str, cells: Sequence[_Cell]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "meta": {},
        "x": [cell.x for cell in cells],
        "y": [cell.y for cell in cells],
        "text": [join_hover(_hover_lines(cell.node)) for cell in cells],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": symbol, "size": 9, "color": colour, "line": {"width": 2}},
    }


def _table_sections(fleet: Fleet) -> list[Section]:
    tables = [
        table for table in (_apart_table(fleet), _racks_table(fleet), _groups_table(fleet)) if table
    ]
    tables.append(_nodes_table(fleet))
    return [Section(name="nodes", title="Nodes", sentences=[], tables=tables)]


def _apart_table(fleet: Fleet) -> Table | None:
    """Nodes without a verdict, and why; runs whose node is not known."""
    lines = [
        Line((node.host, node.rack, node.trouble, plain_line(node.why)), {}, "notice")
        for node in fleet.apart
    ]
    lines += [
        Line(
            (node.host, node.rack, NOT_VERIFIED, "no element of its data was compared"),
            {},
            "notice",
        )
        for node in fleet.unverified
    ]
    lines += [
        Line((_name_run(run), "", run.trouble, run.why), {}, "notice") for run in fleet.unnamed
    ]
    if not lines:
        return None
    columns = (
        Column("node", "wrap"),
        Column("rack", "left"),
        Column("why", "left"),
        Column("in full", "wrap", dim=True),
    )
    return Table(
        name="apart",
        title="Without a verdict",
        columns=columns,
        lines=lines[:LISTED],
        note=_note_cut(len(lines)) or "Their times say nothing about them, and count nowhere.",
        carded=True,
    )


def _note_cut(count: int) -> str:
    return f"The first {LISTED:,} of {count:,}; all are in the data." if count > LISTED else ""


def list_racks(fleet: Fleet) -> dict[str, list[Node]]:
    """Nodes by rack, where racks are known."""
    racks: dict[str, list[Node]] = {}
    for node in fleet.nodes:
        if node.rack:
            racks.setdefault(node.rack, []).append(node)
    return dict(sorted(racks.items(), key=lambda item: natural_key(item[0])))


def _racks_table(fleet: Fleet) -> Table | None:
    """The racks, those with odd nodes first, then by their median."""
    lines = []
    for rack, nodes in list_racks(fleet).items():
        known = [node for node in nodes if node.deviation is not None]
        odd = [node for node in nodes if node.odd]
        middle = stats.median([node.deviation or 0.0 for node in known]) if known else None
        worst = max(known, key=lambda node: node.deviation or 0.0, default=None)
        cells = (
            rack,
            f"{len(nodes):,}",
            f"{len(odd):,}",
            f"{len(nodes) - len(known):,}",
            format_signed(middle),
            f"{worst.host} {format_signed(worst.deviation)}" if worst else "-",
        )
        key = (-len(odd), -(middle or 0.0))
        lines.append((key, Line(cells, {}, "bad" if odd else "good" if known else "notice")))
    if not lines:
        return None
    heads = ("rack", "nodes", "odd", "no verdict", "median", "slowest")
    lines.sort(key=lambda item: item[0])
    return Table(
        name="by-rack",
        title="By rack",
        columns=make_columns(heads, "lrrrrl"),
        lines=[line for _, line in lines][:LISTED],
        note=_note_cut(len(lines)),
    )


def _groups_table(fleet: Fleet) -> Table | None:
    """Groups of like nodes, and in what they are unlike the largest."""
    lines = []
    for number, group in enumerate(fleet.groups, 1):
        judged = sum(node.deviation is not None for node in group.nodes)
        cells = (
            str(number),
            f"{len(group.nodes):,}",
            f"{judged:,}",
            f"{group.rows:,}",
            f"{group.scatter:.2%}" if judged else "-",
            f"{group.limit:.1%}" if judged and group.limit is not None else "-",
            group.why or group.unlike or "the largest group",
        )
        lines.append(Line(cells, {}, "" if judged else "notice"))
    if not lines:
        return None
    heads = ("group", "nodes", "judged", "rows", "scatter", "odd from", "unlike the largest in")
    return Table(
        name="groups",
        title="Like nodes",
        columns=(*make_columns(heads[:-1]), Column(heads[-1], "wrap", dim=True)),
        lines=lines[:LISTED],
        note="Nodes are compared within a group only. Scatter is of their deviation in all rows.",
    )


def _nodes_table(fleet: Fleet) -> Table:
    """Nodes with a verdict, the slowest first."""
    judged = sorted(fleet.judged, key=lambda node: (not node.odd, -(node.deviation or 0.0)))
    lines = [
        Line(
            (
                node.host,
                node.rack,
                format_signed(node.deviation),
                "; ".join(f"{part} {format_signed(node.deviations[part])}" for part, _ in node.odd),
                str(node.launches),
                str(len(node.rows)),
            ),
            {},
            "bad" if node.odd else "",
        )
        for node in judged[:LISTED]
    ]
    heads = ("node", "rack", "all rows", "odd in", "launches", "rows")
    return Table(
        name="judged",
        title="Slowest nodes",
        columns=make_columns(heads, "llrlrr"),
        lines=lines,
        note=_note_cut(len(judged)),
        folded=len(judged) > LISTED // 4,
    )


def _list_nodes(fleet: Fleet) -> list[dict[str, Any]]:
    """Every node as plain values, for programs."""
    return [
        {
            "node": node.host,
            "rack": node.rack,
            "state": _name_state(node),
            "deviation": node.deviation,
            "odd_in": "; ".join(part for part, _ in node.odd),
            "why": node.why,
            "launches": node.launches,
            "runs": " ".join(node.runs),
        }
        for node in fleet.nodes
    ]


def _name_state(node: Node) -> str:
    if node.wrong_cases:
        return "wrong data"
    if node.deviation is None or node.odd:
        return "odd" if node.odd else node.trouble
    if node.findings:
        return "unsound"
    return "like" if node.checked else NOT_VERIFIED


def flatten_fleet(fleet: Fleet) -> Mapping[str, Any]:
    """Everything as plain values: nodes, with their deviations by part, and groups."""
    nodes = [
        {**line, "deviations": node.deviations, "chances": dict(node.odd)}
        for line, node in zip(_list_nodes(fleet), fleet.nodes, strict=True)
    ]
    groups = [
        {
            "nodes": len(group.nodes),
            "judged": sum(node.deviation is not None for node in group.nodes),
            "unlike": group.unlike,
            "rows": group.rows,
            "scatter": group.scatter,
            "limit": group.limit,
            "why": group.why,
        }
        for group in fleet.groups
    ]
    unnamed = [{"path": r.path, "run": r.run, "why": r.why} for r in fleet.unnamed]
    return {"night": fleet.night, "nodes": nodes, "groups": groups, "unnamed": unnamed}


def list_gauges(fleet: Fleet) -> list[Gauge]:
    """The gauges of a fleet, beside those of any verdict."""
    return [
        Gauge(
            "collbench_fleet_node_deviation_ratio",
            "How much slower a node is than the median of like nodes, in all rows.",
            [
                ({"node": node.host, "rack": node.rack}, round_finite(node.deviation, 4) or 0.0)
                for node in fleet.judged
            ],
        ),
        Gauge(
            "collbench_fleet_node_odd",
            "1 for each odd node.",
            [({"node": node.host, "rack": node.rack}, 1) for node in fleet.odd],
        ),
        Gauge(
            "collbench_fleet_nodes",
            "Nodes, by what became of them.",
            [
                ({"state": state}, sum(_name_state(node) == state for node in fleet.nodes))
                for state in dict.fromkeys(["like", "odd", *map(_name_state, fleet.nodes)])
            ],
        ),
    ]

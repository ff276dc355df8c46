"""The command `fit`: latency and bandwidth of recorded runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer import Option

from collbench.cli.families import Debug, Runs, TableOrJson
from collbench.core.errors import Exit, NoVerdict, UsageError


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The times to fit."""

    runs: Runs = None
    backend: Annotated[str, Option("--backend", help="Only this backend.")] = ""
    output_format: TableOrJson = "table"
    debug: Debug = False


def fit(options: FitOptions) -> None:
    """Fit latency and bandwidth of the model to recorded runs."""
    from collbench.cli import outputs
    from collbench.features.predict import fit as fitting
    from collbench.features.predict.views import prediction
    from collbench.records import origins, run_file, store

    outputs.check_outputs(options.output_format, (), ("table", "json"))
    files = [run_file.read_digest(store.find_run(run)) for run in options.runs or ["@last"]]
    named = options.backend
    known = [series for file in files for series in fitting.make_series(file)]
    all_series = [one for one in known if named in ("", one.case.backend)]
    if not all_series:
        for file in files:
            if named in ("", *file.backends):
                origins.refuse_fake(file, "fit")
        if not known:
            raise NoVerdict("these runs have no times to fit", "name runs that measured")
        raise UsageError(
            f"these runs have no times of {named} to fit",
            f"they have some of {', '.join(sorted({one.case.backend for one in known}))}",
        )
    fits = [fitting.fit_series(series) for series in all_series]
    outputs.deliver_document(
        prediction.make_fitted(fits, fitting.fit_links(all_series)), options.output_format
    )
    if all(series_fit.refused for series_fit in fits):
        raise typer.Exit(Exit.NO_VERDICT)

"""The command `fit`: latency and bandwidth of recorded runs."""

from __future__ import annotations

import typer

from collbench.core.errors import Exit, UsageError


def fit(
    runs: list[str] | None = None,
    backend: str = "",
    output_format: str = "table",
    debug: bool = False,
) -> None:
    """Fit latency and bandwidth of the model to recorded runs."""
    from collbench.cli import outputs
    from collbench.features.predict import fit as fitting
    from collbench.features.predict.views import prediction
    from collbench.records import origins, run_file, store

    outputs.check_outputs(output_format, (), ("table", "json"))
    files = [run_file.read_digest(store.find_run(run)) for run in runs or ["@last"]]
    all_series = [
        series
        for file in files
        for series in fitting.make_series(file)
        if backend in ("", series.case.backend)
    ]
    if not all_series:
        for file in files:
            origins.refuse_fake(file, "fit")
        raise UsageError(
            f"there are no times {f'of {backend} ' if backend else ''}to fit",
            "collbench runs lists runs",
        )
    fits = [fitting.fit_series(series) for series in all_series]
    outputs.deliver_document(
        prediction.make_fitted(fits, fitting.fit_links(all_series)), output_format
    )
    if all(fitted.refused for fitted in fits):
        raise typer.Exit(Exit.NO_VERDICT)

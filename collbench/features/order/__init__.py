"""The order in which a library adds the ranks' contributions, and what that depends on."""

from collbench.core.feature import Command, Entry, Feature

KIND = "order"
FEATURE = Feature(
    name="order",
    commands=(
        Command(
            "order",
            "command:order",
            "Find in which order a library adds the ranks' numbers, and whether that changes.",
            starts_ranks=True,
            show_command="order",
            verdict_options=("--require", "--like"),
        ),
    ),
    sections=(Entry("order", "view:make_section", after="skips"),),
    row_tables=(Entry(KIND, "rows:TABLE"),),
    measurables=(Entry(KIND, "measurable:ORDERS"),),
    runners=(Entry(KIND, "runner:RUNNER"),),
    order_sources=(Entry("run", "sources:load_orders"),),
)

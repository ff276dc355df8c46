"""What an algorithm's schedule costs by the model of network.py, and by which formula of n."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from collbench.core.algorithms import Variant, count_doublings
from collbench.core.errors import AlgorithmError
from collbench.core.schedule import Schedule
from collbench.core.simulate import count_costs
from collbench.core.text import format_count

FORMS: dict[str, Callable[[int], Fraction]] = {  # of counts, as functions of the ranks
    "0": lambda n: Fraction(0),
    "1": lambda n: Fraction(1),
    "2": lambda n: Fraction(2),
    "log2(n)": lambda n: Fraction(count_doublings(n)),
    "2 log2(n)": lambda n: Fraction(2 * count_doublings(n)),
    "1/2 log2(n)": lambda n: Fraction(count_doublings(n), 2),
    "n/2": lambda n: Fraction(n, 2),
    "(n-1)": lambda n: Fraction(n - 1),
    "n": Fraction,
    "2(n-1)": lambda n: Fraction(2 * (n - 1)),
    "(n-1)/n": lambda n: Fraction(n - 1, n),
    "2(n-1)/n": lambda n: Fraction(2 * (n - 1), n),
}

LARGE = (8, 13, 16)  # numbers of ranks for which a formula must hold, too


def describe_cost(variant: Variant, schedule: Schedule) -> list[str]:
    """The cost of a schedule by the model, exactly for its ranks and, where a known form fits, for
    n of them; and what no algorithm can do without."""
    costs, least = count_costs(schedule), schedule.row.bound_by_size(schedule.n)
    formula = _format_sum(map(str, costs[:3]))
    if formulas := find_formulas(variant, schedule.n):
        formula = f"{_format_sum(formulas)} for n ranks, here {formula}"
    bound = _format_sum(str(Fraction(value).limit_denominator(1 << 20)) for value in least)
    symbols = f"α: time of a message ({format_count(int(costs.A), 'round')} of them)"
    symbols += "; B: size in bytes; β: time of a byte sent" * bool(costs.B)
    symbols += "; γ: time of a byte added" * bool(costs.G)
    sentence = (
        f"cost of {format_count(schedule.n, 'rank')}: {formula}; at least {bound} by any algorithm"
    )
    return [sentence, symbols]


def find_formulas(variant: Variant, n: int) -> list[str]:
    """Forms of A, B and G that fit n ranks and others, whoever the root is; empty where one of them
    has none."""
    numbers = [ranks for ranks in dict.fromkeys((n, *LARGE)) if not variant.refuse(ranks)]
    try:
        counts = [(ranks, count_costs(variant.schedule(ranks))) for ranks in numbers]
    except AlgorithmError:  # a user's, which is right for n ranks only
        return []
    names = [
        next((name for name, form in FORMS.items() if all(form(m) == c[at] for m, c in counts)), "")
        for at in range(3)
    ]
    return names if len(numbers) > 1 and all(names) else []


def _format_sum(factors: Iterable[str]) -> str:
    """2 α + 3/2 B β + 3/4 B γ, less what is nothing."""
    terms = zip(factors, ("α", "B β", "B γ"), strict=True)
    products = (f"{factor} {term}".removeprefix("1 ") for factor, term in terms if factor != "0")
    return " + ".join(products) or "0"

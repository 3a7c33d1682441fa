from __future__ import annotations

import click

from ..console import Console
from ..options import output_options
from ..tables import facts


@click.command()
@click.option("--rows", type=int, required=True, help="Rows N.")
@click.option("--features", type=int, required=True, help="Features p.")
@click.option("--clusters", type=int, required=True, help="Clusters m.")
@click.option("--candidates", type=int, help="Candidates n; default: what the theory asks.")
@click.option(
    "--min-weight", type=float, default=0.8, show_default=True, help="Smallest weight x m."
)
@click.option("--delta", type=float, default=0.01, show_default=True, help="Risk of failure.")
@output_options
def theory(
    console: Console,
    rows: int,
    features: int,
    clusters: int,
    candidates: int | None,
    min_weight: float,
    delta: float,
) -> None:
    """What the paper guarantees: Theorem 1 for these numbers, Corollary 7 for this risk."""
    from scrlm_dask.kernels.theory import required, success_probability

    need = required(clusters, delta, min_weight, rows)
    if candidates is None:
        candidates = min(need.n_candidates, rows)
    content = {
        "rows": rows,
        "features": features,
        "clusters": clusters,
        "candidates": candidates,
        "success_probability_at_least": success_probability(
            rows, features, clusters, candidates, min_weight
        ),
        "required_candidates": need.n_candidates,
        "required_rows": need.n_rows,
        "required_features": need.n_features,
    }
    console.result(content, facts("Theory", content))
    if features < need.n_features:
        console.say(
            "the bound on features is loose, by a factor of over 64 in the paper's experiments: "
            "fewer are usually enough"
        )

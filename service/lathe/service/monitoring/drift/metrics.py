"""Prometheus metrics of drift."""

from prometheus_client import Gauge

from lathe.service.monitoring.drift.drift import Drift

LABELS = ["encoder", "chain"]
ROWS = Gauge("lathe_drift_rows", "Rows in the window that figures are of", LABELS)
OUT_OF_DOMAIN = Gauge("lathe_drift_out_of_domain", "Mean percentile among held-out rows; .5 as fitted", LABELS)
MEAN_COSINE = Gauge("lathe_drift_mean_cosine", "Cosine of the live mean to the fitted one", LABELS)
MEAN_NORM = Gauge("lathe_drift_mean_norm_ratio", "Length of the live mean over that of the fitted one", LABELS)
OUTSIDE = Gauge("lathe_drift_outside", "Share of the energy outside what the chain keeps", LABELS)
ODD_NORMS = Gauge("lathe_drift_odd_norms", "Share of rows with a length unlike the fitted ones", LABELS)
CLIPPED = Gauge("lathe_drift_clipped", "Share of the values coded beyond the fitted range of the codes", LABELS)
STALE = Gauge("lathe_drift_stale", "1 where the chain is stale", LABELS)
GAUGES = (ROWS, OUT_OF_DOMAIN, MEAN_COSINE, MEAN_NORM, OUTSIDE, ODD_NORMS, CLIPPED, STALE)


def update_drift_gauges(drift: Drift) -> None:
    """Evaluate all queued rows and set the drift gauges; unknown figures and dropped windows have none."""
    for gauge in GAUGES:
        gauge.clear()
    for window, tally in drift.evaluate_all():
        figures = tally.to_json(window.reference)
        norm = figures["mean_norm"]
        known = {
            ROWS: tally.rows,
            OUT_OF_DOMAIN: tally.out_of_domain,
            MEAN_COSINE: figures["mean_cosine"],
            MEAN_NORM: norm["live"] / norm["fitted"] if norm["live"] is not None and norm["fitted"] else None,
            OUTSIDE: figures["outside"]["live"],
            ODD_NORMS: figures["odd_norms"],
            CLIPPED: figures["clipped"],
            STALE: int(drift.exceeds_threshold(tally)),
        }
        for gauge, value in known.items():
            if value is not None:
                gauge.labels(window.encoder or "none", window.loaded.ref).set(value)

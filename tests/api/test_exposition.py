"""The text format of metrics, read back by the reference implementation."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from ninfer.api.exposition import COUNTER, GAUGE, HISTOGRAM, Histogram, Sample, Series, exposition


def test_the_document_byte_for_byte() -> None:
    histogram = Histogram((0.5, 1, 10))
    for seconds in (0.5, 0.75, 0.75, 11):
        histogram.observe(seconds)
    body = exposition(
        [
            Series("a:x_total", COUNTER, (Sample(3), Sample(1 << 60, {"outcome": "b"}))),
            Series("a:y_seconds", GAUGE, (Sample(1.5),)),
            Series("a:z_seconds", HISTOGRAM, histogram.samples()),
        ]
    )
    assert body.decode() == (
        "# TYPE a:x_total counter\n"
        "a:x_total 3\n"
        'a:x_total{outcome="b"} 1152921504606846976\n'
        "# TYPE a:y_seconds gauge\n"
        "a:y_seconds 1.500000\n"
        "# TYPE a:z_seconds histogram\n"
        'a:z_seconds_bucket{le="0.5"} 1\n'
        'a:z_seconds_bucket{le="1"} 3\n'
        'a:z_seconds_bucket{le="10"} 3\n'
        'a:z_seconds_bucket{le="+Inf"} 4\n'
        "a:z_seconds_sum 13.000000\n"
        "a:z_seconds_count 4\n"
    )
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert {name: family.type for name, family in families.items()} == {
        "a:x": "counter",
        "a:y_seconds": "gauge",
        "a:z_seconds": "histogram",
    }
    assert [sample.value for sample in families["a:z_seconds"].samples] == [1, 3, 3, 4, 13, 4]


def test_equal_values_are_counted_at_once() -> None:
    several, one_by_one = Histogram((1,)), Histogram((1,))
    several.observe(0.25, 4)
    for _ in range(4):
        one_by_one.observe(0.25)
    assert several.samples() == one_by_one.samples()

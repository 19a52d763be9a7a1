"""The chart carries a copy of crds/ and the schema of its values, and stale ones are noticed."""

from pathlib import Path

from charts import generate


def test_no_generated_file_of_the_chart_is_stale():
    assert generate.stale(generate.contents(), generate.CHART) == [], "run `make generate`"


def test_a_changed_a_missing_and_a_superfluous_file_are_all_noticed_and_mended(tmp_path):
    crds = Path("files/crds")
    expected = {
        Path("values.schema.json"): "{}\n",
        crds / "changed.yaml": "a: 2\n",
        crds / "missing.yaml": "b: 1\n",
        crds / "same.yaml": "d: 1\n",
    }
    (tmp_path / crds).mkdir(parents=True)
    for name, text in (("changed", "a: 1\n"), ("superfluous", "c: 1\n"), ("same", "d: 1\n")):
        (tmp_path / crds / f"{name}.yaml").write_text(text)

    stale = generate.stale(expected, tmp_path)
    generate.write(expected, tmp_path)

    assert [path.name for path in stale] == [
        "changed.yaml",
        "missing.yaml",
        "superfluous.yaml",
        "values.schema.json",
    ]
    assert generate.stale(expected, tmp_path) == []
    assert {path.name for path in (tmp_path / crds).iterdir()} == {
        "changed.yaml",
        "missing.yaml",
        "same.yaml",
    }

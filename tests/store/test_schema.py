import json
from pathlib import Path

import jsonschema
import pytest

from attnbench.record import Status
from attnbench.store import runfile, schema
from made_up_run import make_case, make_lost, make_run

PUBLISHED = Path(__file__).parents[2] / "docs" / "run-file.schema.json"


def complaints(data):
    return [error.message for error in jsonschema.Draft202012Validator(schema.json_schema()).iter_errors(data)]


def test_the_published_schema_is_the_generated_one():
    again = "python -c \"from attnbench.store import schema; schema.publish('docs/run-file.schema.json')\""
    assert json.loads(PUBLISHED.read_text()) == schema.json_schema(), f"publish it again: {again}"


def test_the_schema_is_a_schema_and_a_run_fits_it():
    jsonschema.Draft202012Validator.check_schema(schema.json_schema())
    assert complaints(json.loads(runfile.dumps(make_run()))) == []


@pytest.mark.parametrize("status", [item for item in Status if item is not Status.PASSED])
def test_every_outcome_fits(status):
    lost = make_lost(make_case(), "a", status, "it was so")
    assert complaints(json.loads(runfile.dumps(make_run([lost])))) == []


def test_what_the_reader_refuses_the_schema_refuses():
    data = json.loads(runfile.dumps(make_run()))
    data["records"][0]["status"] = "failed"
    data["records"][1]["time"]["samples_ms"][3] = "fast"
    data["records"][2]["speed"] = 3
    data["run"]["plan"][0]["backends"] = None
    data["schema"] = 2
    assert len(complaints(data)) >= 6


def test_fields_say_what_they_are():
    times = schema.json_schema()["$defs"]["Time"]["properties"]
    assert times["rounds"]["description"].startswith("round of each sample")
    assert times["std_ms"] == {"type": ["number", "null"], "description": "n-1; None for one sample"}

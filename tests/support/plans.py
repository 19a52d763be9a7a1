"""Run `tangram plan` on documents in this process, and check its output against the schema."""

import importlib.resources
import io
import json
from contextlib import redirect_stderr, redirect_stdout

import pytest
import yaml

from tangram.cli.main import main

from .json_schema import violations

SCHEMA = json.loads(importlib.resources.files("tangram.cli.plan").joinpath("schema.json").read_text())
H100 = "H100-80GB-SXM"
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # in C: a tenth of the time


def gpu(gpu_id, *instances, node="n0", sku=H100, **more):
    """A GPU of an Inventory; instances as `profile@start=owner`, no owner: free."""
    placed = [_instance(text) for text in instances]
    return {"id": gpu_id, "node": node, "sku": sku, "instances": placed, **more}


def _instance(text):
    slice_, _, owner = text.partition("=")
    profile, _, start = slice_.partition("@")
    return {"profile": profile, "start": int(start or 0), **({"owner": owner} if owner else {})}


def inventory(*gpus, **more):
    return {"apiVersion": "tangram.dev/v1alpha1", "kind": "Inventory", "spec": {"gpus": list(gpus), **more}}


def request(name, profile, count, **more):
    return {
        "kind": "SliceRequest",
        "metadata": {"name": name},
        "spec": {"profile": profile, "count": count, **more},
    }


def run(*argv, columns=160):
    """Exit status, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("COLUMNS", str(columns))
        status = main([str(word) for word in argv])
    return status, out.getvalue(), err.getvalue()


class Planner:
    """Plans documents through the command."""

    def __init__(self, folder):
        self.folder = folder

    def file(self, *documents, name="fleet.yaml"):
        path = self.folder / name
        path.write_text(yaml.dump_all(documents, Dumper=_DUMPER))
        return path

    def run(self, *documents, flags=(), columns=160):
        return run("plan", "-f", self.file(*documents), *flags, columns=columns)

    def plan(self, *documents, flags=()):
        """The plan document, valid by the schema."""
        status, out, err = self.run(*documents, flags=("-o", "json", *flags))
        assert (status, err) == (0, "")
        document = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no number"))
        assert violations(document, SCHEMA) == []
        return document

    def refused(self, *documents, flags=()):
        """The one line of error of a refused input."""
        status, out, err = self.run(*documents, flags=flags)
        assert (status, out) == (2, ""), (status, out, err)
        assert err.startswith("tangram: ")
        assert err.count("\n") == 1
        return err.removeprefix("tangram: ").strip()


def held(plan):
    """(gpu, profile, start, owner) of every device in use."""
    return {(g["id"], i["profile"], i["start"], i["owner"]) for g in plan["gpus"] for i in g["instances"]}


def used(plan):
    return [g["id"] for g in plan["gpus"] if g["instances"]]

"""Files of the old form in `tangram plan` and `tangram explain`: an error with the new name."""

import pytest
import yaml

from tangram.api.common.old_forms import OLD_FORMS, Change
from tangram.cli.main import main

BASE = {
    "LLMDeployment": {"model": {"uri": "image:///models/llama-3.1-8b"}},
    "GPUPool": {"nodeSelector": {"pool": "a"}},
}
WRITTEN = [form for form in OLD_FORMS if form.change is not Change.OBSERVED]


def document(kind, line):
    """An object of a kind with one more line, `a.b: value`."""
    path, _, value = line.partition(": ")
    found = {"apiVersion": "tangram.dev/v1alpha1", "kind": kind, "metadata": {"name": "chat"}}
    *outer, last = path.split(".")
    spec = inner = dict(BASE[kind])
    for key in outer:
        inner[key] = dict(inner.get(key, {}))
        inner = inner[key]
    inner[last] = yaml.safe_load(value)
    return yaml.safe_dump(found | {"spec": spec})


@pytest.mark.parametrize("form", WRITTEN, ids=lambda form: form.shown)
def test_the_old_form_is_refused_with_the_new_one_and_the_command_that_writes_it(form, tmp_path, capsys):
    path = tmp_path / "f.yaml"
    path.write_text(document(form.kind, form.old))

    for command in (("plan",), ("explain", "llmdep/chat")):
        assert main([*command, "-f", str(path)]) == 2

        err = capsys.readouterr().err
        assert f"{form.shown}: {form.advice}; `tangram convert FILE` writes the new form" in err

"""Names that `tangram scale` sends to no API server."""

import pytest
from click.testing import CliRunner

from tangram.catalog import InputError
from tangram.cli.scale.command import scale


@pytest.mark.parametrize(
    "name", ["", "..", "deployment/chat", "a/b", "llmdep/", "Chat", "chat?x=1", "chat\n"]
)
def test_what_is_no_name_of_an_llmdeployment_is_refused(name):
    told = CliRunner().invoke(scale, [name, "--auto"])

    assert isinstance(told.exception, InputError)
    assert "is not the name of an LLMDeployment" in str(told.exception)


@pytest.mark.parametrize("namespace", ["", "../nodes", "Team"])
def test_what_is_no_name_of_a_namespace_is_refused(namespace):
    told = CliRunner().invoke(scale, ["chat", "--auto", "-n", namespace])

    assert isinstance(told.exception, InputError)
    assert "is not the name of a namespace" in str(told.exception)

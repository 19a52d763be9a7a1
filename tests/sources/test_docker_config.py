"""Credentials of a registry, as the kubelet reads them from a .dockerconfigjson."""

import base64

import pytest

from tangram.sources.oci.docker_config import RegistryUser, credentials_of


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    ("auths", "host", "expected"),
    [
        ({"ghcr.io": auth("me:secret")}, "ghcr.io", "me"),
        ({"https://ghcr.io/": {"username": "me", "password": "secret"}}, "ghcr.io", "me"),
        ({"ghcr.io": auth("all:secret"), "ghcr.io/team": auth("team:secret")}, "ghcr.io", "team"),
        ({"https://index.docker.io/v1/": auth("me:secret")}, "docker.io", "me"),
        ({"evil-ghcr.io": auth("a:secret"), "ghcr.io.evil": auth("b:secret")}, "ghcr.io", None),
        ({"ghcr.io/te": auth("other:secret")}, "ghcr.io", None),
    ],
)
def test_the_longest_key_that_names_the_repository_counts(auths, host, expected):
    user = credentials_of({"auths": auths}, host, "team/llama")
    assert user == (expected and RegistryUser(expected, "secret"))
    assert "secret" not in repr(user)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "has no object auths"),
        ({"auths": {"ghcr.io": "x"}}, "is no object"),
        ({"auths": {"ghcr.io": {"auth": "not base64"}}}, "is not the base64 of user:password"),
        ({"auths": {"ghcr.io": {"identitytoken": "x"}}}, "has no user and password"),
    ],
)
def test_a_config_without_a_user_is_refused(config, words):
    with pytest.raises(ValueError, match=words):
        credentials_of(config, "ghcr.io", "team/llama")

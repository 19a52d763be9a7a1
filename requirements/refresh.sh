#!/bin/sh
# Re-makes every lock in this folder (`make lock`). Run it after a change of pyproject.toml or of a *.in file here.
# The dev lock is solved first and constrains the others, so that what the tests ran is what the images hold.
# `UPGRADE=1` takes the newest versions the ranges allow; without it the pins stay unless a range excludes them.
set -eu
cd "$(dirname "$0")/.."
uv="${UV:-uv}"

compile() { # compile OUTPUT SOURCE... [OPTIONS]
    output="$1"
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
        ${UPGRADE:+--upgrade} --output-file "requirements/$output" "$@"
    echo "requirements/$output: $(grep -c '==' "requirements/$output") packages"
}

compile dev.lock pyproject.toml requirements/silicon.in --extra operator --extra agent --extra cli --extra fetch --extra gateway --extra engine --extra dev
compile operator.lock pyproject.toml --extra operator -c requirements/dev.lock
compile agent.lock pyproject.toml --extra agent -c requirements/dev.lock
compile fetch.lock pyproject.toml --extra fetch -c requirements/dev.lock
compile gateway.lock pyproject.toml --extra gateway -c requirements/dev.lock
compile engine.lock pyproject.toml --extra engine -c requirements/dev.lock
compile e2e.lock requirements/e2e.in -c requirements/dev.lock
compile silicon.lock requirements/silicon.in -c requirements/dev.lock
compile uv.lock requirements/uv.in
compile compiler.lock requirements/compiler.in
compile sbom.lock requirements/sbom.in

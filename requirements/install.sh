#!/bin/sh
# Runs inside an image build: makes the virtualenv VENV and fills it from LOCK, hashes checked.
#   install.sh LOCK [VENV]
# uv does the work (it is several times faster than pip on torch); pip brings uv, hash-checked too, and uv leaves again.
# The index is whatever the build arguments say; a bundle of extra certificate authorities is trusted when the build
# context has one (.build/ca-certificates.crt), as behind an intercepting proxy.
set -eu
lock="$1"
venv="${2:-/opt/venv}"
here="$(cd "$(dirname "$0")" && pwd)"
uv_home="$(mktemp -d)"
trap 'rm -rf "$uv_home"' EXIT

bundle="${CA_BUNDLE:-$here/../.build/ca-certificates.crt}"
if [ -s "$bundle" ]; then
    export PIP_CERT="$bundle" SSL_CERT_FILE="$bundle" REQUESTS_CA_BUNDLE="$bundle"
fi
# One setting for both installers: uv does not read pip's variables.
if [ -n "${PIP_INDEX_URL:-}" ] && [ -z "${UV_DEFAULT_INDEX:-}" ]; then
    export UV_DEFAULT_INDEX="$PIP_INDEX_URL"
fi
if [ -n "${PIP_EXTRA_INDEX_URL:-}" ] && [ -z "${UV_INDEX:-}" ]; then
    export UV_INDEX="$PIP_EXTRA_INDEX_URL"
fi

python3 -m venv "$uv_home"
"$uv_home/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check \
    --require-hashes --requirement "$here/uv.lock"

python3 -m venv --without-pip "$venv"
# Bytecode is compiled here because pods run on a read-only root: without it every start would compile it again.
"$uv_home/bin/uv" pip install --quiet --no-cache --native-tls --compile-bytecode \
    --python "$venv/bin/python" --require-hashes --requirement "$lock"

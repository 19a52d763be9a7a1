#!/bin/sh
# Re-makes the *_pb2.py files here from the .proto files. Needs `uv` and `ruff` on PATH.
# grpcio-tools lives in an environment of its own, thrown away afterwards: its protobuf must never meet ortools'.
# 1.76 writes code for protobuf 6.31 and newer.
set -eu
cd "$(dirname "$0")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
uv venv --quiet "$work/venv"
uv pip install --quiet --python "$work/venv/bin/python" 'grpcio-tools==1.76.0' 'protobuf==6.33.*' 'setuptools<81'
for proto in *.proto; do
    "$work/venv/bin/python" -m grpc_tools.protoc -I. --python_out="$work" "$proto"
    out="${proto%.proto}_pb2.py"
    printf "# ruff: noqa: E501, SLF001\n# mypy: ignore-errors\n" > "$out"
    grep -v "^# -\*- coding" "$work/$out" >> "$out"
    ruff format --quiet "$out"
done

"""Checkpoints on a hub, in a store or in a registry: their facts by ranged reads, their files verified.

In: a `model.uri` and, where one is needed, a Secret. Out: a pinned revision, and a directory that an engine
reads. It runs in containers of its own image, with the author's Secret and in the author's namespace; the
operator itself reads no hub. `tangram size` reads the same facts from a person's machine.

hub                Hugging Face and its mirrors, by `huggingface_hub`
store              S3 and compatible stores, by `obstore`
oci                images and artifacts of registries
checkpoint         which files of a repository are those of a checkpoint, and the errors of all sources
ranged_reads       JSON files and safetensors headers
sparse_copy        a directory with the true files and headers, in which tensors are holes
download           all bytes, verified, visible only when whole
image_fetch        the same of layers: headers or all bytes
network            a proxy, and certificate authorities beside the public ones
command            `tangram-fetch`
"""
